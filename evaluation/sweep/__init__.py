"""Sweeps: checkpoints x systems x question sets. Chosen on dev, tested once, shown as one table."""
