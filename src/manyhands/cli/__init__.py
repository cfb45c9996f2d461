"""The command line: one module or package a command, no logic."""
