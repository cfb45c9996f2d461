"""One long conversation: its schedule, its clock, what was said."""
