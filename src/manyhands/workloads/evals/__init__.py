"""Workload 2: tests × targets × samples, each answered by the target and scored by its graders."""
