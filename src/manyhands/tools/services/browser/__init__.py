"""The browser that agents steer, and the tools for it."""
