"""Kernel and runtime to observations."""
