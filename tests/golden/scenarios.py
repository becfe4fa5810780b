"""Scenarios through the simulator: the fixtures, and seeded ones as upstream is compared by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from reactor.config.documents import load_document
from reactor.errors import ConfigError
from reactor.simulate.replay import line_of, passes
from reactor.simulate.scenario import Scenario, scenario_from_text
from reactor.simulate.summary import Summary
from tests.golden.decisions import decision_document
from tests.golden.files import line
from tests.upstream.differential.scenarios import scenario

SEEDS: Final = 150
_FIXTURES: Final = Path(__file__).parents[1] / "fixtures" / "scenarios"


def lines() -> list[str]:
    """Return a line for each step of all scenarios; of one that is refused why. Made by a new process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        return process.submit(lines_here).result()


def lines_here() -> list[str]:
    """Return the same, made by this process."""
    return [line({"of": name, **one}) for name, text in _texts() for one in _steps(text, name)]


def _texts() -> Iterator[tuple[str, str]]:
    for path in sorted(_FIXTURES.glob("*.yaml")):
        yield path.stem, json.dumps(load_document(path.read_text(encoding="utf-8"), path.name))
    for seed in range(SEEDS):
        yield f"seed {seed}", json.dumps(scenario(seed))


def _steps(text: str, name: str) -> Iterator[dict[str, Any]]:
    try:
        read = scenario_from_text(text, name)
    except ConfigError as error:
        yield {"refused": str(error).splitlines()}
        return
    yield from _replayed(read)


def _replayed(read: Scenario) -> Iterator[dict[str, Any]]:
    for made in passes(read, read.settings, Summary.snapshot):
        shown = line_of(made)
        yield {
            **{
                key: shown[key]
                for key in ("admit", "imagesRemoved", "memcgThresholdsBytes", "rules")
                if shown.get(key)
            },
            **decision_document(made.decision),
            **({"byRules": list(map(decision_document, made.by_rules))} if made.by_rules else {}),
        }
