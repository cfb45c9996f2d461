"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says something about the machine's load only.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=250)
settings.load_profile("quick")
