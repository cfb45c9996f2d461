"""Eval files: found, read and checked."""
