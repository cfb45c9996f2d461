"""Steering a run: what is asked of the process that executes it, and which items are meant."""
