"""The worlds of a run: which kind of sandbox each item gets, of which image, and what becomes of it afterwards."""
