"""What agents can do: tools, toolsets, and the distributions that toolsets are drawn from."""
