"""The records in tests/fixtures/golden."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

GOLDEN: Final = Path(__file__).parents[1] / "fixtures" / "golden"
RECORD: Final = "GOLDEN_RECORD"
CHANGED: Final = "differs from tests/fixtures/golden; docs/contributing.md says when it may be recorded anew"


def read_json(name: str) -> Any:
    """Return a record that is one document."""
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def write_json(name: str, document: object) -> None:
    """Record a document, so that a difference is one of a few lines."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (GOLDEN / name).write_text(f"{text}\n", encoding="utf-8")


def is_recorded(name: str, document: object) -> bool:
    """Return whether a document is as it was recorded; with RECORD in the environment it is recorded anew."""
    if RECORD in os.environ:
        write_json(name, document)
    return bool(read_json(name) == json.loads(json.dumps(document)))


def line(document: object) -> str:
    """Return a document as one line, that which any equal document gives."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def read_lines(name: str) -> list[str]:
    """Return a record of many lines."""
    return gzip.decompress((GOLDEN / name).read_bytes()).decode("utf-8").splitlines()


def write_lines(name: str, lines: Iterable[str]) -> None:
    """Record many lines; equal lines give an equal file."""
    text = "".join(f"{one}\n" for one in lines)
    (GOLDEN / name).write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))


def write_jsonl(name: str, documents: Iterable[object]) -> None:
    """Record documents, a line each."""
    (GOLDEN / name).write_text("".join(f"{line(one)}\n" for one in documents), encoding="utf-8")


def read_jsonl(name: str) -> list[Any]:
    """Return a record of documents, a line each."""
    return [json.loads(one) for one in (GOLDEN / name).read_text(encoding="utf-8").splitlines()]


def first_difference(recorded: Sequence[str], made: Sequence[str]) -> str | None:
    """Return where two records begin to differ, in words; None where they do not."""
    for number, (before, now) in enumerate(zip(recorded, made, strict=False), 1):
        if before != now:
            return f"line {number} was\n  {before}\nand is\n  {now}\n"
    if len(recorded) != len(made):
        return f"there were {len(recorded)} lines, and are {len(made)}"
    return None
