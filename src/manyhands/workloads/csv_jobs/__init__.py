"""Workload 3: each row of a table is given to an agent, which reports one JSON object for it."""
