"""The export formats, each in a module of its own."""
