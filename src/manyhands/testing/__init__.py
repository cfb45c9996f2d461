"""Test doubles and contract suites, public, the same that the project is tested with."""
