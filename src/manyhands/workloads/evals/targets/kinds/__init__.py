"""Kinds of targets: a module for each, or for those that are alike, and their registry."""
