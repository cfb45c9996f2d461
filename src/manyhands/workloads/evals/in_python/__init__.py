"""Evaluations from Python: ``manyhands.evaluate``."""
