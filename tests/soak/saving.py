"""`python -m tests.soak.saving`: who has saved its state, with soft evictions in time and upstream's way.

A pod on a virtual node takes memory at a rate (bench/course.c). It is given the time from the soft threshold
to the hard one, and needs half of that, or less, to save its state at SIGTERM. Several pods of one name come
one after the other and need about as long: the guard knows how long from the second on. Other pods hold
memory within their requests. Of all pods

    half             cross the hard threshold
    a tenth each     grow in a burst or in a sawtooth to a quarter of the way, and come back
    a tenth each     stop at a quarter of the way, half way, or anywhere; every second one of them keeps its
                     memory, the others give it back at some time before the grace period is over

Each plan with which a pod was evicted in time is had again with upstream's way, as the control. There the pod
is killed at the hard threshold (the eviction was needed), or evicted once the grace period is over (it came
sooner), or left alone (it was in vain). What the guard itself says of it is kept beside.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.virtual_node import VirtualNode, ended_by_signals
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold

_MIB: Final = 1 << 20
_NODE_MIB: Final = 2560
_HARD_MIB: Final = 256
_CROSSING_MIB: Final = _NODE_MIB - _HARD_MIB
_HELD_MIB: Final = (64, 128)
# From the soft to the hard threshold, by rates, all in MiB: 24 s at the slowest, 1.5 s at the fastest.
_WAYS: Final = {1: 24, 4: 48, 16: 128, 64: 384, 256: 1536, 1024: 1536}
_RATES: Final = tuple(_WAYS)
_GRACE: Final = 1.5  # times the way: pods cross before its end, and what comes sooner can be told from it
_REST_SECONDS: Final = 0.7
_HOLD_SECONDS: Final = 5.0
_BACK: Final = 0.9  # of the grace period: when memory is given back at the latest
_OVER_SECONDS: Final = 120.0
_SETTLED_SECONDS: Final = 0.5


class Kind(StrEnum):
    """What a pod does past the soft threshold; but for the first, none gets to the hard one."""

    CROSSES = "crosses"
    BURST = "a burst of 1 to 2 s to a quarter of the way, and back"
    SAWTOOTH = "a sawtooth to a quarter of the way"
    QUARTER = "stops at a quarter of the way"
    HALF = "stops half way"
    ANYWHERE = "stops at a random point"


_IDLE: Final = (Kind.BURST, Kind.SAWTOOTH, Kind.QUARTER, Kind.HALF, Kind.ANYWHERE)
_STOPS: Final = (Kind.QUARTER, Kind.HALF, Kind.ANYWHERE)
_SHARES: Final = {Kind.BURST: 0.25, Kind.SAWTOOTH: 0.25, Kind.QUARTER: 0.25, Kind.HALF: 0.5}
_SPARE: Final = 1.25  # of the time that is needed: with so much left, that a fall will stop can be waited for
_SOONER: Final = "sooner"
_IN_VAIN: Final = "in vain"
_JUDGED: Final = ("needed", "presumed", "sooner", "not_needed")


class Verdict(StrEnum):
    """What an eviction in time was, by what upstream's way does with the same plan."""

    NEEDED = "needed"
    SOONER = _SOONER
    IN_VAIN = _IN_VAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One episode. After SIGTERM the pod needs `save_ms` of `left_ms` between the thresholds.

    It goes `share` of the way to the hard one, and keeps its memory or not. `segments` are for course.c, with
    the use of the whole node.
    """

    kind: Kind
    rate_mib: int
    save_ms: int
    left_ms: int
    share: float
    keeps: bool
    segments: Sequence[tuple[float, float]]

    @property
    def stops_early(self) -> bool:
        """Whether a fall stops while there is plenty of time for an eviction."""
        return (1 - self.share) * self.left_ms > _SPARE * self.save_ms

    @property
    def has_to_be_asked(self) -> bool:
        """Whether a guard asks that knows rate and need exactly, but not that a fall will stop."""
        return self.kind is Kind.CROSSES or (
            self.kind in _STOPS and (1 - self.share) * self.left_ms <= self.save_ms
        )

    @property
    def name(self) -> str:
        keeps = "keeps its memory" if self.keeps else "gives it back"
        return f"{self.kind}, {keeps}" if self.kind in _STOPS else self.kind


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of it: `asked` is whether the pod had SIGTERM, `killed` whether it was killed.

    `is_known`: another of its name has ended before. `verdict` is of an eviction in time.
    """

    mode: str
    plan: Plan
    is_known: bool
    asked: bool
    saved: bool
    killed: bool
    took_ms: int | None
    others_died: int
    oom_kills: int
    verdict: Verdict | None = None


