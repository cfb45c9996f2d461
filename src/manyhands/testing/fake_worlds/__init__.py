"""A service of worlds for tests, in a process of its own on this machine, and the driver for it."""
