"""Several stages in one row: what a person writes of them, and what they make of a row."""
