"""Where eval files and tests come from besides YAML and JSON Lines."""
