"""The journal: one SQLite file a run, one writer, many readers, named queries."""
