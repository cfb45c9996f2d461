"""Grading conversations that have ended, of whatever workload: the file of graders that a person gives, and what executes it."""
