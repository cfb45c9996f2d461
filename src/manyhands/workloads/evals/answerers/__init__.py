"""The kinds of targets, ready to be questioned: one module a kind."""
