"""The tests of a session executed in one process: their turns, their targets, their graders."""
