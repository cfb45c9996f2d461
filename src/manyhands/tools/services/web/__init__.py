"""Searching the web and reading its pages: by services, or directly."""
