"""Conversations out of runs: one canonical record, every format that training and analysis read, and the way back in."""
