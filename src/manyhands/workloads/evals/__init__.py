"""Workload 2: tests × targets × trials, each answered by the target and scored by its graders."""
