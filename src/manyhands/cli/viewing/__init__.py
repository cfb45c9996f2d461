"""Runs in a browser, beside the commands that execute them."""
