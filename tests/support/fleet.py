"""A synthetic fleet: journals of many nodes as the daemon writes them, and recordings as `record` does.

The decisions are real ones, made by the policy over made-up nodes, and their lines are the daemon's own. What
the kubelet and the kernel then did is made up: as a rule the same some seconds later. Of each seed it is the
same fleet. `python -m tests.support.fleet DIRECTORY --nodes 500 --days 30` writes one.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from reactor.guard.record import EvictionAttempt, PassRecord, StageTimes
from reactor.link.documents import Outcome, instant
from reactor.model.decisions import PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.quantity import parse_quantity
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from reactor.policy.decide import decide
from reactor.simulate.recording import ScenarioFile, at

MIB: Final = 1 << 20
CAPACITY: Final = 64 << 30
BEGAN: Final = 1_790_000_000.0
POOLS: Final = ("web", "batch", "gpu", "spot")
KINDS: Final = (
    *("other-pod", "alone", "kubelet-alone", "oom-kill-alone", "later"),
    *("other-pod", "alone", "kubelet-alone", "not-ready-alone", "later"),
)
_SETTINGS: Final = EvictionSettings(
    thresholds=(
        Threshold(
            signal=Signal.MEMORY_AVAILABLE,
            value=ThresholdValue(text="200Mi", amount=Fraction(parse_quantity("200Mi").value)),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A disagreement that was put in, by the words of `reactor fleet`."""

    node: str
    kind: str
    at: float


@dataclass(slots=True, kw_only=True)
class Fleet:
    """What was written."""

    nodes: int
    agreed: int = 0
    prevented: int = 0
    injected: list[Injected] = field(default_factory=list)
    bytes_written: int = 0


