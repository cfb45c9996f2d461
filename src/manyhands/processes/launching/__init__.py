"""Launching of commands by a small process of its own."""
