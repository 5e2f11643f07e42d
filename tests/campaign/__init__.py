"""Attacks on the whole project, drawn from a seed (test_campaign.py). docs/reliability.md says what must hold."""
