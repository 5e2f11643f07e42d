"""What a run will take: memory and hours, stage by stage, and what they took where it has run."""
