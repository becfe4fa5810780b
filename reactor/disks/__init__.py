"""Filesystems, and what pods take of them, which a process of its own counts: the walker."""
