"""Files in and out: what people write, tables and records, and files that are never half written."""
