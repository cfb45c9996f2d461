"""Lines of ``trajectories.jsonl``."""