@dataclass(slots=True, kw_only=True)
class Counted:
    """What the guard itself has judged, over all daemons."""

    judged: Counter[str] = field(default_factory=Counter)


def distance_mib(rate_mib: int) -> int:
    return _WAYS[rate_mib]


def grace_seconds(rate_mib: int) -> float:
    return max(10.0, _GRACE * distance_mib(rate_mib) / rate_mib)


def plan(kind: Kind, rate_mib: int, drawn: random.Random, need: float) -> Plan:
    """Return an episode of a pod that needs about `need` of the way."""
    way = distance_mib(rate_mib)
    seconds = way / rate_mib
    soft = _CROSSING_MIB - way
    before = soft - max(4.0, way / 25)
    begin = [(0.0, before), (_REST_SECONDS, before)]
    share = 1.0 if kind is Kind.CROSSES else _SHARES.get(kind) or drawn.uniform(0.1, 0.95)
    keeps = kind is Kind.CROSSES or (kind in _STOPS and drawn.random() < 0.5)
    top = soft + way * share
    rise_seconds = (top - before) / rate_mib
    most_seconds = _BACK * grace_seconds(rate_mib) - seconds * share
    if kind is Kind.CROSSES:
        segments = [*begin, (rise_seconds + 64 / rate_mib, top + 64)]
    elif kind is Kind.BURST:
        segments = [*begin, (drawn.uniform(1.0, 2.0), top), (0.2, before), (4.0, before)]
    elif kind is Kind.SAWTOOTH:
        segments = [*begin, *[(rise_seconds, top), (0.05, before)] * 5]
    elif keeps:
        segments = [*begin, (rise_seconds, top), (min(_HOLD_SECONDS, most_seconds), top)]
    else:
        hold_seconds = drawn.uniform(0, most_seconds)
        segments = [*begin, (rise_seconds, top), (hold_seconds, top), (0.2, before), (1.0, before)]
    return Plan(
        kind=kind,
        rate_mib=rate_mib,
        save_ms=int(1000 * seconds * min(0.5, need * drawn.uniform(0.9, 1.1))),
        left_ms=int(1000 * seconds),
        share=share,
        keeps=keeps,
        segments=segments,
    )


def verdict(control: Result) -> Verdict:
    """Return what an eviction in time was, from the same plan with upstream's way."""
    if control.asked:
        return Verdict.SOONER
    return Verdict.NEEDED if control.killed else Verdict.IN_VAIN


def least_in_vain(plans: Sequence[Plan]) -> dict[str, int]:
    """Return how many evictions there are at the least if all that cross are to save, and in vain."""
    asked = [one for one in plans if one.has_to_be_asked]
    return {"evicted": len(asked), _IN_VAIN: sum(not one.keeps for one in asked)}


def configure(daemon: RunningDaemon, mode: str, rate_mib: int) -> None:
    soft = _HARD_MIB + distance_mib(rate_mib)
    daemon.configure(
        {
            "evictionHard": {"memory.available": f"{_HARD_MIB}Mi"},
            "evictionSoft": {"memory.available": f"{soft:g}Mi"},
            "evictionSoftGracePeriod": {"memory.available": f"{grace_seconds(rate_mib):g}s"},
            "evictionMaxPodGracePeriod": 20,
        },
        # One course comes right after the other.
        {"softEviction": mode, "evictionsPerMinute": 1_000_000, "unhelpfulEvictionPause": "0s"},
    )


def run(
    node: VirtualNode,
    directory: Path,
    mode: str,
    planned: Plan,
    base_mib: float,
    others: Sequence[subprocess.Popen[bytes]],
) -> Result:
    """Have an episode happen on a node that uses so much without the pod, and wait until it is decided.

    Upstream's way evicts each pod that keeps its memory, in the end.
    """
    name, record = "hog", directory / "record"
    record.unlink(missing_ok=True)
    pod = node.add_pod(name)
    segments = [f"{seconds:.6f}:{mib - base_mib:.3f}" for seconds, mib in planned.segments]
    tool = str(compiled_tool("course", package="bench"))
    process = node.spawn(pod, [tool, str(record), str(planned.save_ms), *segments])
    deadline = time.monotonic() + _OVER_SECONDS
    is_evicted = planned.keeps and (planned.kind is Kind.CROSSES or mode == "upstream")
    while process.poll() is None and time.monotonic() < deadline:
        if not is_evicted and "done" in _read(record):
            break
        time.sleep(0.01)
    lines = dict(line.split() for line in _read(record).splitlines())
    status = process.poll()
    killed_by_us = status is None
    oom_kills = _oom_kills(node.tree, pod)
    node.remove_pod(pod)
    process.wait()
    took = int(lines["saved"]) - int(lines["term"]) if "saved" in lines and "term" in lines else None
    return Result(
        mode=mode,
        plan=planned,
        is_known=False,
        asked="term" in lines,
        saved="saved" in lines,
        killed=not killed_by_us and status != 0,
        took_ms=None if took is None else took // 1_000_000,
        others_died=sum(one.poll() is not None for one in others),
        oom_kills=oom_kills,
    )


