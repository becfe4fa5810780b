"""`python -m tests.soak`: the run, its table and its figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.testbed.virtual_node import VirtualNode, ended_by_signals
from tests.soak.disagreement import Evidence
from tests.soak.episode import Course, Outcome
from tests.soak.figures import Figures
from tests.soak.guarded import DISK_BYTES, Guarded
from tests.soak.oracle import PAUSE_NS, Spec
from tests.soak.plan import KEPT, KINDS, OUTSIDE, CrossingPlan, Disturbance, Draw, PodPlan
from tests.soak.pods import BYSTANDER_BYTES, Pods, write_manifests
from tests.soak.stage import Stage, StageError

_CROSSINGS_A_ROUND: Final = 25
# A reload takes a minute of an emulated machine.
_SLOW_CROSSINGS_A_ROUND: Final = 100
_LULL_SECONDS: Final = 0.12
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
# As many evictions as there are crossings: the rate is not what is tried here.
_SECTION: Final = {"evictionsPerMinute": 1_000_000, "hardMemoryEvictionsPerMinute": 1_000_000}
# Evictions that don't help are slowed down for a time that the oracle knows.
_LEAKS_SECTION: Final = {**_SECTION, "unhelpfulEvictionPause": f"{PAUSE_NS // 1_000_000_000}s"}
_LEAST_VICTIM_BYTES: Final = 16 << 20  # of smaller ones a leak takes several before it is known for one
# With warrants: while the last eviction is still judged by what it brought back none is given.
_WARRANTS_SECTION: Final = {**_SECTION, "kernelKill": "hard", "unhelpfulEvictionPause": "0s"}
_IN_TIME_SECTION: Final = {**_LEAKS_SECTION, "softEviction": "inTime"}
_TELL_SECONDS: Final = 60.0
_READY_SECONDS: Final = 20.0
_PINNED: Final = Path("/sys/fs/bpf")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return 0 where the goal is met, 1 where not, 2 where it could not run."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--time", default="30m", type=_seconds, help="how long, such as 20s, 30m, 8h")
    parser.add_argument("--crossings", type=int, default=None, help="end before the time, after so many")
    parser.add_argument("--seed", type=int, default=None, help="draws the same rounds again")
    parser.add_argument(
        "--kinds", default=KINDS, help="what memory is held and taken, of %(default)s (see stage.c)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(".cache/soak"), help="directory of what is stored"
    )
    parser.add_argument(
        "--warrants",
        action="store_true",
        help="with kernelKill: hard, and lulls near the level",
    )
    parser.add_argument(
        "--in-time",
        action="store_true",
        help="with softEviction: inTime, pods that save their state, and falls that cross or do not",
    )
    parser.add_argument(
        "--bystanders",
        type=int,
        default=0,
        help="so many pods more, which hold little and must not be killed before others (0)",
    )
    parser.add_argument(
        "--often",
        type=Disturbance,
        choices=[one for one in Disturbance if one is not Disturbance.CRASH],
        help="what disturbs more than half of the crossings",
    )
    parser.add_argument(
        "--slowness",
        type=float,
        default=1.0,
        help="how many times as long as on real hardware everything takes (1)",
    )
    asked = parser.parse_args(arguments)
    if os.geteuid():
        print("soak: needs root, to make cgroups", file=sys.stderr)
        return 2
    seed = int.from_bytes(os.urandom(4)) if asked.seed is None else asked.seed
    asked.output.mkdir(parents=True, exist_ok=True)
    print(f"soak: {asked.time:g} s, seed {seed}", flush=True)
    with ended_by_signals():
        figures = run(
            asked.time,
            Draw(
                seed,
                asked.kinds,
                lull_seconds=_LULL_SECONDS * asked.slowness if asked.warrants else 0.0,
                beside_bytes=asked.bystanders * BYSTANDER_BYTES,
                often=asked.often,
                in_time=asked.in_time,
            ),
            asked.output / f"disagreements-{seed}",
            most_crossings=asked.crossings,
            section=_WARRANTS_SECTION
            if asked.warrants
            else _IN_TIME_SECTION
            if asked.in_time
            else _LEAKS_SECTION,
            slowness=asked.slowness,
            bystanders=asked.bystanders,
        )
    about = {"seed": seed, "bystanders": asked.bystanders, "seconds": asked.time, "slowness": asked.slowness}
    stored = {**_machine(), **about, **figures.document()}
    path = asked.output / f"soak-{time.strftime('%Y%m%dT%H%M%S')}.json"
    path.write_text(json.dumps(stored, indent=1))
    print(f"\n{figures.table()}\n\nsoak: {'good' if figures.is_good() else 'NOT good'}; stored as {path}")
    return 0 if figures.is_good() else 1


def run(
    seconds: float,
    draw: Draw,
    kept: Path,
    *,
    most_crossings: int | None = None,
    section: Mapping[str, Any] = _LEAKS_SECTION,
    slowness: float = 1.0,
    bystanders: int = 0,
) -> Figures:
    """Return what was counted in a run of that length; disagreements are kept in a directory.

    The run ends earlier with the episode that makes it `most_crossings`.
    """
    figures = Figures()
    tree = CgroupTree.discover()
    pins = _pins()
    rules = draw.rules()
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", dir=kept.parent))
        ).resolve()
        tmpfs = stack.enter_context(_tmpfs(directory / "tmpfs", 2 << 30))
        stack.enter_context(_tmpfs(directory / "full", DISK_BYTES))
        node = stack.enter_context(VirtualNode(tree, rules.capacity_bytes, f"reactor-soak-{os.getpid()}"))
        is_v2 = tree.version is CgroupVersion.V2
        stage = stack.enter_context(
            Stage(tree.path(node.cgroup), rules.capacity_bytes, is_v2=is_v2, slowness=slowness)
        )
        disk, manifests = directory / "disk", directory / "manifests"
        disk.mkdir()
        manifests.mkdir()
        write_manifests(manifests, node.cgroup)
        guarded = stack.enter_context(Guarded(directory, node.cgroup, manifests, section, slowness))
        pods = Pods(node, stage, tmpfs, disk)
        pods.add_bystanders(bystanders)
        guarded.configure(rules)
        guarded.start(stage.wait)
        stage.wait(lambda: guarded.warrants() is not None, _READY_SECONDS * slowness)  # the steward, too
        course = Course(stage=stage, pods=pods, guarded=guarded, draw=draw, rules=rules, slowness=slowness)
        evidence = Evidence(kept, guarded.journal)
        try:
            _rounds(course, figures, seconds, most_crossings, evidence)
        except StageError as error:  # what was counted until then is shown all the same
            figures.ended_by = str(error)
            print(f"{guarded.log_tail()}\nsoak: ended: {error}", file=sys.stderr)
        except Exception:
            print(guarded.log_tail(), file=sys.stderr)
            raise
        figures.served_ns = evidence.served_ns
        figures.not_served = evidence.not_served
    names = [node.cgroup[1:], *(f"reactor-exercise-{pid}" for pid in guarded.pids)]
    figures.left_behind = sorted({*_cgroups(tree, names), *(_pins() - pins)})
    return figures


def _rounds(
    course: Course, figures: Figures, seconds: float, most_crossings: int | None, evidence: Evidence
) -> None:
    began = told = time.monotonic()
    spent = 0.0

    def is_over() -> bool:
        return spent >= seconds or (most_crossings is not None and figures.crossings >= most_crossings)

    while not is_over():
        _begin_round(course, figures)
        for _ in range(_SLOW_CROSSINGS_A_ROUND if course.slowness > 1 else _CROSSINGS_A_ROUND):
            spent = time.monotonic() - began
            if is_over():
                break
            # Only at first: what the daemon takes is to be followed over one long life.
            outcome = _crossing(course, may_crash=spent < seconds / 4 / course.slowness)
            if outcome is None:
                break
            figures.add(outcome)
            figures.add_bystanders(course.pods.killed_bystanders())
            said = evidence.take(outcome)
            if said is not None:
                print(f"soak: at {spent:.0f} s: {said}", flush=True)
            if course.guarded.exit_status() is not None:
                figures.unexplained_deaths += 1
                print(f"soak: the daemon died: {course.guarded.log_tail()}", flush=True)
                course.guarded.start(course.stage.wait)
            if course.is_stuck:
                break
        figures.warrants[course.guarded.generation] = course.guarded.warrants() or {}
        if time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            print(
                f"soak: {spent:.0f} s, {figures.crossings} crossings, {figures.wrong_victims} wrong, "
                f"{figures.missed} missed, {figures.unseen} not seen, "
                f"{len(evidence.served_ns)} killed under a warrant",
                flush=True,
            )
    _clear(course.pods)
    figures.node_oom_kills = course.pods.oom_kills
    figures.away_oom_kills = course.pods.oom_kills_away
    figures.stillborn = course.pods.stillborn


def _crossing(course: Course, *, may_crash: bool) -> Outcome | None:
    """Return what came of a crossing; None where there is no pod to cross.

    A daemon that is short of its minimum reclaim kills each that comes, at times before it stands.
    """
    leak = _leak(course)
    if leak is not None:
        return course.run(leak)
    names = [pod.plan.name for pod in course.pods.present.values() if not pod.plan.spec.is_critical]
    if not names:
        # A critical one of that name may have come in a lonely one's place.
        name = next(one for one in map("lonely-{}".format, count()) if one not in course.pods.present)
        course.pods.start([PodPlan(name=name, spec=Spec(), kind="a", size_bytes=4096)])
        if name not in course.pods.present:
            return None
        names = [name]
    first = course.first() or names[0]
    plan = course.draw.fall(sorted(names), course.rules, first=first) or course.draw.crossing(
        sorted(names), course.rules, may_crash=may_crash, first=first
    )
    return course.run(plan)


def _leak(course: Course) -> CrossingPlan | None:
    """Return a crossing by what may not be evicted, now and then: by a pod, or by what is no pod's.

    Where the pod that goes first is so small that its memory is taken at once, several may go for it.
    """
    if course.first_holds_bytes() < _LEAST_VICTIM_BYTES:
        return None
    outside = next(one for one in map(f"{OUTSIDE}{{}}".format, count()) if one not in course.pods.present)
    kept = [pod.plan.name for pod in course.pods.present.values() if pod.plan.name.startswith(KEPT)]
    plan = course.draw.leak([outside, *kept], course.rules)
    if plan is not None and plan.hogs[0].name == outside:
        course.pods.start([PodPlan(name=outside, spec=Spec(is_critical=True), kind="a", size_bytes=4096)])
        course.stage.done.clear()
    return plan


def _clear(pods: Pods) -> None:
    there = list(pods.present.values())
    for pod in there:
        pods.end(pod)
    pods.remove(there)
    pods.forget_lives()


def _begin_round(course: Course, figures: Figures) -> None:
    """Have other pods below other rules; what the daemon takes is measured while no pod is there."""
    pods = course.pods
    _clear(pods)
    course.rules = course.draw.rules()
    pods.limit(course.rules.capacity_bytes)
    course.guarded.fill_disk(is_full=course.draw.is_disk_full())
    course.guarded.configure(course.rules)
    course.guarded.reload()
    if not course.stage.wait(course.guarded.is_ready, _READY_SECONDS * course.slowness):
        raise StageError(f"the daemon does not come back from its reload: {course.guarded.log_tail()}")
    figures.measured.append(course.guarded.measured(course.stage.wait, figures.kills))
    course.begin()
    pods.start(course.draw.pods(course.rules))
    course.stage.done.clear()


def _cgroups(tree: CgroupTree, names: Sequence[str]) -> set[str]:
    """Return the directories of those cgroups of ours that are still there."""
    roots = [tree.memory_root, tree.pids_root, tree.cpu_root, tree.freezer_root]
    places = (root / name for root in roots if root is not None for name in names)
    return {str(place) for place in places if place.exists()}


def _pins() -> set[str]:
    """Return what is pinned in the BPF filesystem under reactor's name."""
    return {str(path) for path in _PINNED.glob("reactor*")} if _PINNED.is_dir() else set()


@contextmanager
def _tmpfs(path: Path, size_bytes: int) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def _machine() -> dict[str, Any]:
    git = shutil.which("git")  # not in a virtual machine
    words = ["rev-parse", "--short", "HEAD"]
    commit = git and subprocess.run([git, *words], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": commit,
        "kernel": platform.release().partition("-")[0],
        "cpus": os.cpu_count(),
        "cgroup": CgroupTree.discover().version.name.lower(),
    }


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a number and s, m or h")
    return float(found[1]) * _UNITS[found[2]]


if __name__ == "__main__":
    sys.exit(main())
