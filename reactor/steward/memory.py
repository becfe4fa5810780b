"""What the node's memory is used for: who holds it, and what of it goes to swap and comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import trio

from reactor.backoff import next_beat
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_memory import MemoryKinds
from reactor.kernel.procfs import PROC, read_kernel_memory
from reactor.kernel.swap import SwapTraffic, machine_swap, read_swap_traffic
from reactor.model.quantity import amount_text
from reactor.model.signals import Resource
from reactor.text import printable

# Samples closer than such a part of the window are merged: memory is bounded, however often it is fed.
_MOST_SAMPLES: Final = 64

WINDOW_SECONDS: Final = 10.0
_PERIOD_SECONDS: Final = WINDOW_SECONDS / 2  # by three samples a rate over the window is known

_UNKNOWN_PERIOD_SECONDS: Final = 60.0  # most nodes have no swap

_SAYS: Final = {
    "anonymous_bytes": "anonymous",
    "shared_bytes": "shmem",
    "active_file_bytes": "active file",
    "kernel_bytes": "slab and other kernel memory",
}
_MENTIONED_BYTES: Final = 1 << 20
_MACHINE: Final = "/"


class CounterRate:
    """The rate of one counter over the last `window_seconds`.

    A counter that has gone back is another one (a cgroup was made again, the machine was restored), and what
    could not be read is not known: both begin a window anew.
    """

    def __init__(self, window_seconds: float) -> None:
        self.window_seconds = window_seconds
        self._samples: deque[tuple[float, int]] = deque()

    def take(self, count: int | None, at_seconds: float) -> None:
        """Record the counter at this time, None where it could not be read; times only go forward."""
        samples = self._samples
        if count is None or (samples and count < samples[-1][1]):
            samples.clear()
        if count is None:
            return
        if len(samples) > 1 and at_seconds - samples[-2][0] < self.window_seconds / _MOST_SAMPLES:
            samples.pop()
        samples.append((at_seconds, count))
        while len(samples) > 2 and samples[1][0] <= at_seconds - self.window_seconds:
            samples.popleft()

    def per_second(self) -> float | None:
        """Return the rate over the window that ends with the last sample; None where it is not known yet."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        if began > ended - self.window_seconds:  # as `take` has it: by a difference it could round otherwise
            return None
        return (last - first) / (ended - began)


class SwapTrafficWatch:
    """Samples the traffic of the node: of `node_cgroup`'s present value, None for the machine."""

    def __init__(
        self, node_cgroup: Callable[[], str | None], *, tree: CgroupTree | None = None, proc: Path = PROC
    ) -> None:
        self._node_cgroup = node_cgroup
        self._proc = proc
        self._tree = tree
        self._cgroup: str | None = None
        self._in = CounterRate(WINDOW_SECONDS)
        self._out = CounterRate(WINDOW_SECONDS)
        self._because: str | None = None

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample(trio.current_time())
            if self._because is None:
                await trio.sleep(_PERIOD_SECONDS)
            else:
                await next_beat(_UNKNOWN_PERIOD_SECONDS)

    def sample(self, at_seconds: float) -> None:
        """Record the counters as they are now."""
        if self._cgroup != self._node_cgroup():  # by a reload
            self._cgroup = self._node_cgroup()
            self._in, self._out = CounterRate(WINDOW_SECONDS), CounterRate(WINDOW_SECONDS)
        counted = self.counted()
        self._in.take(None if counted is None else counted.in_bytes, at_seconds)
        self._out.take(None if counted is None else counted.out_bytes, at_seconds)

    def counted(self) -> SwapTraffic | None:
        """Return the counters as they are now, None without swap and where they are not to be had."""
        cgroup = self._node_cgroup()
        try:
            if not machine_swap(self._proc).total_bytes:
                self._because = "the machine has no swap"
                return None
            if cgroup is not None and self._tree is None:
                self._tree = CgroupTree.discover()
            self._because = None
            return read_swap_traffic(self._tree, cgroup, proc=self._proc)
        except (OSError, ReactorError) as error:
            self._because = str(error)
            return None

    def document(self) -> Mapping[str, Any]:
        """Return it as plain JSON values; rates are None with the reason, or until a window is over."""
        rates = [rate.per_second() for rate in (self._in, self._out)]
        in_rate, out_rate = (None if one is None else round(one) for one in rates)
        return {
            "in_bytes_per_second": in_rate,
            "out_bytes_per_second": out_rate,
            "window_seconds": WINDOW_SECONDS,
            "unknown_because": self._because,
        }