class Node:
    """One made-up node, and the lines of its journal."""

    def __init__(self, name: str, pool: str, chance: random.Random, *, pods: int = 20) -> None:
        self.name = name
        self.chance = chance
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self.pods = [
            Pod(
                uid=f"{chance.getrandbits(64):016x}-{number}",
                namespace=f"team-{number % 5}",
                name=f"{chance.choice(('api', 'job', 'db', 'cache'))}-{chance.getrandbits(20):05x}",
                priority=100 * (number % 3),
            )
            for number in range(pods)
        ]
        self._number = 0
        labels = {"kubernetes.io/hostname": name, "karpenter.sh/nodepool": pool}
        about = {"node": name, "role": "alongside", "dry_run": True, "labels": labels}
        self.add(BEGAN, {"kind": "node", **about})
        self._ready("True", BEGAN, BEGAN - 86400)

    def add(self, at_seconds: float, line: dict[str, Any]) -> None:
        self.lines.append((at_seconds, {"time": instant(at_seconds), **line}))

    def shortage(self, at_seconds: float) -> Sequence[Pod]:
        """Have reactor decide in a dry run; return the pods in its order."""
        used = {
            pod.uid: PodUsage(memory_working_set_bytes=self.chance.randrange(50, 3000) * MIB)
            for pod in self.pods
        }
        memory = Observation(
            available=self.chance.randrange(150, 199) * MIB, capacity=CAPACITY, taken_at_seconds=at_seconds
        )
        snapshot = Snapshot(signals={Signal.MEMORY_AVAILABLE: memory}, pods=used)
        _, decision = decide(_SETTINGS, PolicyState(), snapshot, self.pods, at_seconds)
        attempts = tuple(EvictionAttempt(eviction=one, outcome=Outcome.DRY_RUN) for one in decision.evictions)
        assert len(attempts) == 1
        self._record(at_seconds, snapshot, decision, attempts)
        return [place.pod for place in decision.ranking]

    def over(self, at_seconds: float) -> None:
        """Have the shortage end."""
        memory = Observation(available=4096 * MIB, capacity=CAPACITY, taken_at_seconds=at_seconds)
        snapshot = Snapshot(signals={Signal.MEMORY_AVAILABLE: memory})
        _, decision = decide(_SETTINGS, PolicyState(), snapshot, self.pods, at_seconds)
        self._record(at_seconds, snapshot, decision, ())

    def kubelet(self, at_seconds: float, pod: Pod) -> None:
        """Have the kubelet evict a pod."""
        message = (
            f"The node was low on resource: memory. Container main was using {self.chance.randrange(9)}Gi. "
        )
        stated = instant(float(int(at_seconds)))
        line = {
            "kind": "pod-evicted",
            "evicted_at": stated,
            "pod": pod.key,
            "uid": pod.uid,
            "message": message,
        }
        self.add(at_seconds, line)
        self.pods = [one for one in self.pods if one is not pod]
        again = f"{pod.name[:8]}-{self.chance.getrandbits(20):05x}"
        uid = f"{self.chance.getrandbits(64):016x}"
        self.pods.append(Pod(uid=uid, namespace=pod.namespace, name=again, priority=pod.priority))

    def oom_kill(self, at_seconds: float, pod: Pod) -> None:
        """Have the kernel kill at the node's own limit."""
        where = {"scope": "node", "kills": 1, "pod": pod.key, "uid": pod.uid, "source": "ebpf-oom"}
        self.add(at_seconds, {"kind": "oom-kill", **where, "message": f"OOM kill of main of {pod.key}"})

    def not_ready(self, at_seconds: float, for_seconds: float) -> None:
        """Have the node be not ready for a while."""
        self._ready("Unknown", at_seconds + 40, at_seconds)
        self._ready("True", at_seconds + for_seconds, at_seconds + for_seconds)

    def written(self, path: Path) -> int:
        """Write the journal; return its size in bytes. An eviction's line comes late, as the daemon's."""
        content = b"".join(
            json.dumps(line, separators=(",", ":")).encode() + b"\n"
            for _, line in sorted(self.lines, key=lambda one: one[0])
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return len(content)

    def _ready(self, status: str, at_seconds: float, since: float) -> None:
        line = {"condition": "Ready", "status": status, "since": instant(since), "reason": "KubeletReady"}
        self.add(at_seconds, {"kind": "node-condition", **line})

    def _record(self, at_seconds: float, snapshot: Snapshot, decision: Any, attempts: Any) -> None:
        self._number += 1
        now_ns = int(at_seconds * 1e9)
        times = StageTimes(
            woke_ns=now_ns, started_ns=now_ns, observed_ns=now_ns, decided_ns=now_ns, done_ns=now_ns
        )
        record = PassRecord(
            id=self._number,
            at_unix_seconds=at_seconds,
            wakes=(),
            snapshot=snapshot,
            decision=decision,
            times=times,
            attempts=attempts,
            dry_run=True,
        )
        self.lines.append((at_seconds, {**record.document(), "start": "s", "seq": self._number}))


def write_fleet(
    directory: Path, *, nodes: int = 500, days: float = 30.0, injected: int = 20, seed: int = 1
) -> Fleet:
    """Write a fleet's journals: on each node some shortages, and `injected` disagreements in all."""
    chance = random.Random(seed)
    fleet = Fleet(nodes=nodes)
    odd = dict.fromkeys(chance.sample(range(nodes), min(nodes, injected)))
    for place, number in enumerate(odd):
        odd[number] = KINDS[place % len(KINDS)]
    for number in range(nodes):
        name, pool = f"node-{number:04d}", POOLS[number % len(POOLS)]
        node = Node(name, pool, random.Random(chance.getrandbits(64)))
        times = _times(node.chance, days, count=3 + (number in odd))
        for place, when in enumerate(times):
            kind = odd.get(number)
            if kind is not None and place == len(times) // 2:
                fleet.injected.append(_disagree(node, kind, when))
            else:
                _agree(node, when, fleet)
        fleet.bytes_written += node.written(directory / pool / f"{name}.jsonl")
    return fleet


def _times(chance: random.Random, days: float, *, count: int) -> list[float]:
    """Return instants at least an hour apart."""
    hours = sorted(chance.sample(range(1, int(days * 24)), count))
    return [BEGAN + 3600 * hour + chance.random() * 900 for hour in hours]


def _agree(node: Node, when: float, fleet: Fleet) -> None:
    first, *_ = node.shortage(when)
    how = node.chance.random()
    if how < 0.9:
        node.kubelet(when + node.chance.uniform(1.5, 8.0), first)
    else:
        node.oom_kill(when + node.chance.uniform(0.5, 5.0), first)
        fleet.prevented += 1
    fleet.agreed += 1
    node.over(when + 12)


def _disagree(node: Node, kind: str, when: float) -> Injected:
    if kind == "other-pod":
        order = node.shortage(when)
        node.kubelet(when + 4, order[2])
    elif kind == "alone":
        node.shortage(when)
    elif kind == "kubelet-alone":
        node.over(when - 60)
        node.kubelet(when, node.pods[0])
    elif kind == "oom-kill-alone":
        node.oom_kill(when, node.pods[0])
    elif kind == "not-ready-alone":
        node.not_ready(when, 300)
    else:
        node.kubelet(when - 30, victim := node.pods[3])
        node.pods.append(victim)  # its cgroup was still there
        later = node.shortage(when)
        line = node.lines[-1][1]
        line["evictions"][0] |= {"uid": victim.uid, "pod": victim.key}
        assert later
    if kind in {"other-pod", "alone", "later"}:
        node.over(when + 12)
    return Injected(node=node.name, kind=kind, at=when)


def write_recording(
    path: Path,
    *,
    days: float = 30.0,
    a_day: int = 192,
    pods: int = 20,
    shortages: int | None = 3,
    seed: int = 1,
) -> int:
    """Write a recording of a quiet node, with some steps of shortage; return the number of steps.

    With `shortages` None the node has between 60 and 900 MiB available all the time, and memory drifts.
    """
    chance = random.Random(seed)
    names = [(f"team-{number % 5}", f"pod-{number}", f"uid-{seed}-{number}") for number in range(pods)]
    listed = [
        {
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "spec": {
                "priority": 0,
                "containers": [{"name": "all", "resources": {"requests": {"memory": "64Mi"}}}],
            },
            "status": {"qosClass": "Burstable"},
        }
        for namespace, name, uid in names
    ]
    steps = int(days * a_day)
    short = None if shortages is None else set(chance.sample(range(1, steps), shortages))
    header = {
        "kubeletConfiguration": {"evictionHard": {"memory.available": "200Mi"}},
        "filesystems": {},
        "pods": [],
        "node": {
            "name": path.name.partition(".")[0],
            "labels": {"pool": chance.choice(POOLS)},
            "began": instant(BEGAN),
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        scenario = ScenarioFile(file, "recorded from the kubelet", header)
        for number, step in enumerate(_steps(steps, a_day, names, chance, short)):
            scenario.add({**step, "pods": listed} if not number else step)
        scenario.close()
    return steps


def _steps(
    steps: int,
    a_day: int,
    names: Sequence[tuple[str, str, str]],
    chance: random.Random,
    short: set[int] | None,
) -> Iterator[dict[str, Any]]:
    available = 300 * MIB
    held = {uid: chance.randrange(10, 2000) * MIB for _, _, uid in names}
    for number in range(steps):
        if short is None:
            available = min(900 * MIB, max(60 * MIB, available + chance.randrange(-30, 31) * MIB))
            held = {uid: int(size * chance.uniform(0.98, 1.0205)) for uid, size in held.items()}
        else:
            available = (150 if number in short else chance.randrange(4000, 9000)) * MIB
            held = {uid: chance.randrange(10, 2000) * MIB for uid in held}
        memory = {"availableBytes": available, "workingSetBytes": CAPACITY - available}
        disk = {
            "availableBytes": 400 << 30,
            "capacityBytes": 500 << 30,
            "inodesFree": 9 << 20,
            "inodes": 10 << 20,
        }
        node = {"memory": memory, "fs": disk, "rlimit": {"maxpid": 4_194_304, "curproc": 900}}
        pods = [
            {
                "podRef": {"name": name, "namespace": namespace, "uid": uid},
                "memory": {"workingSetBytes": held[uid]},
                "containers": [{"name": "all", "rootfs": {"usedBytes": 4096}, "logs": {"usedBytes": 4096}}],
                "process_stats": {"process_count": 12},
            }
            for namespace, name, uid in names
        ]
        yield {"at": at(number * 86400 / a_day), "summary": {"node": node, "pods": pods}}


def main() -> None:
    parser = argparse.ArgumentParser(description="write a synthetic fleet")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument(
        "--short", metavar="PODS", type=int, help="a day of one node, short of memory all day"
    )
    options = parser.parse_args()
    if options.short is not None:
        path = options.directory / f"short-{options.short}.json"
        write_recording(path, days=1, a_day=8640, pods=options.short, shortages=None)
        return
    fleet = write_fleet(options.directory, nodes=options.nodes, days=options.days)
    print(f"{fleet.nodes} nodes, {fleet.bytes_written / MIB:.1f} MiB; injected:")
    for one in fleet.injected:
        print(f"  {one.node} {instant(one.at)} {one.kind}")


if __name__ == "__main__":
    main()
