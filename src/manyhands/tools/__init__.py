"""What agents can do: tools (also a person's own functions), toolsets, and the distributions that toolsets are drawn from."""
