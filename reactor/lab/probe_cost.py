"""What the eBPF probes cost a program that does nothing but fault pages in, in percent of its CPU time.

The loop runs on without a break while the probes come and go around it: blocks with and without them take
turns, each block counts by its fastest round, and each is compared with the blocks without probes right
before and after it. So a busy machine makes the spread wider and leaves the median where it is. The loop
against itself (`none`) shows how far to believe the rest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError
from reactor.kernel.bpf.probes import MemoryProbe
from reactor.kernel.bpf.records import Level
from reactor.kernel.bpf.warrants import ClaimState, Terms, WarrantProbe
from reactor.lab.daemon_process import wait_until
from reactor.lab.hog import MIB
from reactor.lab.tool import Record
from reactor.lab.virtual_node import VirtualNode

MANY: Final = 1000
_BOUND: Final = (110, MANY)
_FAR_PAGES: Final = 1 << 50
_BLOCK_BYTES: Final = 16 * MIB
_ROUNDS_A_BLOCK: Final = 8
_TIMEOUT_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 0.2
_NEVER: Final = [Level(fire=1 << 40, rearm=1 << 39, step=1 << 30)]
NONE: Final = "none"


def probe_cost(node: VirtualNode, tool: Path, directory: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return what each way of watching costs, in percent (median, quartiles, n) over two or more rounds.

    "inside": the loop's cgroup is below a watched one, as a pod is below its node; "outside": it is not.
    With a warrant the loop's pod is one of those that are bound.
    Raises BpfError where the probes can't be loaded.
    """
    pod = node.add_pod("loop")
    others = [node.add_pod(f"watched-{number:04}") for number in range(MANY)]
    with _loop(node, pod, tool, directory) as block_ns:
        block_ns()  # warms up
        costs: dict[str, list[float]] = {}
        before_ns = block_ns()
        for _ in range(rounds):
            for measure in (_watched_ns, _under_warrants_ns):
                found_ns = measure(block_ns, node, pod, others)
                time.sleep(_SETTLE_SECONDS)
                after_ns = block_ns()
                without_ns = (before_ns + after_ns) / 2
                costs.setdefault(NONE, []).append(_percent(after_ns, before_ns))
                for name, with_ns in found_ns.items():
                    costs.setdefault(name, []).append(_percent(with_ns, without_ns))
                before_ns = after_ns
    return {name: _spread(percents) for name, percents in costs.items()}


def _watched_ns(
    block_ns: Callable[[], int], node: VirtualNode, _: str, others: Sequence[str]
) -> dict[str, int]:
    with MemoryProbe() as probe:
        watches = _Watches(probe, node, others)
        return {name: _settled(block_ns, partial(step, watches)) for name, step in _STEPS.items()}


def _under_warrants_ns(
    block_ns: Callable[[], int], node: VirtualNode, pod: str, others: Sequence[str]
) -> dict[str, int]:
    """Measure beside a watch on the node, as the daemon has it: the programs, then a warrant with bounds."""
    with MemoryProbe() as memory, WarrantProbe() as probe:
        memory.watch(memory.counters(node.tree.path(node.cgroup)).memory, 1, _NEVER)
        found_ns = {"1 inside, and warrants' programs": _settled(block_ns, lambda: None)}
        for count in _BOUND:
            arm = partial(_arm, probe, node, [pod, *others[1:count]], others[0])
            found_ns[f"1 inside, and a warrant with {count} pods"] = _settled(block_ns, arm)
            if probe.withdraw() is not ClaimState.LIVE:
                raise RefusedError("the warrant was void before the loop had run: a cgroup was made")
    return found_ns


def _arm(probe: WarrantProbe, node: VirtualNode, bound: Sequence[str], victim: str) -> None:
    """Arm a warrant that nothing serves or voids, with bounds for these pods that they never reach."""
    for place, pod in enumerate(bound):
        probe.place(probe.counters(node.tree.path(pod)).memory, place)
        probe.bound(place, _FAR_PAGES)
    found, watched = (probe.counters(node.tree.path(cgroup)) for cgroup in (victim, node.cgroup))
    terms = Terms(
        victim=found.cgroup_id,
        victim_level=found.level,
        victim_counter=found.memory,
        victim_least=0,
        watched_counter=watched.memory,
        level=_FAR_PAGES,
        cache_most=_FAR_PAGES,
        expires_ns=_FAR_PAGES << 12,
    )
    arrivals, generation = probe.arrivals(), len(bound)
    if not (probe.draft(generation, terms) and probe.arm(generation, arrivals)):
        raise RefusedError("a warrant can't be armed: another one stands there, or a cgroup was made")


class _Watches:
    """The watches of one round, in the order in which they are wanted."""

    def __init__(self, probe: MemoryProbe, node: VirtualNode, others: Sequence[str]) -> None:
        self._probe = probe
        self._node = probe.counters(node.tree.path(node.cgroup)).memory
        self._others = [probe.counters(node.tree.path(other)).memory for other in others]

    def one_outside(self) -> None:
        self._probe.watch(self._others[0], 1, _NEVER)

    def one_inside(self) -> None:
        self._probe.unwatch(self._others[0])
        self._probe.watch(self._node, 2, _NEVER)

    def many_inside(self) -> None:
        for number, address in enumerate(self._others[1:]):
            self._probe.watch(address, 3 + number, _NEVER)

    def many_outside(self) -> None:
        self._probe.unwatch(self._node)
        self.one_outside()

    def many_inside_and_the_machine(self) -> None:
        self._probe.unwatch(self._others[0])
        self._probe.watch(self._node, 2, _NEVER)
        self._probe.prepare_node()
        self._probe.watch_node(2 + MANY, _NEVER)


_STEPS: Final[dict[str, Callable[[_Watches], None]]] = {
    "1 outside": _Watches.one_outside,
    "1 inside": _Watches.one_inside,
    f"{MANY} inside": _Watches.many_inside,
    f"{MANY} outside": _Watches.many_outside,
    f"{MANY} inside, and the machine": _Watches.many_inside_and_the_machine,
}


def _settled(block_ns: Callable[[], int], step: Callable[[], None]) -> int:
    step()
    time.sleep(_SETTLE_SECONDS)
    return block_ns()


@contextmanager
def _loop(node: VirtualNode, pod: str, tool: Path, directory: Path) -> Iterator[Callable[[], int]]:
    """Start the loop in the pod; what is yielded has it run a block and returns its fastest round, in ns."""
    with Record(directory, "touched") as record:
        command = [str(tool), "touch", str(record.path), str(_BLOCK_BYTES), str(_ROUNDS_A_BLOCK)]
        child = node.spawn(pod, command)

        def block_ns() -> int:
            record.go()
            if not wait_until(record.is_done, _TIMEOUT_SECONDS) or child.poll() is not None:
                raise RefusedError(f"the loop that faults pages in has ended or stands still in {pod}")
            return record.words()[3]

        yield block_ns


def _percent(with_ns: float, without_ns: float) -> float:
    return (with_ns / without_ns - 1) * 100


def _spread(percents: Sequence[float]) -> dict[str, float]:
    lower, median, upper = statistics.quantiles(percents, n=4, method="inclusive")
    values = {"percent": median, "p25": lower, "p75": upper}
    return {**{name: round(value, 3) for name, value in values.items()}, "n": len(percents)}
