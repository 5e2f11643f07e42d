"""T trajectories a question, in a pool without barriers, stored so that nothing is lost."""
