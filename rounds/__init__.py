"""The loop over rounds: what is done and left, what each stage depends on, and which adapter is promoted."""
