"""How much goes to swap and comes back a second, for status, top and the metrics; nothing decides by it here.

It is sampled every two seconds and read afresh for a scrape: the steward's, since it is shown and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC
from reactor.kernel.swap import SwapTraffic, machine_swap, read_swap_traffic
from reactor.observe.counter_rate import CounterRate

WINDOW_SECONDS: Final = 10.0
_PERIOD_SECONDS: Final = 2.0


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
            await trio.sleep(_PERIOD_SECONDS)

    def sample(self, at_seconds: float) -> None:
        """Take note of the counters as they are now."""
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
