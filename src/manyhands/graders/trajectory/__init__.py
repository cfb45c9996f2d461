"""Graders that look at what an agent did on the way."""
