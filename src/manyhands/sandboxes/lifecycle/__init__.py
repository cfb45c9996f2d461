"""The sandboxes of a whole run: images planned and built, one backend, worlds kept, swept and exported."""
