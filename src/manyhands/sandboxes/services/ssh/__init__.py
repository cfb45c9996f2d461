"""Worlds that are folders of an account on another machine, reached by OpenSSH."""
