"""The import formats, each in a module of its own: how rows of files become conversations."""
