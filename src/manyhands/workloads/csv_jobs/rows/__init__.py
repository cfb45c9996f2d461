"""Rows: read, turned into prompts, checked and exported."""
