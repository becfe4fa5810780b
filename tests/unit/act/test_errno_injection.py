"""Every system call of the kill path fails once, with each errno in turn; and some fail for good.

The calls are replaced where Python makes them. Nothing but what is documented may be raised, everybody is
signalled all the same, and no descriptor is left open.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from reactor.act.kill_path import KillPath
from reactor.kernel import libc
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.model.pods import Pod

pytestmark = pytest.mark.suite("errno injection")

CALLS: Final = (
    (os, "open"),
    (os, "read"),
    (os, "write"),
    (os, "pread"),
    (os, "pwrite"),
    (os, "scandir"),
    (os, "listxattr"),
    (os, "stat"),
    (os, "fstat"),
    (os, "dup"),
    (os, "pidfd_open"),
    (signal, "pidfd_send_signal"),
    (os, "close"),
    (libc, "process_mrelease"),
)
ERRNOS: Final = (
    errno.EPERM,
    errno.EINTR,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENODEV,
    errno.ENAMETOOLONG,
)
PARENT: Final = "/pods"
POD: Final = Pod(name="pod", namespace="test", uid="1", cgroup=f"{PARENT}/pod")


class Faults:
    """Counts the calls of this thread, and has those fail that `fails` names by name and number."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts: dict[str, int] = {}
        self.fails: Callable[[str, int, tuple[Any, ...]], int | None] = lambda *_: None
        self._patch = patch
        self._thread = threading.get_ident()

    @contextmanager
    def injected(self) -> Iterator[None]:
        with self._patch.context() as patch:
            for module, name in CALLS:
                patch.setattr(module, name, self._failing(name, getattr(module, name)))
            yield

    def _failing(self, name: str, really: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread and name != "process_mrelease":
                return really(*arguments, **named)
            self.counts[name] = self.counts.get(name, 0) + 1
            number = self.fails(name, self.counts[name], arguments)
            if number is None:
                return really(*arguments, **named)
            if name == "close":
                really(*arguments)  # as the kernel does: the descriptor is gone
            raise OSError(number, os.strerror(number))

        return call


class World:
    """Processes in cgroups that are directories; each listing shows all that are alive and were put there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("pod", "pod/one", "pod/other", "pod/other/inner"):
            (root / PARENT[1:] / name).mkdir(parents=True)
        (root / PARENT[1:] / "pod" / "pids.max").write_text("max\n")
        (root / PARENT[1:] / "pod" / "freezer.state").write_text("THAWED\n")
        (root / PARENT[1:] / "pod" / "cpu.cfs_quota_us").write_text("1000\n")
        (root / PARENT[1:] / "pod" / "cpu.shares").write_text("2\n")
        self.tree = CgroupTree(
            version=CgroupVersion.V1, memory_root=root, pids_root=root, cpu_root=root, freezer_root=root
        )

    def fill(self, count: int = 3) -> list[subprocess.Popen[bytes]]:
        """Start processes, spread over the cgroups."""
        children = [subprocess.Popen(["sleep", "100"]) for _ in range(count)]
        names = ("pod", "pod/one", "pod/other/inner")
        for place, name in enumerate(names):
            pids = [child.pid for child in children[place :: len(names)]]
            text = "".join(f"{pid}\n" for pid in pids)
            (self.root / PARENT[1:] / name / "cgroup.procs").write_text(text)
        (self.root / PARENT[1:] / "pod" / "other" / "cgroup.procs").write_text("")
        return children


@pytest.fixture
def world(tmp_path: Path) -> World:
    gc.collect()  # what closes an earlier test's descriptors in between would look like one too few
    return World(tmp_path)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def end(children: list[subprocess.Popen[bytes]]) -> list[int]:
    """Return what ended the processes; those that live are ended, and show as alive (0).

    A process that has got SIGKILL dies of that, however late it does and whatever signal comes after it.
    """
    for child in children:
        child.send_signal(signal.SIGUSR1)
    ended = [child.wait() for child in children]
    return [0 if status == -signal.SIGUSR1 else status for status in ended]


def calls_of_a_kill(world: World, faults: Faults, *, prepared: int) -> dict[str, int]:
    """Return how often a kill makes each call."""
    children = world.fill()
    kill_path = KillPath(world.tree, (PARENT,))
    kill_path.prepare([POD] * prepared)
    faults.counts.clear()
    with faults.injected():
        kill_path.kill_now(POD)
    kill_path.close()
    assert [-signal.SIGKILL] * 3 == end(children)
    return dict(faults.counts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "prepared"),
    [(errno.ENOMEM, 0), (errno.EMFILE, 0), (errno.ENODEV, 0), (errno.EINTR, 1)],
    ids=["ENOMEM", "EMFILE", "ENODEV", "EINTR-prepared"],
)
def test_a_call_that_fails_once_keeps_no_process_alive_and_leaves_no_descriptor(
    world: World, faults: Faults, number: int, prepared: int
) -> None:
    counts = calls_of_a_kill(world, faults, prepared=prepared)
    assert counts["open"] > 5
    before = descriptors()
    wrong = []
    for name, count in counts.items():
        for position in range(1, count + 1):
            children = world.fill()
            kill_path = KillPath(world.tree, (PARENT,))
            kill_path.prepare([POD] * prepared)
            faults.counts.clear()
            faults.fails = lambda called, nth, _, at=(name, position): number if (called, nth) == at else None
            with faults.injected():
                report = kill_path.kill_now(POD)
            kill_path.close()
            ended = end(children)
            if ended != [-signal.SIGKILL] * 3 or report.is_gone or descriptors() != before:
                wrong.append((name, position, ended, report, sorted(descriptors() - before)))
    assert [] == wrong


@pytest.mark.parametrize("number", ERRNOS, ids=lambda number: errno.errorcode[number])
def test_a_call_that_fails_for_good_raises_nothing_but_what_is_documented_and_leaves_no_descriptor(
    world: World, faults: Faults, number: int
) -> None:
    names = calls_of_a_kill(world, faults, prepared=0)
    before = descriptors()
    for name in names:
        children = world.fill()
        kill_path = KillPath(world.tree, (PARENT,))
        faults.fails = lambda called, _nth, _, at=name: number if called == at else None
        problems: tuple[str, ...] = ()
        failed = False
        try:
            with faults.injected():
                problems = kill_path.kill_now(POD).problems
        except OSError as error:
            problems, failed = (str(error),), True
        ended = end(children)
        assert not failed or ended == [0, 0, 0], name  # somebody killed is a kill with problems
        assert (
            ended == [-signal.SIGKILL] * 3
            or any(os.strerror(number) in one for one in problems)
            or (
                number == errno.ENODEV  # what says of itself that it is gone is not asked again
            )
        ), (name, ended, problems)
        kill_path.close()
        assert before == descriptors(), name


def _process_of(call: str, argument: int) -> int:
    """Return the process that a call is about, by its first argument."""
    return argument if call == "pidfd_open" else _pid_of(argument)


def _pid_of(pidfd: int) -> int:
    text = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    return int(text.split("Pid:")[1].split()[0])


@pytest.mark.parametrize("call", ["pidfd_send_signal", "pidfd_open"])
def test_one_process_of_twenty_that_refuses_is_a_line_and_the_others_die(
    world: World, faults: Faults, call: str
) -> None:
    children = world.fill(20)
    immune = children[7].pid
    before = descriptors()
    kill_path = KillPath(world.tree, (PARENT,))
    faults.fails = lambda name, _nth, arguments: (
        errno.EPERM if name == call and _process_of(name, arguments[0]) == immune else None
    )
    with faults.injected():
        report = kill_path.kill_now(POD)
    kill_path.close()
    assert 19 == report.processes
    assert (f"process {immune} not sent SIGKILL: Operation not permitted",) == report.problems
    assert before == descriptors()
    assert [0 if child.pid == immune else -signal.SIGKILL for child in children] == end(children)


def test_a_kill_that_no_process_of_a_pod_takes_has_failed_with_one_line_for_all(
    world: World, faults: Faults
) -> None:
    children = world.fill(20)
    before = descriptors()
    kill_path = KillPath(world.tree, (PARENT,))
    faults.fails = lambda name, *_: errno.EPERM if name == "pidfd_send_signal" else None
    with faults.injected(), pytest.raises(PermissionError, match=r"\(and 19 more\)"):
        kill_path.kill_now(POD)
    kill_path.close()
    assert before == descriptors()
    assert [0] * 20 == end(children)
