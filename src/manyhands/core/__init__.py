"""Values and rules without input or output."""

VERSION = "0.1.0"
"""Of this program, as recorded with every run."""
