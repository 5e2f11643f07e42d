"""The loop over rounds: what is done and left, what links to what, and which adapter goes on."""
