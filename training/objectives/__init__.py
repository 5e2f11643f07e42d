"""Training objectives, one file each (`training.objective` names it); `objective.py` says what such a file has."""
