"""Trees of directories that are wider or deeper than paths and lists are made for."""

from __future__ import annotations

import os
from pathlib import Path


def make_wide(root: Path, directories: int) -> Path:
    """Make so many directories in `root`, which is made where it is missing; return it."""
    root.mkdir(exist_ok=True)
    at = os.open(root, os.O_RDONLY)
    for number in range(directories):
        os.mkdir(str(number), dir_fd=at)
    os.close(at)
    return root


def make_deep(root: Path, levels: int, *, file_bytes: int = 0) -> Path:
    """Make so many directories below one another in `root`, with a file in the last one; return `root`.

    They are made step by step: a path to the last would be too long.
    """
    root.mkdir(exist_ok=True)
    at = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    if file_bytes:
        file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at)
        os.write(file, b"x" * file_bytes)
        os.close(file)
    os.close(at)
    return root
