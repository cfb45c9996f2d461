"""Worlds as files of a run's folder, by which they move to another engine: written there, read here, and made anew."""
