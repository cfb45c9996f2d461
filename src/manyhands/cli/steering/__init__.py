"""Changing a run, also while another process executes it: its settings, and which of its items are executed."""
