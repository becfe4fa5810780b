"""Many seeds through both sides, in all cores: counts, and a shrunk example of each kind of difference."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.upstream.differential.compare import Difference
from tests.upstream.differential.images import images_scenario
from tests.upstream.differential.known import KNOWN, Known
from tests.upstream.differential.oracle import OracleError
from tests.upstream.differential.scenarios import scenario
from tests.upstream.differential.shrink import shrink
from tests.upstream.differential.sides import Evictions, Images
from tests.upstream.differential.single_pods import pod_differences
from tests.upstream.differential.words import Json
from tests.upstream.differential.written import written_differences

_BATCH = 250
_QUICK_BATCH = 50  # a fault shows early
_TEXTS = 3000
_KNOWN_SEEDS = 2000  # some show once in several hundred scenarios; the search ends with the first
_KNOWN_BATCH = 50


@dataclass(slots=True, kw_only=True)
class Found:
    """What a batch came to: an example of each kind of difference, with its document, and the counts."""

    examples: dict[str, tuple[Json, str]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    coverage: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)

    def add(self, document: Json, differences: Sequence[Difference]) -> None:
        """Note a document's differences."""
        for difference in differences:
            self.kinds[difference.kind] += 1
            self.examples.setdefault(difference.kind, (document, difference.text))

    def join(self, other: Found) -> None:
        """Note what another batch came to."""
        self.examples = {**other.examples, **self.examples}
        self.kinds += other.kinds
        self.coverage += other.coverage
        self.explained += other.explained


def run(oracle: Path, seeds: range, *, jobs: int, folder: Path, is_quick: bool = False) -> int:
    """Compare the scenarios of these seeds, a quarter as many of images and pods, and every known difference.

    Returns the exit status, 1 where anything differs that is not known, or where a known difference does not
    show any more. `is_quick` stops at the first difference, and does not shrink it.
    """
    began, found = time.monotonic(), Found()
    fewer = range(seeds.start, seeds.start + max(1, len(seeds) // 4))
    size = _QUICK_BATCH if is_quick else _BATCH
    work = [
        *(partial(_pods, oracle, batch) for batch in _batches(fewer, _BATCH)),
        *(partial(_images, oracle, batch) for batch in _batches(fewer, _BATCH)),
        *(partial(_evictions, oracle, batch) for batch in _batches(seeds, size)),
        partial(_written, oracle),
    ]
    if not is_quick:
        work += [partial(_still_known, oracle, known) for known in KNOWN if not known.compared]
    for done, made in enumerate(_results(work, jobs), 1):
        found.join(made)
        _progress(found, done, len(work), began)
        if is_quick and found.kinds:
            break
    _summary(found, time.monotonic() - began)
    for kind, (document, text) in sorted(found.examples.items()):
        if not is_quick:
            _show_example(oracle, kind, document, text, folder)
    return 1 if found.kinds else 0


def _batches(seeds: range, size: int) -> Iterator[range]:
    for start in range(seeds.start, seeds.stop, size):
        yield range(start, min(start + size, seeds.stop))


def _results(work: Sequence[Callable[[], Found]], jobs: int) -> Iterator[Found]:
    """Yield what each piece of work came to, as soon as it is known."""
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        pending: list[Future[Found]] = [pool.submit(each) for each in work]
        try:
            for future in as_completed(pending):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _evictions(oracle: Path, seeds: range) -> Found:
    runner = Evictions(oracle=oracle)
    documents = [scenario(seed) for seed in seeds]
    found = Found()
    for document, differences in zip(documents, runner.differences(documents), strict=True):
        found.add(document, differences)
    found.coverage, found.explained = runner.coverage, runner.explained
    return found


def _images(oracle: Path, seeds: range) -> Found:
    runner = Images(oracle=oracle)
    documents = [images_scenario(seed) for seed in seeds]
    found = Found()
    for document, differences in zip(documents, runner.differences(documents), strict=True):
        found.add(document, differences)
    found.coverage = runner.coverage
    return found


def _pods(oracle: Path, seeds: range) -> Found:
    found = Found(coverage=Counter({"single pods": len(seeds)}))
    for pod, differences in pod_differences(oracle, seeds):
        found.add(pod, differences)
    return found


def _written(oracle: Path) -> Found:
    count, differences = written_differences(oracle, _TEXTS)
    found = Found(coverage=Counter({"values as written": count}))
    found.add({}, differences)
    return found


def _still_known(oracle: Path, known: Known) -> Found:
    """Return a difference where a known one does not show, or shows otherwise than the list says."""
    runner = Evictions(oracle=oracle, known=[each for each in KNOWN if each.name != known.name])
    areas = frozenset() if known.area is None else frozenset({known.area})
    shown: list[tuple[Json, Difference]] = []
    for start in range(0, _KNOWN_SEEDS, _KNOWN_BATCH):
        documents = [scenario(seed, areas) for seed in range(start, start + _KNOWN_BATCH)]
        made = zip(documents, runner.differences(documents), strict=True)
        shown += [(document, each) for document, differences in made for each in differences]
        if shown:
            break
    found = Found(explained=Counter({known.name: len(shown)}))
    if not shown:
        text = f"no difference in {_KNOWN_SEEDS} scenarios without it: take it out of known.py"
        found.add({}, [Difference(step=0, kind=f"known:{known.name}", text=text)])
    for document, difference in shown:
        if not difference.kind.startswith(known.kinds):
            text = f"shows as {difference.kind}: {difference.text}"
            found.add(document, [Difference(step=0, kind=f"known:{known.name}", text=text)])
    return found


def _progress(found: Found, done: int, of: int, began: float) -> None:
    seconds = time.monotonic() - began
    scenarios, steps = found.coverage["scenarios"], found.coverage["steps"]
    print(
        f"upstream: {done} of {of} batches, {scenarios} scenarios, {steps} steps, "
        f"{sum(found.kinds.values())} differences, {seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _summary(found: Found, seconds: float) -> None:
    counts = found.coverage
    print(f"{counts['scenarios']} scenarios of {counts['steps']} steps in {seconds:.0f} s:")
    for name, count in sorted(counts.items()):
        print(f"  {count:>8} {name}")
    print("known differences, of which each has shown:")
    for name, count in sorted(found.explained.items()):
        print(f"  {count:>8} {name}")
    print(f"other differences: {sum(found.kinds.values())}")
    for kind, count in found.kinds.most_common():
        print(f"  {count:>8} {kind}")


def _show_example(oracle: Path, kind: str, document: Json, text: str, folder: Path) -> None:
    """Print a difference's smallest scenario, and put it into a file."""
    if document.get("kind") == "Scenario" and not kind.startswith("known:"):
        runner: Evictions | Images = Images(oracle=oracle) if kind == "images" else Evictions(oracle=oracle)

        def differing(documents: Sequence[Json]) -> list[bool]:
            try:
                return [any(each.kind == kind for each in found) for found in runner.differences(documents)]
            except OracleError:
                return [False] * len(documents)

        document = shrink(document, differing)
        text = next((each.text for each in runner.differences([document])[0] if each.kind == kind), text)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind.replace(':', '-').replace(' ', '-')}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"\n--- {kind}: {text}\n{path}\n{json.dumps(document)}", flush=True)


def cores() -> int:
    """Return how many cores there are for this."""
    return len(os.sched_getaffinity(0))
