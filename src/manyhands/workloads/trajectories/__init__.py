"""Workload 1: prompts become training trajectories."""