def _read(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text()
    return ""


def _oom_kills(tree: CgroupTree, cgroup: str) -> int:
    name = "memory.events" if tree.version is CgroupVersion.V2 else "memory.oom_control"
    fields = dict(line.split() for line in (tree.path(cgroup) / name).read_text().splitlines())
    return int(fields.get("oom_kill", 0))


def block(
    node: VirtualNode, directory: Path, mode: str, plans: Sequence[Plan], counted: Counted
) -> Iterator[Result]:
    """Run episodes of one rate with a daemon of their own."""
    others = [
        node.spawn(node.add_pod(f"other-{mib}", request_bytes=2 * mib * _MIB), hold(mib)) for mib in _HELD_MIB
    ]
    daemon = RunningDaemon(directory, node.cgroup)
    rate_mib = plans[0].rate_mib
    configure(daemon, mode, rate_mib)
    daemon.start()
    time.sleep(_SETTLED_SECONDS)
    base_mib = node.usage_bytes() / _MIB + 1
    is_known = False
    try:
        for planned in plans:
            result = run(node, directory, mode, planned, base_mib, others)
            result.is_known = is_known
            is_known |= result.saved
            yield result
            time.sleep(_SETTLED_SECONDS)
        if mode == "inTime":
            _await_judged(daemon, grace_seconds(rate_mib))
            counted.judged.update(
                {
                    key: value
                    for key, value in daemon.status()["time_left"]["in_time"].items()
                    if key in _JUDGED
                }
            )
    finally:
        daemon.stop()
        for mib in _HELD_MIB:
            node.remove_pod(f"{node.cgroup}/other-{mib}")
        for name in ("state.json", "journal.jsonl"):
            (directory / name).unlink(missing_ok=True)


def _await_judged(daemon: RunningDaemon, seconds: float) -> None:
    deadline = time.monotonic() + seconds + 5
    while time.monotonic() < deadline:
        with suppress(ReactorError):
            if not daemon.status()["time_left"]["in_time"]["being_judged"]:
                return
        time.sleep(0.5)


def summary(results: Sequence[Result], counted: Counted) -> dict[str, Any]:
    """Return the figures."""
    in_time = [one for one in results if one.mode == "inTime"]
    groups = {
        "upstream": [one for one in results if one.mode == "upstream"],
        "not known": [one for one in in_time if not one.is_known],
        "known": [one for one in in_time if one.is_known],
    }
    in_vain = [one for one in in_time if one.verdict is Verdict.IN_VAIN]
    return {
        "saved_by_rate": {
            str(rate): {
                group: {"episodes": len(found), "saved": sum(one.saved for one in found)}
                for group, some in groups.items()
                for found in [
                    [one for one in some if one.plan.kind is Kind.CROSSES and one.plan.rate_mib == rate]
                ]
            }
            for rate in _RATES
        },
        "by_kind": {
            name: _verdicts([one for one in in_time if one.plan.name == name])
            for kind in Kind
            for name in sorted({one.plan.name for one in in_time if one.plan.kind is kind})
        },
        "all": _verdicts(in_time),
        "at_least": least_in_vain([one.plan for one in in_time]),
        "in_vain_known": sum(one.is_known for one in in_vain),
        "in_vain_known_early": sum(one.is_known and one.plan.stops_early for one in in_vain),
        "judged_by_the_guard": dict(counted.judged),
        "others_died": sum(one.others_died for one in results),
        "oom_kills": sum(one.oom_kills for one in results),
    }


def _verdicts(results: Sequence[Result]) -> dict[str, int]:
    """Return how many there were, how many were evicted in time, and what these evictions were."""
    verdicts = Counter(one.verdict for one in results if one.verdict is not None)
    return {"episodes": len(results), "evicted": verdicts.total(), **{one: verdicts[one] for one in Verdict}}


def table(found: Mapping[str, Any]) -> list[str]:
    """Return the figures as tables in Markdown."""
    lines = ["| saved | upstream | inTime, ending not known | inTime, ending known |", "|---|--:|--:|--:|"]
    for rate, by_mode in found["saved_by_rate"].items():
        cells = [f"{one['saved']} of {one['episodes']}" for one in by_mode.values()]
        lines.append(f"| {_rate(int(rate))} | {' | '.join(cells)} |")
    lines += ["", "| evicted in time | | needed | sooner | in vain | |", "|---|--:|--:|--:|--:|--:|"]
    lines += [_row(name, one) for name, one in [*found["by_kind"].items(), ("all", found["all"])]]
    judged, every, least = found["judged_by_the_guard"], found["all"], found["at_least"]
    found_by_guard = ", ".join(f"{judged.get(key, 0)} {key.replace('_', ' ')}" for key in _JUDGED)
    return [
        *lines,
        "",
        f"Evicted in time: {every['evicted']}; would not have crossed: {every[_SOONER] + every[_IN_VAIN]};",
        f"in vain: {every[_IN_VAIN]}. The ending of {found['in_vain_known']} of these was known,",
        f"{found['in_vain_known_early']} of which stopped early.",
        f"A guard that knew rates and needs exactly: {least['evicted']}, in vain {least[_IN_VAIN]}.",
        f"The guard counts: {found_by_guard}.",
        f"Others that died: {found['others_died']}; kernel OOM kills: {found['oom_kills']}.",
    ]


def _row(name: str, one: Mapping[str, int]) -> str:
    share = f"{100 * one[_IN_VAIN] / one['evicted']:.1f} %" if one["evicted"] else "-"
    cells = [f"{one['evicted']} of {one['episodes']}", *(str(one[verdict]) for verdict in Verdict), share]
    return f"| {name} | {' | '.join(cells)} |"


def _rate(mib: int) -> str:
    return f"{mib} MiB/s" if mib < 1024 else f"{mib // 1024} GiB/s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return 0 where no other pod died and the kernel killed none, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.saving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m tests.soak.saving --minutes 15 --out saving.json",
    )
    parser.add_argument("--minutes", type=float, default=15.0, help="how long (15)")
    parser.add_argument("--seed", type=int, default=None, help="draws the same episodes again")
    parser.add_argument("--out", type=Path, help="the file for the figures, JSON")
    asked = parser.parse_args(arguments)
    seed = int.from_bytes(os.urandom(4)) if asked.seed is None else asked.seed
    results: list[Result] = []
    counted = Counted()
    with ended_by_signals(), tempfile.TemporaryDirectory() as directory:
        for one in episodes(Path(directory), random.Random(seed), asked.minutes * 60, counted):
            results.append(one)
            outcome = "saved" if one.saved else "killed" if one.killed else "left alone"
            print(f"{one.mode} {one.plan.rate_mib} MiB/s {one.plan.name}: {outcome}", flush=True)
    found = summary(results, counted)
    if asked.out is not None:
        document = {"seed": seed, **found, "episodes": [asdict(one) for one in results]}
        asked.out.write_text(json.dumps(document) + "\n")
    print("\n".join(table(found)))
    return 1 if found["others_died"] or found["oom_kills"] else 0


