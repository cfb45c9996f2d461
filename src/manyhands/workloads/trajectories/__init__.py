"""Trajectories: prompts become training data, in the files and with the settings of an earlier program, "the original batch runner"."""
