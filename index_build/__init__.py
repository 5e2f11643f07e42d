"""From documents to an index on disk: `ratchet index --config X.yaml`."""
