"""From documents to an index on disk: `python -m index_build --config X.yaml`."""
