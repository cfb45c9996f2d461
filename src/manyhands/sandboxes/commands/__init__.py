"""How commands are started in a sandbox, bounded and stopped."""
