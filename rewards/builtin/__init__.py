"""The built-in rewards, each in a file that `rewards/reward.py` describes."""
