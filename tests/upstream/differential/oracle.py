"""Asks the programs that build-oracle.sh made of upstream's own packages: JSON lines in, JSON lines out."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.upstream.differential.words import Json

EVICTION = "eviction.test"
IMAGES = "images.test"
_LONGEST_SECONDS = 1800


class OracleError(Exception):
    """The oracle ended without its answers, or is not there."""


def ask(oracle: Path, program: str, lines: Iterable[Json]) -> list[Json]:
    """Return the answers of one of the oracle's programs, one for each line and in their order.

    JSON has no infinity and no NaN: where an answer would hold one, its line is missing. Raises OracleError.
    """
    with tempfile.TemporaryDirectory(prefix="reactor-upstream-") as folder:
        asked, answered = Path(folder, "asked"), Path(folder, "answered")
        asked.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        command = [str(oracle.resolve() / program), "-test.run", "^TestDifferential$"]
        try:
            run = subprocess.run(
                [*command, "-test.timeout", f"{_LONGEST_SECONDS}s"],
                env={**os.environ, "DIFF_IN": str(asked), "DIFF_OUT": str(answered)},
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise OracleError(f"{error}; tests/upstream/build-oracle.sh builds it") from error
        if run.returncode:
            raise OracleError(
                f"{command[0]} ended with {run.returncode}: {run.stdout[-2000:]}{run.stderr[-2000:]}"
            )
        return [json.loads(line) for line in answered.read_text(encoding="utf-8").splitlines()]
