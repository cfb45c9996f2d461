"""Limits shared by everything in flight: concurrency of an endpoint and its replicas, and the budget."""
