"""Pages about runs of the memory benchmark: one agent in detail, or several compared."""
