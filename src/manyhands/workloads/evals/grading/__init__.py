"""From an answer to scores, a verdict and a status."""
