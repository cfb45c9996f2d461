"""Worlds on other machines: by ssh, and by services, each with its own client."""
