"""The kinds of tests. ``manyhands.memory.dataset_registry`` knows them all."""
