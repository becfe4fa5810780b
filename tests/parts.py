"""The parts of `make test`: runs one and keeps how it ended; says at the end what has become of each.

`python -m tests.parts NAME COMMAND…` runs a part and prints what it prints in one piece. Without arguments it
prints a line for each part that was run, with the tests that failed in it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

KEPT: Final = Path(".cache/parts")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s\[]+(?:\[.*?\])?)(?= - |$)", re.MULTILINE)
_MOST_NAMED: Final = 12


def run(name: str, command: Sequence[str], kept: Path = KEPT) -> int:
    """Run a part; return its exit status."""
    began_seconds = time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        close_fds=False,  # by some of them make shares out how many jobs may run
    )
    print(done.stdout, end="", flush=True)
    result = "failed" if done.returncode else "passed"
    lines = [f"{name:<14} {result} in {time.monotonic() - began_seconds:.0f} s"]
    if done.returncode:
        lines += (f"    {test}" for test in dict.fromkeys(_FAILED.findall(done.stdout)))
    kept.mkdir(parents=True, exist_ok=True)
    (kept / name).write_text("\n".join(lines) + "\n")
    return done.returncode


def summary(kept: Path = KEPT) -> Iterator[str]:
    """Yield a line for each part in the order of their ends, and the tests that failed in it."""
    for part in sorted(kept.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        line, *tests = part.read_text().splitlines()
        yield line
        yield from tests[:_MOST_NAMED]
        if len(tests) > _MOST_NAMED:
            yield f"    and {len(tests) - _MOST_NAMED} more"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(run(sys.argv[1], sys.argv[2:]))
    print(*("make test:", *summary()), sep="\n")
