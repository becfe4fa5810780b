"""Kubernetes: which pods there are, by API server and runtime, and what the cluster is told of evictions."""
