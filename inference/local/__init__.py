"""The in-process engine: continuous batching over a paged key-value cache, on the CPU of a laptop."""
