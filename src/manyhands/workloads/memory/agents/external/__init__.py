"""Agents outside: behind HTTP, a program, a person's class, a person."""
