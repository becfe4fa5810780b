"""What the soak counts, whether that is good enough, and how it is shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Final

from tests.soak.episode import Outcome
from tests.soak.falls import End, Need
from tests.soak.guarded import Measured
from tests.soak.slope import Slope, slope

# How much the least of the last quarter may lie above the first one's, over the longest life of one daemon.
# A reload, after which it is measured, has a few workers, which stay for 10 s.
TOLERANCE: Final = {"descriptors": 2.0, "threads": 3.0, "rss_kib": 1024.0}
_MEMORY: Final = "rss_kib"
# The start: imports, caches that fill, the first journal file.
_WARM_UP_SECONDS: Final = 60.0
# What fills with kills: histories of 256, and the interpreter's table of names, half a mebibyte at once.
# Among 220 pods a guard grew by 2.6 MiB in 1,100 kills, and by 0.3 MiB in the 4,700 after them. Of a life
# with few kills half goes by for that, and its memory may grow by as much less.
_WARM_UP_KILLS: Final = 1200
_BYSTANDER: Final = "killed a bystander"
# Of less nothing can be said.
_LONG_ENOUGH_SECONDS: Final = 60.0


@dataclass(slots=True, kw_only=True)
class Figures:
    """What was counted so far."""

    crossings: int = 0
    kills: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    unhelpful: int = 0
    ambiguous: int = 0
    unseen: int = 0
    partly_killed: int = 0
    node_oom_kills: int = 0
    away_oom_kills: int = 0
    unexplained_deaths: int = 0
    stillborn: int = 0
    episodes: int = 0
    quiet: int = 0
    leaks: int = 0
    disturbances: Counter[str] = field(default_factory=Counter)
    to_kill_ms: list[float] = field(default_factory=list)
    fast_ms: list[float] = field(default_factory=list)
    past_mib: list[float] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    served_ns: list[int] = field(default_factory=list)
    warrants: dict[int, Mapping[str, int]] = field(default_factory=dict)
    not_served: Counter[str] = field(default_factory=Counter)
    ended_by: str | None = None
    falls: Counter[End] = field(default_factory=Counter)
    needs: dict[str, Counter[Need]] = field(default_factory=dict)
    could_save: Counter[bool] = field(default_factory=Counter)
    evicted_falls: Counter[bool] = field(default_factory=Counter)  # whether in vain
    in_time: list[dict[str, Any]] = field(default_factory=list)

    def add_bystanders(self, killed: int) -> None:
        """Count pods that hold nearly nothing and were killed before others."""
        if killed:
            self.wrong[_BYSTANDER] += killed

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        verdict = outcome.verdict
        self.episodes += 1
        self.quiet += not verdict.crossings
        self.leaks += outcome.is_leak
        self.crossings += verdict.crossings
        self.kills += sum(not one.kill.is_kernels for one in verdict.kills)
        self.missed += len(verdict.missed)
        self.wrong.update(one.wrong for one in verdict.kills if one.wrong is not None)
        self.unhelpful += sum(one.helped is False for one in verdict.kills)
        self.ambiguous += sum(len(one.acceptable) > 1 for one in verdict.kills)
        self.unseen += sum(one.is_unseen for one in verdict.kills)
        self.partly_killed += len(outcome.partly_killed)
        self.disturbances.update(str(what) for what in outcome.disturbed)
        self.to_kill_ms += outcome.to_kill_ms
        self.fast_ms += outcome.to_kill_ms if outcome.is_fast else []
        self.past_mib += outcome.past_mib
        self._add_in_time(outcome)

    def _add_in_time(self, outcome: Outcome) -> None:
        fall = outcome.fall
        end = "cross at once" if fall is None else str(fall.end)
        in_time = [one for one in outcome.verdict.kills if one.need is not None]
        counted = self.needs.setdefault(end, Counter())
        counted.update(one.need for one in in_time if one.need is not None)
        if fall is not None:
            self.falls[fall.end] += 1
            self.in_time += [
                {
                    "end": fall.end,
                    "need": one.need,
                    "share_of_the_way": round(fall.share, 3),
                    "way_seconds": round(fall.way_seconds, 3),
                    "save_seconds": round(outcome.save_seconds.get(one.kill.instance, 0.0), 3),
                    "is_its_own": outcome.episode.lives[one.kill.instance].name == fall.name,
                }
                for one in in_time
            ]
        if in_time:
            self.evicted_falls[any(one.need is Need.IN_VAIN for one in in_time)] += 1
        if fall is not None and fall.end is End.CROSSES and outcome.verdict.kills:
            first = outcome.verdict.kills[0].kill.instance
            needed = outcome.save_seconds.get(first, 0.0)
            if 0 < needed <= fall.way_seconds / 2:
                self.could_save[first in outcome.saved] += 1

    @property
    def wrong_victims(self) -> int:
        """Return how many were killed who should not have been."""
        return sum(self.wrong.values())

    def slopes(self) -> Mapping[str, Slope]:
        """Return how what the daemon takes moved over the longest life of one of its processes.

        Empty where none lived long enough to say so.
        """
        longest = _longest_life(self.measured)
        if not longest or longest[-1].at_seconds - longest[0].at_seconds < _LONG_ENOUGH_SECONDS:
            return {}
        judged = dict.fromkeys(TOLERANCE, longest) | {_MEMORY: _warm(longest)}
        return {
            name: slope([(one.at_seconds, getattr(one, name)) for one in life])
            for name, life in judged.items()
        }

    def tolerance(self, name: str) -> float:
        """Return how much may be added: of memory as much for each kill in whatever part is judged."""
        life = _longest_life(self.measured)
        kills = life[-1].kills - life[0].kills if life else 0
        if name != _MEMORY or not kills:
            return TOLERANCE[name]
        return TOLERANCE[name] * (life[-1].kills - _warm(life)[0].kills) / kills

    def is_good(self) -> bool:
        """Tell whether the goal is met.

        OOM kills of the kernel are counted and shown, and no part of it: a hog of several GiB/s can take what
        is left at a threshold before any process has a CPU to act.
        """
        return not (
            self.wrong_victims
            or self.missed
            or self.unexplained_deaths
            or self.partly_killed
            or self.left_behind
            or not self.crossings
            or self.ended_by is not None
            or any(not one.is_flat(self.tolerance(name)) for name, one in self.slopes().items())
        )

    def document(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {
            "crossings": self.crossings,
            "kills": self.kills,
            "wrong_victims": self.wrong_victims,
            "wrong": dict(self.wrong),
            "missed_crossings": self.missed,
            "kernel_oom_kills": self.node_oom_kills,
            "kernel_oom_kills_while_away": self.away_oom_kills,
            "kills_that_did_not_help": self.unhelpful,
            "partly_killed": self.partly_killed,
            "more_than_one_acceptable": self.ambiguous,
            "kills_not_seen_closely_enough": self.unseen,
            "killed_before_they_stood": self.stillborn,
            "unexplained_daemon_deaths": self.unexplained_deaths,
            "episodes": self.episodes,
            "episodes_without_crossing": self.quiet,
            "leaks_that_no_eviction_ends": self.leaks,
            "disturbances": dict(self.disturbances),
            "crossing_to_kill_ms": {
                "clock": "from the instant before the chunk that crossed was touched to the death of the "
                "victim's canary; without crossings at which the soak stopped, restarted or reconfigured "
                "the daemon",
                "count": len(self.to_kill_ms),
                **{name: percentile(self.to_kill_ms, share) for name, share in _PERCENTILES.items()},
            },
            "fast_crossing_to_kill_ms": {
                "count": len(self.fast_ms),
                **{name: percentile(self.fast_ms, share) for name, share in _PERCENTILES.items()},
            },
            "past_the_threshold_mib": {
                name: percentile(self.past_mib, share) for name, share in _PERCENTILES.items()
            },
            "slopes": {
                name: {
                    "per_hour": round(one.per_hour, 2),
                    "first_quarter": one.first_quarter,
                    "last_quarter": one.last_quarter,
                    "tolerance": round(self.tolerance(name), 2),
                    "is_flat": one.is_flat(self.tolerance(name)),
                }
                for name, one in self.slopes().items()
            },
            "measured": [asdict(one) for one in self.measured],
            "killed_under_a_warrant": {
                "count": len(self.served_ns),
                "crossing_to_signal_us": {
                    name: None if (found := percentile(self.served_ns, share)) is None else found / 1000
                    for name, share in _PERCENTILES.items()
                },
            },
            "warrants": dict(sum(map(Counter, self.warrants.values()), Counter[str]())),
            "killed_by_the_daemon_because": dict(self.not_served),
            "in_time": self._in_time(),
            "daemon_processes": len({one.generation for one in self.measured}),
            "left_behind": self.left_behind,
            "ended_by": self.ended_by,
            "is_good": self.is_good(),
        }

    def table(self) -> str:
        """Return what matters as lines of a table in Markdown."""
        document = self.document()
        latency = document["crossing_to_kill_ms"]
        fast = document["fast_crossing_to_kill_ms"]
        past = document["past_the_threshold_mib"]
        rows = [
            ("crossings", document["crossings"]),
            ("crossings by what may not be evicted", document["leaks_that_no_eviction_ends"]),
            ("kills", document["kills"]),
            ("wrong victims", document["wrong_victims"]),
            ("missed crossings", document["missed_crossings"]),
            ("kernel OOM kills", document["kernel_oom_kills"]),
            ("the same while the daemon was stopped or gone", document["kernel_oom_kills_while_away"]),
            ("kills that did not help", document["kills_that_did_not_help"]),
            ("kills with more than one right victim", document["more_than_one_acceptable"]),
            ("kills that the observer did not see closely enough", document["kills_not_seen_closely_enough"]),
            ("pods killed in part", document["partly_killed"]),
            ("unexplained deaths of the daemon", document["unexplained_daemon_deaths"]),
            (
                "crossing to kill, p50 / p99 / p99.9 / max",
                " / ".join(_text(latency[name]) for name in _PERCENTILES) + " ms",
            ),
            (
                "the same, of those that took 200 MiB/s or more",
                " / ".join(_text(fast[name]) for name in _PERCENTILES) + " ms",
            ),
            (
                "past the threshold at the kill, p50 / p99 / p99.9 / max",
                " / ".join(_text(past[name]) for name in _PERCENTILES) + " MiB",
            ),
            *(
                (
                    f"{_NAMES[name]}: first and last quarter, slope an hour",
                    f"{one['first_quarter']:g}, {one['last_quarter']:g}, {one['per_hour']:+.1f}",
                )
                for name, one in document["slopes"].items()
            ),
            ("cgroups and eBPF pins left behind", len(document["left_behind"])),
            *self._of_warrants(document),
            *self._of_evictions_in_time(document["in_time"]),
            *((f"with {what}", count) for what, count in sorted(document["disturbances"].items())),
        ]
        return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])

    def _in_time(self) -> dict[str, Any]:
        return {
            "falls": {end: self.falls[end] for end in End},
            "evictions": {end: {need: counted[need] for need in Need} for end, counted in self.needs.items()},
            "with_evictions": self.evicted_falls.total(),
            "with_evictions_in_vain": self.evicted_falls[True],
            "twice_the_time_to_save": {
                "victims": self.could_save.total(),
                "saved": self.could_save[True],
            },
            "each": self.in_time,
        }

    def _of_evictions_in_time(self, document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        if not self.falls:
            return
        every = sum(self.needs.values(), Counter[Need]())
        for end, counted in sorted(self.needs.items()):
            falls = f" ({self.falls[End(end)]})" if end in set(End) else ""
            yield f"evicted in time of falls that {end}{falls}", _needs(counted)
        shares = (_share(every[Need.IN_VAIN], whole) for whole in (every.total(), self.kills))
        yield "all evicted in time", f"{_needs(every)}: {' in vain, of all kills '.join(shares)}"
        vain = document["with_evictions_in_vain"]
        yield (
            "falls and crossings with such an eviction, with one in vain",
            f"{document['with_evictions']}, {vain}",
        )
        saving = document["twice_the_time_to_save"]
        yield "saved, of first victims with twice the time", f"{saving['saved']} of {saving['victims']}"

    def _of_warrants(self, document: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
        if not document["warrants"]:
            return []
        served = document["killed_under_a_warrant"]
        to_signal = " / ".join(_text(served["crossing_to_signal_us"][name]) for name in _PERCENTILES)
        ends = ", ".join(f"{name} {count}" for name, count in sorted(document["warrants"].items()))
        return [
            ("killed by the kernel under a warrant", served["count"]),
            ("crossing to signal of those, p50 / p99 / p99.9 / max", f"{to_signal} us"),
            ("what became of warrants", ends),
            *(
                (f"killed by the daemon: {why}", count)
                for why, count in Counter(document["killed_by_the_daemon_because"]).most_common()
            ),
        ]


_NAMES: Final = {"descriptors": "descriptors", "threads": "threads", _MEMORY: "resident memory, KiB"}
_PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999, "max": 1.0}


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that this share of the values does not exceed; None of none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _needs(counted: Mapping[Need, int]) -> str:
    return ", ".join(f"{counted[need]} {need}" for need in Need)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _longest_life(measured: Sequence[Measured]) -> list[Measured]:
    """Return what was measured of the process that lived longest, but for its start."""
    lives = [list(one) for _, one in groupby(measured, key=lambda found: found.generation)]
    longest = max(lives, key=lambda life: life[-1].at_seconds - life[0].at_seconds, default=[])
    return [one for one in longest if one.at_seconds - longest[0].at_seconds >= _WARM_UP_SECONDS]


def _warm(life: Sequence[Measured]) -> list[Measured]:
    """Return what was measured of a life since so many kills that histories are full."""
    first, last = life[0].kills, life[-1].kills
    warm = min(first + _WARM_UP_KILLS, (first + last) // 2)
    return [one for one in life if one.kills >= warm]
