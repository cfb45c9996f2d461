"""Child processes: their start, bounds and end; commands and Python functions of a person."""
