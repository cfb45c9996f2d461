"""Folders in which targets work, and what they changed there."""
