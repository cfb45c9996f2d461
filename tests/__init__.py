"""Tests, and the crash campaign (``python -m tests.crash.campaign``)."""
