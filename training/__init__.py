"""Selected trajectories to token rows to a LoRA adapter."""
