"""Tables and records: CSV, JSON, JSON Lines, Parquet, Excel, saved datasets; formats by suffix, how tables are laid out, standard input."""
