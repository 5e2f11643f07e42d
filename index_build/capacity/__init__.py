"""What an index of a large corpus will take: `python -m index_build capacity`."""
