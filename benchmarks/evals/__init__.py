"""What evaluations cost: the benchmark ``evals`` and the children that it measures."""
