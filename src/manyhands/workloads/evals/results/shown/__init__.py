"""Results of evaluations as the parts of pages."""
