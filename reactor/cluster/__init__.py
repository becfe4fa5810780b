"""Kubernetes: pods by API server and runtime; evictions, node status, taints, events, admission."""
