"""The files that `ratchet new` writes, which docs/guides/extend.md shows."""
