"""The stored run that others are compared with: one for each kind of machine, whole, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.rows import compared
from reactor.errors import RefusedError

BASELINE: Final = Path("docs/figures/baseline.json")


def report(found: Mapping[str, Any], path: Path) -> list[str]:
    """Return what a run says against the baseline in the file, as lines. Raises RefusedError."""
    stored, kind = stored_in(path), kind_of(found)
    if kind not in stored:
        known = ", ".join(sorted(stored)) or "none"
        return [f"no baseline for {kind} in {path} (there: {known}); --update-baseline makes this run it"]
    before = stored[kind]
    return compared(before["rows"], found["rows"], f"{path}, {before['about']['date']}")


def update(found: Mapping[str, Any], path: Path) -> None:
    """Make a run the baseline for its kind of machine. Raises RefusedError, OSError."""
    entry = {"about": found["about"], "rows": found["rows"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**stored_in(path), kind_of(found): entry}, indent=1) + "\n", encoding="utf-8")


def kind_of(found: Mapping[str, Any]) -> str:
    """Return the kind of machine that a run was made on: only runs of one kind compare."""
    about = found["about"]
    return f"cgroup {about['cgroup']}, {about['cpus']} CPUs"


def stored_in(path: Path) -> dict[str, Any]:
    """Return the baselines of a file by the kind of machine, none without the file. Raises RefusedError."""
    accepted = "accepted: what --update-baseline wrote"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: {error}; {accepted}") from error
    if not isinstance(document, dict):
        raise RefusedError(f"{path}: got {type(document).__name__}; {accepted}")
    for kind, entry in document.items():
        if not isinstance(entry, dict) or not {"about", "rows"} <= entry.keys():
            raise RefusedError(f"{path}: {kind}: without about and rows; {accepted}")
    return document
