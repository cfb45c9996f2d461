"""Workload 4: a benchmark of an agent's long-term memory, in one long conversation under a virtual clock."""
