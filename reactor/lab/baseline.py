"""A run of the benchmark against a stored one: what has moved.

Times are compared as multiples of the C floor's in the same run, so that a slower machine, or a busier one,
is not taken for a slower daemon; memory and CPU shares as they are. Each kind of machine (its cgroup version
and number of CPUs) has its own baseline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reactor.errors import RefusedError

FLOOR: Final = "floor"
BASELINE: Final = Path("docs/figures/baseline.json")
_BY_RATE: Final = ("crossing_to_wake_ms", "crossing_to_kill_ms", "crossing_to_freed_ms")
# Of these the floor has none of its own; its kill at full speed says how fast the machine was.
_OF_THE_DAEMON: Final = ("pass_ms",)
_AS_THEY_ARE: Final = ("rss_mib", "idle_cpu_percent", "fork_storm_cpu_percent")
# What counts as moved, in percent, where the machine is quiet; a p99 of 30 runs is the worst of them.
_TOLERANCE_PERCENT: Final = {"p50": 25.0, "p99": 100.0}
_TOLERANCE_AS_THEY_ARE_PERCENT: Final = 10.0
_LEAST_SHARE_PERCENT: Final = 0.1  # of a CPU: below it a share at rest is the clock's own noise
_NOISY_PERCENT: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One figure that is not what it was."""

    name: str
    before: float
    now: float

    @property
    def percent(self) -> float:
        """Return by how much it has grown."""
        return (self.now / self.before - 1) * 100

    def __str__(self) -> str:
        """Return it as one line; every figure here is better where it is smaller."""
        verdict = "worse" if self.now > self.before else "better"
        return f"{self.name}: {self.before:.3g} -> {self.now:.3g}, {self.percent:+.0f} %, {verdict}"


def comparable(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a run by name, times in multiples of the floor's: `pass_ms/110/p50`.

    Raises KeyError where the run has no floor.
    """
    floor = found[FLOOR]
    figures: dict[str, float] = {}
    for name in _BY_RATE:
        for rate, summed in found[name].items():
            figures |= _ratios(f"{name}/{rate}", summed, floor[name][rate])
    machine = floor["crossing_to_kill_ms"]["max"]["p50"]
    for name in _OF_THE_DAEMON:
        for pods, summed in found[name].items():
            figures |= _ratios(f"{name}/{pods}", summed, {"p50": machine, "p99": machine})
    return figures | {name: float(found[name]) for name in _AS_THEY_ARE}


def moved(before: Mapping[str, float], now: Mapping[str, float], spread_percent: float) -> Iterator[Moved]:
    """Yield the figures that moved by more than they do by themselves; those that only one run has, never.

    `spread_percent` is by how much the floor's own medians differed in the present run.
    """
    for name in before.keys() & now.keys():
        found = Moved(name=name, before=before[name], now=now[name])
        if name in _AS_THEY_ARE:
            is_noise = max(found.before, found.now) < _LEAST_SHARE_PERCENT
            tolerance_percent = _TOLERANCE_AS_THEY_ARE_PERCENT
        else:
            is_noise = False
            tolerance_percent = max(_TOLERANCE_PERCENT[name.rpartition("/")[2]], 2 * spread_percent)
        if found.before > 0 and not is_noise and not _is_within(found, tolerance_percent):
            yield found


def report(found: Mapping[str, Any], path: Path) -> list[str]:
    """Return what a run says against the baseline in the file, as lines. Raises RefusedError."""
    stored = _stored(path)
    kind = kind_of(found)
    noise = (
        f"noise: the floor's medians differed by {found[FLOOR]['spread_percent']:.0f} % within the run"
        f"{'; that is much: the run shows only large differences' if is_noisy(found) else ''}"
    )
    if kind not in stored:
        known = ", ".join(sorted(stored)) or "none"
        return [
            f"no baseline for {kind} in {path} (there: {known}); --update-baseline makes this run it",
            noise,
        ]
    before = stored[kind]
    now = comparable(found)
    lines = [
        str(one)
        for one in sorted(
            moved(before["figures"], now, found[FLOOR]["spread_percent"]), key=lambda one: -one.percent
        )
    ]
    still = "nothing moved" if not lines else f"{len(now) - len(lines)} others did not move"
    about = f"against {path}, {before['about']['date']}, times as multiples of the C floor's in the same run:"
    return [about, *lines, still, noise]


def update(found: Mapping[str, Any], path: Path) -> None:
    """Make a run the baseline for its kind of machine. Raises RefusedError, OSError."""
    stored = _stored(path)
    entry = {
        "about": found["about"],
        "floor_ms": {name: found[FLOOR][name] for name in _BY_RATE},
        "spread_percent": found[FLOOR]["spread_percent"],
        "figures": {name: round(value, 3) for name, value in comparable(found).items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**stored, kind_of(found): entry}, indent=2) + "\n", encoding="utf-8")


def kind_of(found: Mapping[str, Any]) -> str:
    """Return the kind of machine that a run was made on: only runs of one kind compare."""
    about = found["about"]
    return f"cgroup {about['cgroup']}, {about['cpus']} CPUs"


def is_noisy(found: Mapping[str, Any]) -> bool:
    """Return whether the machine was too busy with other things for small differences to mean anything."""
    return bool(found[FLOOR]["spread_percent"] > _NOISY_PERCENT)


def _ratios(name: str, summed: Mapping[str, float], floor: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}/{rank}": summed[rank] / floor[rank] for rank in _TOLERANCE_PERCENT if floor[rank] > 0}


def _is_within(found: Moved, tolerance_percent: float) -> bool:
    factor = 1 + tolerance_percent / 100
    return found.before / factor <= found.now <= found.before * factor


def _stored(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: {error}; accepted: what --update-baseline wrote") from error
    if not isinstance(document, dict):
        raise RefusedError(f"{path}: got {type(document).__name__}; accepted: what --update-baseline wrote")
    return document
