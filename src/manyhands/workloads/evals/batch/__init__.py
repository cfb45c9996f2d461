"""Commands that answer all tests in one invocation."""
