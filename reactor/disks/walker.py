"""The walker: a process that goes through tenants' files and says what they take, and that may die.

    python -m reactor.disks.walker PARENT_PID HEARTBEAT_SECONDS [QUOTAS]

Its standard input is a SOCK_SEQPACKET socket. QUOTAS is a descriptor on which project quotas are asked for
(`reactor.privileged`).

It has nothing of the daemon's but that socket, over which it is asked and answers (`walk_messages`): no lock
on its memory and no real-time priority; a bound on its memory; and of all that the kernel could kill for want
of memory it is missed the least. It ends with the daemon.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from reactor.disks.places import Pace, Places, Quota
from reactor.disks.walk_messages import (
    LONGEST_REQUEST,
    Add,
    Drop,
    Hurry,
    Kind,
    Look,
    Report,
    read_request,
    write_report,
)
from reactor.kernel.capabilities import keep_capabilities
from reactor.kernel.filesystem import project_usage
from reactor.kernel.libc import set_io_priority, signal_at_parents_death
from reactor.privileged.quotas import ProjectQuotas

_ADDRESS_SPACE_BYTES: Final = 128 << 20  # 40 MiB are Python's own, of which it touches 16
_DESCRIPTORS: Final = 4096  # two for each place that takes long
_STACK_BYTES: Final = 256 << 10
_NICE: Final = 10
_IDLE_IO_CLASS: Final = 3 << 13


class _Walker:
    """Answers one daemon until that closes the socket."""

    def __init__(self, daemon: socket.socket, heartbeat_seconds: float, quota: Quota) -> None:
        self._daemon = daemon
        self._heartbeat_seconds = heartbeat_seconds
        self._places = Places(self._report, quota=quota)
        self._pace = Pace()
        self._look: int | None = None
        self._worked_before_seconds = 0.0
        self._is_busy = threading.Event()

    def run(self) -> None:
        threading.stack_size(_STACK_BYTES)
        threading.Thread(target=self._beat, daemon=True).start()
        while self._take_requests():
            self._places.turn(self._pace)
            if self._look is not None and self._places.is_settled:
                self._places.tell_all_so_far()
                worked_seconds = self._pace.worked_seconds - self._worked_before_seconds
                self._report(
                    Report(kind=Kind.LOOKED, place=self._look, nanoseconds=int(worked_seconds * 1e9))
                )
                self._look = None
                self._pace.relax()
            if self._places.is_idle and self._is_busy.is_set():
                self._is_busy.clear()
                self._report(Report(kind=Kind.IDLE))

    def _take_requests(self) -> bool:
        """Do what is asked, and wait for it where there is nothing else to do; return False at the end."""
        timeout_seconds = None if self._places.is_idle else 0.0
        while select.select([self._daemon], [], [], timeout_seconds)[0]:
            raw = self._daemon.recv(LONGEST_REQUEST)
            if not raw:
                return False
            self._is_busy.set()  # each request may hang, at a directory to be opened or closed
            timeout_seconds = 0.0
            match read_request(raw):
                case Add(place, pod, path):
                    self._places.add(place, pod, path)
                case Drop(place):
                    self._places.drop(place)
                case Look(number):
                    self._look = number
                    self._worked_before_seconds = self._pace.worked_seconds
                    self._places.due()
                case Hurry():
                    self._pace.hurry()
        return True

    def _beat(self) -> None:
        """Say how long the present step has taken, every now and then while anything is under way."""
        while True:
            self._is_busy.wait()
            time.sleep(self._heartbeat_seconds)
            place = self._places.at
            took_seconds = 0.0 if place is None else time.monotonic() - self._places.step_seconds
            self._report(
                Report(kind=Kind.ALIVE, place=place or 0, nanoseconds=max(0, int(took_seconds * 1e9)))
            )

    def _report(self, report: Report) -> None:
        try:
            self._daemon.send(write_report(report))
        except OSError:  # the daemon is gone
            os._exit(0)


def _become_expendable(parent_pid: int) -> None:
    """Take every bound and no privilege but the rights to read; see the module's docstring."""
    signal_at_parents_death(signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, meant for the daemon
    os.chdir("/")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(_NICE)
    with suppress(OSError):
        set_io_priority(_IDLE_IO_CLASS)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, most), min(_DESCRIPTORS, most)))
    keep_capabilities({"CAP_DAC_READ_SEARCH"})


def main(arguments: list[str]) -> None:
    """Answer the daemon until it closes its end."""
    parent_pid, heartbeat_seconds = int(arguments[0]), float(arguments[1])
    _become_expendable(parent_pid)
    quota = ProjectQuotas(int(arguments[2])).usage if len(arguments) > 2 else project_usage
    with socket.socket(fileno=os.dup(0)) as daemon:
        _Walker(daemon, heartbeat_seconds, quota).run()


if __name__ == "__main__":
    main(sys.argv[1:])
