"""The datasets that are built in."""
