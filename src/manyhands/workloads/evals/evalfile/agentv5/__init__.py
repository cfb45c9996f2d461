"""Eval files in the words of AgentV 5, translated into those that the modules around this folder read."""
