"""A model that costs nothing: deterministic, and labelled as simulated."""
