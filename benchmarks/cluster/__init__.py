"""What a cluster costs: workers on its nodes against workers of this machine, and what one owner carries."""
