"""Limits shared by everything in flight: concurrency of an endpoint, and the budget."""
