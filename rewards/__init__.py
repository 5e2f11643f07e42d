"""Scoring trajectories by rules and by a judge, and choosing which ones to train on."""
