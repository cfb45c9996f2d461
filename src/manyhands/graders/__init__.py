"""Graders: each judges an outcome and gives a score from 0 to 1 with its reasons."""
