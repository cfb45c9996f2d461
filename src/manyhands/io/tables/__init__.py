"""Tables and records: CSV, JSON, JSON Lines, Parquet, saved datasets; formats by suffix."""
