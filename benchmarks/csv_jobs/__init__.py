"""What CSV jobs cost: the benchmark ``jobs`` and the children that it measures."""
