"""Counters of the kernel to observations: the node's, its pods', and what kinds of memory are in use."""
