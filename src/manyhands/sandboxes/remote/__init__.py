"""Sandboxes whose processes are not this machine's own to see: in an engine's containers, on other hosts, at services."""
