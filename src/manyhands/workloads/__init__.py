"""The four workloads: trajectories, evaluations, CSV jobs, memory benchmark."""
