"""vLLM servers of a config: planned, started, watched, restarted and stopped."""
