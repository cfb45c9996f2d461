"""The kinds of tests. ``manyhands.workloads.memory.datasets.registry`` knows them all."""
