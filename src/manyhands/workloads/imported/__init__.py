"""Conversations that took place elsewhere, as a run whose items have ended: to list, show, grade, compare and export."""
