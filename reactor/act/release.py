"""A victim's memory freed soon: in our own context, or by giving the victim CPU for it.

process_mrelease(2) works only while the victim is not exiting yet (ESRCH otherwise), and a victim that has a
CPU starts to exit within 50 us of its SIGKILL. So a thread is waiting already: starting one takes longer than
that, and may fail where a fork bomb has the last process id. On two busy CPUs 400 MiB are free after 30 ms
where it comes in time, and after 100 ms and more where the victim frees them in its own turn. It is asked for
at once also where the victim has a CPU to itself: in time the two are done in half to three quarters of the
time, and too late it costs nothing (docs/latency.md).

Where it does not come in time, the victim frees its memory itself, in its CPU quota and at its weight. On two
busy CPUs freeing 400 MiB takes 25 ms of CPU time; at a weight of 2, the kubelet's for BestEffort pods, that
was 13.6 s of time, and with 1 % of quota 1 GiB was not free after a minute. So quota and weight are raised.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Final

from reactor.act.leftovers import note
from reactor.act.processes import close_all
from reactor.kernel import libc
from reactor.kernel.cgroup import lift_cpu_quota
from reactor.kernel.cgroup_directory import CgroupDirectory
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import GONE, with_path
from reactor.kernel.scheduling import follow_main_thread

_END_SECONDS: Final = 2.0

# The most that each version takes. Both are noted before, and restored once the pod has ended: its cgroup may
# outlive its processes, and its tenant must not be rid of a limit by having been evicted.
_WEIGHT: Final = {CgroupVersion.V1: ("cpu.shares", b"262144"), CgroupVersion.V2: ("cpu.weight", b"10000")}


class MemoryRelease:
    """Frees memory in a thread of its own, started once and for all. Never raises: it is only a help."""

    def __init__(self) -> None:
        self._given = SimpleQueue[list[int] | None]()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Have the thread wait; harmless when repeated, and tried again where none could be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._keep_releasing, name="reactor-release", daemon=True)
            with contextlib.suppress(RuntimeError):  # a fork bomb has the last process id
                thread.start()
                self._thread = thread

    def release(self, pidfds: Iterable[int]) -> None:
        """Free the memory of these processes, which have been sent SIGKILL; returns at once."""
        self.start()
        if self._thread is None:
            return
        own: list[int] = []  # the thread may be at it for longer than the caller holds its descriptors
        with contextlib.suppress(OSError):
            own.extend(os.dup(fd) for fd in pidfds)
        self._given.put(own)

    def close(self) -> None:
        """End the thread, and wait for that while it is not busy for long. Harmless when repeated."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._given.put(None)
            thread.join(_END_SECONDS)

    def _keep_releasing(self) -> None:
        while True:
            follow_main_thread()  # which may have become real-time since
            pidfds = self._given.get()
            if pidfds is None:
                return
            for fd in pidfds:
                with contextlib.suppress(OSError):
                    libc.process_mrelease(fd)
            close_all(pidfds)


def boost_cpu(directory: CgroupDirectory | None, version: CgroupVersion) -> None:
    """Lift the CPU quotas in a cgroup, and have it outweigh its siblings. Raises OSError where refused.

    `directory` is the one in the cpu controller's hierarchy; without it (None) there is nothing to do.
    """
    if directory is None:
        return
    name, most = _WEIGHT[version]
    try:
        before = directory.read(name).strip()
        if before != most:
            note(directory, name, before)
            directory.write(name, most)
    except OSError as error:
        if error.errno not in GONE:
            raise with_path(error, f"{directory.cgroup}/{name}") from None
    finally:
        lift_cpu_quota(directory, version, note)
