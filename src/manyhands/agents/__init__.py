"""Agents: what turns a task into a conversation."""
