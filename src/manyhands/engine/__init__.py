"""The durable engine: journal and replay, scheduling, limits, progress. It has never heard of language models."""
