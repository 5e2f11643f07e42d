"""The same commands as jobs."""