def memory_holders(
    tree: CgroupTree, node: str, held: Mapping[str, Any], *, proc: Path = PROC
) -> dict[str, Any]:
    """Return who holds the working set of the node's cgroup, as plain JSON values and one line in words.

    `held` is what the guard answered (`reactor.guard.reports.memory_held`). memory.stat of the node and of
    each pod is read, which takes too long for the guard.
    `kernel_bytes` is what the kernel holds of the machine ("/") beside the working set, None for a cgroup.
    """
    used_bytes, outside_bytes = held["used_bytes"], held["outside_bytes"]
    kinds = _outside(tree, node, held["cgroups"])
    kernel_bytes = None
    if node == _MACHINE:
        kinds = kinds and replace(kinds, kernel_bytes=0)
        with suppress(OSError, ReactorError):
            kernel_bytes = read_kernel_memory(proc)
    if "counted_as" in held:  # as MemAvailable: page cache is not used, the kernel's memory is
        kinds = kinds and replace(kinds, active_file_bytes=0, kernel_bytes=kernel_bytes or kinds.kernel_bytes)
        kernel_bytes = None
    shown = [] if kinds is None else [(name, getattr(kinds, name)) for name in _SAYS]
    parts = ", ".join(
        f"{_SAYS[name]} {amount_text(amount, Resource.MEMORY)}"
        for name, amount in shown
        if amount >= _MENTIONED_BYTES
    )
    used_text, pods_text, outside_text = (
        amount_text(amount, Resource.MEMORY)
        for amount in (used_bytes, used_bytes - outside_bytes, outside_bytes)
    )
    return {
        "used_bytes": used_bytes,
        "pods_bytes": used_bytes - outside_bytes,
        "outside_bytes": outside_bytes,
        "outside": dict(shown) or None,
        "kernel_bytes": kernel_bytes,
        "never_evicted": held["never_evicted"],
        "message": f"{used_text} used, {pods_text} by pods; {outside_text} belong to no pod"
        + (f" ({parts})" if parts else "")
        + _kept(held["never_evicted"])
        + _beside(kernel_bytes),
    }


def _kept(never_evicted: Mapping[str, Any]) -> str:
    """Return, in words, what pods hold that are never evicted, and the largest of them."""
    if never_evicted["bytes"] < _MENTIONED_BYTES:
        return ""
    largest = ", ".join(
        f"{printable(one['pod'])} {amount_text(one['bytes'], Resource.MEMORY)}"
        for one in never_evicted["largest"]
        if one["bytes"] >= _MENTIONED_BYTES
    )
    whole = amount_text(never_evicted["bytes"], Resource.MEMORY)
    return f"; {whole} are held by pods that are never evicted" + (f" ({largest})" if largest else "")


def _beside(kernel_bytes: int | None) -> str:
    if kernel_bytes is None:
        return ""
    return f"; {amount_text(kernel_bytes, Resource.MEMORY)} of the kernel itself count as available"


def _outside(tree: CgroupTree, node: str, cgroups: Sequence[str]) -> MemoryKinds | None:
    try:
        whole = MemoryKinds.of(tree, node)
    except (OSError, ReactorError):
        return None
    of_pods = []
    for cgroup in cgroups:
        with suppress(OSError, ReactorError):  # gone meanwhile
            of_pods.append(MemoryKinds.of(tree, cgroup))
    return whole.without(of_pods)
