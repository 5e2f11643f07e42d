"""Attacks on the whole project, drawn from a seed: `python -m tests.campaign`. docs/reliability.md has its table."""
