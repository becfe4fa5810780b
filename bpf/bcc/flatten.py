"""Prints a C file with the headers that it includes by "name" put in their place."""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'#include "(.+)"')


def flat(path: Path) -> str:
    """Return the file's text; a header that is there twice is kept apart by its own guard."""
    lines = path.read_text().splitlines(keepends=True)
    return "".join(
        flat(path.parent / match[1]) if (match := INCLUDE.match(line)) else line for line in lines
    )


sys.stdout.write(flat(Path(sys.argv[1])))
