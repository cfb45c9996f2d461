"""From signatures to schemas, from model-written arguments to values."""
