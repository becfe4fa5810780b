"""The kill path, tried once against a child of our own.

A refused kill (a seccomp filter, a missing capability) must be noticed at the start, not when memory runs
out.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, Controller
from reactor.model.pods import Pod

_DEADLINE_MS: Final = 2_000
_REMOVAL_TRIES: Final = 50


def exercise(
    tree: CgroupTree, pod_parents: Sequence[str], kill: Callable[[str, Pod], Sequence[str]]
) -> str | None:
    """Return None if `kill`, given a parent of pods and a pod in it, killed the child, else what went wrong.

    The child lives in a cgroup beside the first of `pod_parents`, without patterns (further up while that
    doesn't exist yet), so that it is not taken for a pod, and in the hierarchies in which pods of that parent
    may be mirrored. Blocks for some 50 ms, and for seconds only if the kill doesn't work.
    """
    made: list[Path] = []
    try:
        beside = os.path.dirname(pod_parents[0]) if pod_parents else "/"
        while not tree.exists(beside) and beside != "/":
            beside = os.path.dirname(beside)
        parent = f"{beside.rstrip('/')}/reactor-exercise-{os.getpid()}"
        roots = _mirrors(tree, beside)
        for cgroup in (parent, f"{parent}/child"):
            for directory in dict.fromkeys(tree.path(cgroup, controller) for controller in roots):
                directory.mkdir()
                made.append(directory)
        return _kill_child(partial(kill, parent), f"{parent}/child", made)
    except (OSError, ReactorError) as error:
        return f"kill path: {error}"
    finally:
        for directory in reversed(made):
            _remove(directory)


def _mirrors(tree: CgroupTree, cgroup: str) -> list[Controller]:
    everywhere: tuple[Controller, ...] = ("memory", "freezer", "cpu")
    return [controller for controller in everywhere if tree.exists(cgroup, controller)]


def _kill_child(kill: Callable[[Pod], Sequence[str]], cgroup: str, directories: Sequence[Path]) -> str | None:
    # A new program rather than a fork: our own locked memory and threads stay out of it.
    command = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
    child = os.posix_spawn(sys.executable, command, os.environ, setsigmask=[])
    child_fd = os.pidfd_open(child)
    try:
        for directory in directories[len(directories) // 2 :]:
            (directory / "cgroup.procs").write_text(str(child))
        problems = "; ".join(kill(Pod(name="exercise", namespace="reactor", uid="exercise", cgroup=cgroup)))
        if not _exited(child_fd):
            return f"kill path: a test process survived SIGKILL; {problems or 'no errors'}"
        return f"kill path: {problems}" if problems else None
    finally:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(child_fd, signal.SIGKILL)
        if _exited(child_fd):
            os.waitpid(child, 0)
        os.close(child_fd)


def _exited(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(_DEADLINE_MS))


def _remove(directory: Path) -> None:
    """Remove a cgroup; what a child leaves behind may keep it busy for a moment."""
    for _ in range(_REMOVAL_TRIES):
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return
