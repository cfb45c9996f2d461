"""The workloads: trajectories, evaluations, CSV jobs, the memory benchmark, and conversations that were imported."""
