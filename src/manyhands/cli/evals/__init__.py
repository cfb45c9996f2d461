"""Commands of ``manyhands eval``: run, compare, report, validate."""
