"""Targets: what answers the tests."""
