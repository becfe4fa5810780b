"""Many documents' answers, the project's and the oracle's, and how they differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reactor.errors import ConfigError
from reactor.policy.messages import eviction_message
from reactor.simulate.replay import line_of, passes
from reactor.simulate.scenario import scenario_from_text
from tests.upstream.differential.compare import Difference, compare, coverage
from tests.upstream.differential.compare_images import compare_images
from tests.upstream.differential.known import KNOWN, Case, Known, recognised, taught
from tests.upstream.differential.oracle import EVICTION, IMAGES, ask
from tests.upstream.differential.words import Json

# How often a step with several thresholds due is run: upstream's choice is that of a Go map. One that did not
# come up in the first runs is no difference.
_RUNS = 30
_RUNS_BEFORE_A_DIFFERENCE = 1000


def project(document: Json) -> list[Json]:
    """Return what `reactor simulate --output json` prints, and evictions' annotations. Raises ConfigError."""
    scenario = scenario_from_text(json.dumps(document), "scenario")
    lines = []
    for made in passes(scenario, scenario.settings, lambda summary: summary.snapshot()):
        line = line_of(made)
        for told, eviction in zip(line["evicted"], made.decision.evictions, strict=True):
            told["annotations"] = dict(eviction_message(eviction)[1])
        lines.append(line)
    return lines


@dataclass(slots=True, kw_only=True)
class Evictions:
    """Compares eviction. `known` is what upstream is taught, and by what differences may be explained."""

    oracle: Path
    known: Sequence[Known] = KNOWN
    coverage: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)

    def differences(self, documents: Sequence[Json]) -> list[list[Difference]]:
        """Return each document's differences, without those that are known; count what was compared."""
        found = self._differences(documents, _RUNS, counts=True)
        again = [index for index, each in enumerate(found) if each]
        if again:
            more = self._differences(
                [documents[index] for index in again], _RUNS_BEFORE_A_DIFFERENCE, counts=False
            )
            for index, each in zip(again, more, strict=True):
                found[index] = each
        return found

    def answers(self, document: Json) -> list[Json]:
        """Return the oracle's steps for one document."""
        answer = ask(self.oracle, EVICTION, [self._asked(document, 0, _RUNS_BEFORE_A_DIFFERENCE)])[0]
        return answer.get("steps") or [answer]

    def _asked(self, document: Json, index: int, runs: int) -> Json:
        names, amended = taught(document, self.known)
        return {"op": "scenario", "id": str(index), "doc": amended, "taught": names, "repeat": runs}

    def _differences(self, documents: Sequence[Json], runs: int, *, counts: bool) -> list[list[Difference]]:
        mine = [_or_refusal(document) for document in documents]
        asked = [self._asked(document, index, runs) for index, document in enumerate(documents)]
        found = []
        for document, lines, result in zip(documents, mine, ask(self.oracle, EVICTION, asked), strict=True):
            if isinstance(lines, ConfigError):
                refused = Difference(step=0, kind="refused here", text=str(lines))
                found.append([] if result.get("error") else [refused])
                continue
            if counts:
                self.coverage += coverage(document, lines, result)
            found.append(self._unknown(document, lines, result, counts=counts))
        return found

    def _unknown(self, document: Json, lines: list[Json], result: Json, *, counts: bool) -> list[Difference]:
        left = []
        for difference in compare(document, lines, result):
            known = recognised(Case(document=document, difference=difference), self.known)
            if known is None:
                left.append(difference)
            elif counts:
                self.explained[known.name] += 1
        return left


@dataclass(slots=True, kw_only=True)
class Images:
    """Compares image garbage collection."""

    oracle: Path
    coverage: Counter[str] = field(default_factory=Counter)

    def differences(self, documents: Sequence[Json]) -> list[list[Difference]]:
        """Return each document's differences; count what was compared."""
        mine = [project(document) for document in documents]
        found = []
        for document, lines, result in zip(documents, mine, self._ask(documents, mine), strict=True):
            self.coverage["image scenarios"] += 1
            self.coverage["image steps"] += len(lines)
            self.coverage["images removed"] += sum(len(line["imagesRemoved"]) for line in lines)
            self.coverage["image reclaims"] += sum("images" in line["reclaimed"] for line in lines)
            found.append(compare_images(document, lines, result))
        return found

    def answers(self, document: Json) -> list[Json]:
        """Return the oracle's steps for one document: the images that go in each."""
        answer = self._ask([document], [project(document)])[0]
        return [{"imagesRemoved": removed} for removed in answer["steps"]]

    def _ask(self, documents: Sequence[Json], mine: Sequence[Sequence[Json]]) -> list[Json]:
        asked = [
            {"id": str(index), "doc": document, "reclaims": ["images" in line["reclaimed"] for line in lines]}
            for index, (document, lines) in enumerate(zip(documents, mine, strict=True))
        ]
        return ask(self.oracle, IMAGES, asked)


def _or_refusal(document: Json) -> list[Json] | ConfigError:
    try:
        return project(document)
    except ConfigError as error:
        return error
