"""A file of one JSON document a line, read while it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the documents of the whole lines of a file; none if there is no file.

    A line is written page by page: a reader meanwhile finds its beginning alone. Raises JSONDecodeError.
    """
    written = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in written[: written.rfind("\n") + 1].splitlines()]
