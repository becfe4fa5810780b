"""`python -m tests.soak.saving`: who has saved its state, with soft evictions in time and upstream's way.

A pod on a virtual node takes memory at a rate (bench/course.c). It is given the time from the soft threshold
to the hard one, and needs half of that, or less, to save its state at SIGTERM. Several pods of one name come
one after the other and need about as long: the guard knows how long from the second on. Other pods hold
memory within their requests. Half of the pods come back before the hard threshold, or stop: then no eviction
is needed. Whether one was is known from the plan, and what the guard says of it is kept beside.
"""

from __future__ import annotations

import argparse
import json
import os
import random
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
_GRACE_SECONDS: Final = 30
_REST_SECONDS: Final = 0.7
_OVER_SECONDS: Final = 40.0
_SETTLED_SECONDS: Final = 0.5


class Kind(StrEnum):
    """What a pod does past the soft threshold; but for the first, it never gets to the hard one."""

    CROSSES = "crosses"
    BURST = "a burst of 1 to 2 s to a quarter of the way, and back"
    SAWTOOTH = "a sawtooth to a quarter of the way"
    QUARTER = "stops at a quarter of the way"
    HALF = "stops half way"
    ANYWHERE = "stops at a random point"


_IDLE: Final = (Kind.BURST, Kind.SAWTOOTH, Kind.QUARTER, Kind.HALF, Kind.ANYWHERE)
_SHARES: Final = {Kind.BURST: 0.25, Kind.SAWTOOTH: 0.25, Kind.QUARTER: 0.25, Kind.HALF: 0.5}
_WHEN: Final = {True: "early", False: "late"}
_SPARE: Final = 1.25  # of the time that is needed: with so much left, that a fall will stop can be waited for
_JUDGED: Final = ("needed", "presumed", "sooner", "not_needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One episode. After SIGTERM the pod needs `save_ms` of `left_ms` between the thresholds.

    It goes `share` of the way to the hard one. `is_known`: another of its name has ended before.
    """

    kind: Kind
    rate_mib: int
    save_ms: int
    left_ms: int
    share: float
    is_known: bool
    segments: Sequence[tuple[float, float]]

    @property
    def stops_early(self) -> bool:
        """Whether a fall stops while there is plenty of time for an eviction."""
        return (1 - self.share) * self.left_ms > _SPARE * self.save_ms


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of it: `asked` is whether the pod had SIGTERM, `killed` whether it was killed."""

    mode: str
    plan: Plan
    asked: bool
    saved: bool
    killed: bool
    took_ms: int | None
    others_died: int
    oom_kills: int


@dataclass(slots=True, kw_only=True)
class Counted:
    """What the guard itself has judged, over all daemons."""

    judged: Counter[str] = field(default_factory=Counter)


def distance_mib(rate_mib: int) -> int:
    return _WAYS[rate_mib]


def plan(
    kind: Kind, rate_mib: int, drawn: random.Random, base_mib: float, need: float, *, is_known: bool
) -> Plan:
    """Return an episode on a node that uses so much without the pod, which needs about `need` of the way."""
    way = distance_mib(rate_mib)
    seconds = way / rate_mib
    before = _CROSSING_MIB - way - max(4.0, way / 25) - base_mib
    begin = [(0.0, before), (_REST_SECONDS, before)]
    share = 1.0 if kind is Kind.CROSSES else _SHARES.get(kind) or drawn.uniform(0.1, 0.95)
    if kind is Kind.CROSSES:
        segments = [*begin, ((way + 64) / rate_mib, before + way + 64)]
    elif kind is Kind.BURST:
        burst = drawn.uniform(1.0, 2.0)
        segments = [*begin, (burst, before + way / 4), (0.2, before), (4.0, before)]
    elif kind is Kind.SAWTOOTH:
        tooth = [(seconds / 4, before + way / 4), (0.05, before)]
        segments = [*begin, *tooth * 5]
    else:
        segments = [*begin, (seconds * share, before + way * share), (5.0, before + way * share)]
    return Plan(
        kind=kind,
        rate_mib=rate_mib,
        save_ms=int(1000 * seconds * min(0.5, need * drawn.uniform(0.9, 1.1))),
        left_ms=int(1000 * seconds),
        share=share,
        is_known=is_known,
        segments=segments,
    )


def configure(daemon: RunningDaemon, mode: str, rate_mib: int) -> None:
    soft = _HARD_MIB + distance_mib(rate_mib)
    daemon.configure(
        {
            "evictionHard": {"memory.available": f"{_HARD_MIB}Mi"},
            "evictionSoft": {"memory.available": f"{soft:g}Mi"},
            "evictionSoftGracePeriod": {"memory.available": f"{_GRACE_SECONDS}s"},
            "evictionMaxPodGracePeriod": 20,
        },
        # One course comes right after the other.
        {"softEviction": mode, "evictionsPerMinute": 1_000_000, "unhelpfulEvictionPause": "0s"},
    )


def run(
    node: VirtualNode, directory: Path, mode: str, number: int, planned: Plan, others: list[Any]
) -> Result:
    """Have an episode happen, and wait until the pod is gone."""
    name, record = "hog", directory / f"record-{number}"
    pod = node.add_pod(name)
    segments = [f"{seconds:.6f}:{mib:.3f}" for seconds, mib in planned.segments]
    tool = str(compiled_tool("course", package="bench"))
    process = node.spawn(pod, [tool, str(record), str(planned.save_ms), *segments])
    deadline = time.monotonic() + _OVER_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if planned.kind is not Kind.CROSSES and "done" in _read(record):
            break
        time.sleep(0.01)
    lines = dict(line.split() for line in _read(record).splitlines())
    status = process.poll()
    killed_by_us = status is None
    oom_kills = _oom_kills(node.tree, pod)
    node.remove_pod(pod)
    process.wait()
    record.unlink(missing_ok=True)
    took = int(lines["saved"]) - int(lines["term"]) if "saved" in lines and "term" in lines else None
    return Result(
        mode=mode,
        plan=planned,
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


def block(  # noqa: PLR0917 - what an episode is drawn from
    node: VirtualNode,
    directory: Path,
    mode: str,
    rate_mib: int,
    plans: Sequence[Kind],
    drawn: random.Random,
    counted: Counted,
    numbers: Iterator[int],
) -> Iterator[Result]:
    """Run some episodes with a daemon of their own."""
    others = [
        node.spawn(node.add_pod(f"other-{mib}", request_bytes=2 * mib * _MIB), hold(mib)) for mib in _HELD_MIB
    ]
    daemon = RunningDaemon(directory, node.cgroup)
    configure(daemon, mode, rate_mib)
    daemon.start()
    time.sleep(_SETTLED_SECONDS)
    base_mib = node.usage_bytes() / _MIB + 1
    need, is_known = drawn.choice((0.5, drawn.uniform(0.15, 0.5))), False
    try:
        for kind in plans:
            planned = plan(kind, rate_mib, drawn, base_mib, need, is_known=is_known)
            result = run(node, directory, mode, next(numbers), planned, others)
            is_known |= result.saved
            yield result
            time.sleep(_SETTLED_SECONDS)
        if mode == "inTime":
            _await_judged(daemon)
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


def _await_judged(daemon: RunningDaemon) -> None:
    deadline = time.monotonic() + _GRACE_SECONDS + 5
    while time.monotonic() < deadline:
        with suppress(ReactorError):
            if not daemon.status()["time_left"]["in_time"]["being_judged"]:
                return
        time.sleep(0.5)


def summary(results: Sequence[Result], counted: Counted) -> dict[str, Any]:
    """Return the figures."""
    crossing = [one for one in results if one.plan.kind is Kind.CROSSES]
    in_time = [one for one in results if one.mode == "inTime"]
    groups = {"upstream": [one for one in results if one.mode == "upstream"]}
    groups |= {"not known": [one for one in in_time if not one.plan.is_known]}
    groups |= {"known": [one for one in in_time if one.plan.is_known]}
    asked = [one for one in in_time if one.asked]
    in_vain = [one for one in asked if one.plan.kind is not Kind.CROSSES]
    early = [one for one in in_time if one.plan.kind is not Kind.CROSSES and one.plan.stops_early]
    known = [one for one in asked if one.plan.is_known]
    known_early = [one for one in known if one in early]
    return {
        "saved_by_rate": {
            str(rate): {
                group: {
                    "episodes": sum(one.plan.rate_mib == rate for one in crossing if one in some),
                    "saved": sum(one.saved for one in crossing if one in some and one.plan.rate_mib == rate),
                }
                for group, some in groups.items()
            }
            for rate in _RATES
        },
        "not_crossing": {
            f"{kind}, {_WHEN[is_early]}": {
                group: {
                    "episodes": len(found),
                    "evicted": sum(one.asked or one.killed for one in found),
                }
                for group, some in groups.items()
                for found in [
                    [one for one in some if one.plan.kind is kind and one.plan.stops_early is is_early]
                ]
            }
            for kind in _IDLE
            for is_early in (True, False)
        },
        "evicted_in_time": len(asked),
        "not_needed": len(in_vain),
        "known_early": {"evicted": len(known_early), "of_evicted": len(known)},
        "judged_by_the_guard": dict(counted.judged),
        "others_died": sum(one.others_died for one in results),
        "oom_kills": sum(one.oom_kills for one in results),
    }


def table(found: Mapping[str, Any]) -> list[str]:
    """Return the figures as tables in Markdown."""
    heads = "upstream | inTime, ending not known | inTime, ending known"
    lines = [f"| rate | {heads} |", "|---|--:|--:|--:|"]
    for rate, by_mode in found["saved_by_rate"].items():
        cells = [f"{one['saved']} of {one['episodes']}" for one in by_mode.values()]
        lines.append(f"| {_rate(int(rate))} | {' | '.join(cells)} |")
    lines += ["", f"| does not cross | {heads} |", "|---|--:|--:|--:|"]
    for kind, by_mode in found["not_crossing"].items():
        if any(one["episodes"] for one in by_mode.values()):
            cells = [f"{one['evicted']} of {one['episodes']}" for one in by_mode.values()]
            lines.append(f"| {kind} | {' | '.join(cells)} |")
    judged = found["judged_by_the_guard"]
    found_by_guard = ", ".join(f"{judged.get(key, 0)} {key.replace('_', ' ')}" for key in _JUDGED)
    early = found["known_early"]
    return [
        *lines,
        "",
        f"Evicted in time: {found['evicted_in_time']}; would not have crossed: {found['not_needed']}.",
        f"Of {early['of_evicted']} whose ending was known, {early['evicted']} would have stopped early.",
        f"The guard counts: {found_by_guard}.",
        f"Others that died: {found['others_died']}; kernel OOM kills: {found['oom_kills']}.",
    ]


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
            print(f"{one.mode} {one.plan.rate_mib} MiB/s {one.plan.kind}: {outcome}", flush=True)
    found = summary(results, counted)
    if asked.out is not None:
        document = {"seed": seed, **found, "episodes": [asdict(one) for one in results]}
        asked.out.write_text(json.dumps(document) + "\n")
    print("\n".join(table(found)))
    return 1 if found["others_died"] or found["oom_kills"] else 0


def episodes(directory: Path, drawn: random.Random, seconds: float, counted: Counted) -> Iterator[Result]:
    """Yield episodes for so long, all rates and both modes in turns."""
    deadline = time.monotonic() + seconds
    numbers = iter(range(1, 1 << 30))
    with VirtualNode(CgroupTree.discover(), _NODE_MIB * _MIB, "reactor-saving") as node:
        while True:
            for rate in _RATES:
                first, *chosen = drawn.sample(_IDLE, len(_IDLE))
                for mode in ("inTime", "upstream"):
                    if time.monotonic() >= deadline:
                        return
                    plans = [Kind.CROSSES, first]
                    if mode == "inTime":  # the ending of the first is not known, or of the first two
                        plans = drawn.sample(plans, 2)
                        plans += [kind for one in chosen for kind in (Kind.CROSSES, one)]
                    yield from block(node, directory, mode, rate, plans, drawn, counted, numbers)


if __name__ == "__main__":
    sys.exit(main())
