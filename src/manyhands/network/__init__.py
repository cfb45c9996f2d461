"""The network of sandboxes and tools: which hosts may be reached, and the egress proxy that heeds it."""
