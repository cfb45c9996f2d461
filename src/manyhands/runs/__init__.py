"""Runs as a whole: their folders, one session of execution, the ledger."""
