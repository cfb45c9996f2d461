"""Runs as a whole: their folders, one session of execution, changing one while it is executed, the ledger."""
