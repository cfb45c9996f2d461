"""Rows of a dataset as prompts."""
