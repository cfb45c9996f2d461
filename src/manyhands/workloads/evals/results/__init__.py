"""What a run of evaluations writes."""
