"""Where commands written by a model run."""
