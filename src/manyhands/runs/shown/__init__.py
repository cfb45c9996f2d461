"""What pages about runs are made of, as data: workloads give it, and whatever shows runs makes pages of it."""
