"""What a batch of trajectories writes beside its lines: lists, figures, summaries."""
