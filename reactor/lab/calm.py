"""Whether this machine is one to measure on now: room for a virtual node, and no task short of memory."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError
from reactor.kernel.procfs import read_meminfo
from reactor.lab.crossing import CAPACITY_BYTES
from reactor.lab.hog import MIB

_ROOM_BYTES: Final = 256 * MIB
_MOST_PRESSURE_PERCENT: Final = 5.0
_SCARCE_SHARE: Final = 0.25


def check_machine(proc: Path = Path("/proc")) -> None:
    """Raise RefusedError where there is no room for a virtual node, or memory is scarce and waited for."""
    machine = read_meminfo(proc)
    available_bytes = machine.free_bytes if machine.available_bytes is None else machine.available_bytes
    wanted_bytes = CAPACITY_BYTES + _ROOM_BYTES
    if available_bytes < wanted_bytes:
        raise RefusedError(
            f"the machine has {available_bytes // MIB} MiB of memory available, and measuring may take "
            f"{wanted_bytes // MIB} MiB: a virtual node of {CAPACITY_BYTES // MIB} MiB, and room beside it"
        )
    pressure = memory_pressure_percent(proc)
    # With memory left, what stalls is a cgroup at a limit of its own, and no concern of the machine.
    if pressure > _MOST_PRESSURE_PERCENT and available_bytes < machine.total_bytes * _SCARCE_SHARE:
        raise RefusedError(
            f"the machine is in memory pressure: {available_bytes // MIB} MiB are available, and tasks were "
            f"stalled {pressure:g} % of the last ten seconds (/proc/pressure/memory, some avg10; up to "
            f"{_MOST_PRESSURE_PERCENT:g} % is taken)"
        )


def memory_pressure_percent(proc: Path = Path("/proc")) -> float:
    """Return how much of the last ten seconds some task was stalled for memory; 0 where it is not known."""
    with suppress(OSError):
        found = re.search(r"^some avg10=([0-9.]+)", (proc / "pressure/memory").read_text(), re.MULTILINE)
        return float(found[1]) if found else 0.0
    return 0.0
