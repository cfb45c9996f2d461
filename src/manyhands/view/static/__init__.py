"""Pages as files that nobody has to serve: documents in one file, reports about runs, and folders of pages that lead to each other."""

DEFAULT_MB = 22.0
"""Size of a document about a run, unless another one is asked for: 10⁶ bytes each. Chromium opens it within three seconds."""
