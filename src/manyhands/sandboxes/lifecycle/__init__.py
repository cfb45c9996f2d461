"""The sandboxes of a run from before it begins until after it ends: images planned and built, one backend, worlds kept, swept and exported."""
