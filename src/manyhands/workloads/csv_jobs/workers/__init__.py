"""What executes a row: the built-in agent, an external command, a Python function."""
