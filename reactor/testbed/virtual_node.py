"""A virtual node: a cgroup with a limit of its own, its children the pods.

The real thing runs in it on any machine without endangering the machine: the limit is the capacity. It is
made at the root of the hierarchies, so it doesn't matter in which cgroup we run ourselves.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from reactor.act import processes
from reactor.act.cgroup_changes import frozen
from reactor.act.processes import SignalSweep
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree, Controller
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import read_file, write_file

_CONTROLLERS: Final[tuple[Controller, ...]] = ("memory", "cpu", "freezer", "pids")
_CLEAN_UP_SECONDS: Final = 20.0
_PRIORITY_ATTRIBUTE: Final = "reactor.priority"
# $$ stays the same across exec, so the command is in its cgroups from its first instruction on. The daemon's
# protection from the OOM killer, where we have it, is not the pods'. In another namespace of processes $$
# names another process in our /proc, self does not.
_ENTER: Final = (
    "echo 0 > /proc/self/oom_score_adj; "
    'while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'
)


class VirtualNode:
    """A cgroup with `memory_bytes` as its capacity. A context manager: it leaves no cgroup and no process.

    `swap_bytes` is its limit of swap (cgroup v2), None for none. A name with "/" lies in a cgroup that is
    there and holds no process of its own. Raises OSError where cgroups can't be made (no root, a read-only
    hierarchy).
    """

    def __init__(
        self, tree: CgroupTree, memory_bytes: int, name: str | None = None, *, swap_bytes: int | None = None
    ) -> None:
        self.tree = tree
        self.memory_bytes = memory_bytes
        self.swap_bytes = swap_bytes
        self.cgroup = f"/{name or f'reactor-lab-{os.getpid()}'}"
        self._children: list[subprocess.Popen[bytes]] = []
        self._made = False

    def __enter__(self) -> Self:
        for directory in self._directories(self.cgroup, _CONTROLLERS):
            if directory.exists():  # not ours: cleaning up would end what is in it
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))
        _delegate(self.tree, "/")
        if above := self.cgroup.rpartition("/")[0]:
            _delegate(self.tree, above)
        self._made = True
        try:
            self._make(self.cgroup)
            self.tree.set_memory_limit(self.cgroup, self.memory_bytes)
            if self.swap_bytes is not None:
                write_file(self.tree.path(self.cgroup) / "memory.swap.max", str(self.swap_bytes))
            _delegate(self.tree, self.cgroup)
        except BaseException:
            self.clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clean_up()

    def add_pod(
        self,
        name: str,
        *,
        request_bytes: int = 0,
        limit_bytes: int | None = None,
        cpu_quota_us: int | None = None,
        priority: int | None = None,
    ) -> str:
        """Make a pod's cgroup and return it: with a request as high as the limit it is Guaranteed.

        One inside another ("parent/pod") gets the controllers through it, which then takes no process on v2.
        """
        cgroup = f"{self.cgroup}/{name}"
        if "/" in name:
            _delegate(self.tree, cgroup.rpartition("/")[0])
        self._make(cgroup)
        if limit_bytes is not None:
            self.tree.set_memory_limit(cgroup, limit_bytes)
        if request_bytes:
            self.tree.set_memory_request(cgroup, request_bytes)
        if cpu_quota_us is not None:
            self.tree.set_cpu_quota(cgroup, cpu_quota_us)
        if priority is not None:
            # v1 takes no user.* attributes on its directories; trusted.* needs CAP_SYS_ADMIN.
            space = "user" if self.tree.version is CgroupVersion.V2 else "trusted"
            os.setxattr(self.tree.path(cgroup), f"{space}.{_PRIORITY_ATTRIBUTE}", str(priority).encode())
        return cgroup

    def spawn(
        self, cgroup: str, command: Sequence[str], *, controllers: Sequence[Controller] = _CONTROLLERS
    ) -> subprocess.Popen[bytes]:
        """Start a command inside the pod, its memory charged there from its first page on.

        It is inside on return, on v1 in the given hierarchies only. To be called in the main thread: the
        allocator ends with the thread that started it.
        """
        paths = [str(directory / "cgroup.procs") for directory in self._directories(cgroup, controllers)]
        child = subprocess.Popen(
            ["/bin/sh", "-c", _ENTER, "sh", *paths, "--", *command], stdin=subprocess.DEVNULL
        )
        self._children.append(child)
        inside = str(child.pid).encode()  # it enters them in this order
        while child.poll() is None and inside not in read_file(paths[-1]).split():
            time.sleep(0.0005)
        return child

    def usage_path(self) -> Path:
        """Return the file that shows the node's memory usage in bytes."""
        name = "memory.current" if self.tree.version is CgroupVersion.V2 else "memory.usage_in_bytes"
        return self.tree.path(self.cgroup) / name

    def usage_bytes(self) -> int:
        """Return the node's memory usage, page cache included."""
        return int(read_file(self.usage_path()))

    def remove_pod(self, cgroup: str) -> None:
        """End what runs in the pod and remove its cgroup. Raises TimeoutError if that doesn't succeed."""
        deadline = time.monotonic() + _CLEAN_UP_SECONDS
        while not self._gone(cgroup):
            if time.monotonic() > deadline:
                raise TimeoutError(f"cgroup {cgroup} could not be removed in {_CLEAN_UP_SECONDS:g} s")
            time.sleep(0.005)

    def clean_up(self) -> None:
        """Remove every pod and the node. A second time is harmless; signals wait until it is done."""
        if not self._made:
            return
        with _signals_held():
            for child in self._children:
                child.kill()  # also one that is still on its way into its pod
            self.remove_pod(self.cgroup)
            for child in self._children:
                child.wait()
            self._children.clear()
            self._made = False

    def _gone(self, cgroup: str) -> bool:
        for child in self._children:
            child.poll()  # a zombie of ours keeps its cgroup busy on v1
        with suppress(FileNotFoundError), self.tree.open(cgroup) as directory:
            with self._frozen(cgroup):
                sweep = SignalSweep(directory, signal.SIGKILL)
                sweep.fire()
            processes.close_all(sweep.held.values())
        removed = [_removed(directory) for directory in self._directories(cgroup, _CONTROLLERS)]
        return all(removed)

    @contextmanager
    def _frozen(self, cgroup: str) -> Iterator[None]:
        with ExitStack() as stack:
            directory = None
            with suppress(FileNotFoundError, RefusedError):
                directory = stack.enter_context(self.tree.open(cgroup, "freezer"))
            stack.enter_context(frozen(directory, self.tree.version, lambda _: None))
            yield

    def _make(self, cgroup: str) -> None:
        for directory in self._directories(cgroup, _CONTROLLERS):
            directory.mkdir()

    def _directories(self, cgroup: str, controllers: Sequence[Controller]) -> list[Path]:
        roots: dict[Controller, Path | None] = {
            "memory": self.tree.memory_root,
            "cpu": self.tree.cpu_root,
            "freezer": self.tree.freezer_root,
            "pids": self.tree.pids_root,
        }
        found = [self.tree.path(cgroup, controller) for controller in controllers if roots[controller]]
        return list(dict.fromkeys(found))


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into a KeyboardInterrupt, so that they clean up as Ctrl-C does."""

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, disposition in before.items():
            signal.signal(number, disposition)


@contextmanager
def _signals_held() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _delegate(tree: CgroupTree, cgroup: str) -> None:
    """Give the children of a v2 cgroup the controllers; v1 has them everywhere."""
    if tree.version is CgroupVersion.V2:
        for controller in ("memory", "cpu", "pids"):
            write_file(tree.path(cgroup) / "cgroup.subtree_control", f"+{controller}")


def _removed(directory: Path) -> bool:
    """Remove a cgroup and those below it; return whether it is gone."""
    with suppress(FileNotFoundError):
        for entry in list(directory.iterdir()):
            if entry.is_dir():
                _removed(entry)
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # EBUSY: something in it has not died yet
        return False
    return True
