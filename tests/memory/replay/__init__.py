"""Whether the scheduler does what the log of a published session shows, event for event (``python -m tests.memory.replay``)."""
