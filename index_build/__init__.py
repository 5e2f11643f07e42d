"""From documents to an index on disk: `python -m index_build --config X.yaml`."""

import ratchet  # noqa: F401  (before any kernel: it says where compiled kernels are kept)
