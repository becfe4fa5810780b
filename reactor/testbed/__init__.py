"""A virtual node in a cgroup: the demo and the benchmarks."""
