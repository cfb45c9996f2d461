"""What the engine costs: ratios measured in one run on one machine, never a timed test. ``python -m benchmarks --help``."""
