"""What executes a row: the built-in agent, an external command, a Python function; and the stages of a row."""
