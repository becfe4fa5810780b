"""Typed bindings to the kernel and pure parsers of what it writes; one module a kernel interface."""
