"""Graders that are a person's programs or Python functions."""
