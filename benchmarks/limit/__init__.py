"""What whole processes take, start included, beside the least that the same work can take: the benchmarks ``limit_…``."""
