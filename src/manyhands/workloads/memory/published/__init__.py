"""Published results: read and scored again."""
