"""Where items are performed."""