def episodes(directory: Path, drawn: random.Random, seconds: float, counted: Counted) -> Iterator[Result]:
    """Yield episodes for so long, all rates in turns: in time, and those evicted with upstream's way."""
    deadline = time.monotonic() + seconds
    with VirtualNode(CgroupTree.discover(), _NODE_MIB * _MIB, "reactor-saving") as node:
        while True:
            for rate in _RATES:
                if time.monotonic() >= deadline:
                    return
                need = drawn.choice((0.5, drawn.uniform(0.15, 0.5)))
                first, *others = drawn.sample(_IDLE, len(_IDLE))
                # The ending of the first is not known, or of the first two.
                kinds = [*drawn.sample([Kind.CROSSES, first], 2)]
                kinds += [kind for one in others for kind in (Kind.CROSSES, one)]
                plans = [plan(kind, rate, drawn, need) for kind in kinds]
                evicted = []
                for result in block(node, directory, "inTime", plans, counted):
                    evicted += [result] if result.asked else []
                    yield result
                if not evicted:
                    continue
                controls = block(node, directory, "upstream", [one.plan for one in evicted], counted)
                for result, control in zip(evicted, controls, strict=True):
                    result.verdict = verdict(control)
                    yield control


if __name__ == "__main__":
    sys.exit(main())
