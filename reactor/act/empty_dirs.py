"""An emptyDir ends with its pod: what lies in those of an evicted pod of a plain node is removed.

In Kubernetes the kubelet sees to that. Only an emptyDir, which promises nothing to be kept, is ever emptied;
its directory stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.filesystem import wait_given_back
from reactor.kernel.scheduling import following
from reactor.model.pods import Pod
from reactor.threads import in_thread

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEEPEST: Final = 200


class EmptyDirs:
    """Empties the emptyDirs of pods that have ended."""

    def __init__(self, tree: CgroupTree) -> None:
        self._tree = tree

    async def empty(self, pod: Pod) -> tuple[str, ...]:
        """Empty a pod's emptyDirs and return what went wrong, in a thread: a disk may take its time.

        Where somebody lives in the pod's cgroup again, its files are theirs and stay.
        """
        paths = tuple(empty_dirs(pod))
        if paths and self._lives(pod):
            return ("its volumes were not emptied: it runs again",)
        problems: list[str] = []
        for path in paths:
            found = await in_thread(following(_emptied), path, abandon_on_cancel=True)
            problems += [f"{path} was not emptied: {found}"] if found is not None else []
        return tuple(problems)

    def _lives(self, pod: Pod) -> bool:
        try:
            return pod.cgroup is not None and bool(self._tree.processes(pod.cgroup))
        except (OSError, ReactorError):
            return False


def empty_dirs(pod: Pod) -> Iterator[str]:
    """Return the paths of a pod's emptyDirs that are not the kubelet's to remove."""
    return (place.path for place in pod.storage if place.ends_with_pod)


def _emptied(path: str) -> str | None:
    """Empty a directory, see empty_directory, and return when what it held shows as free."""
    problem = empty_directory(path)
    with suppress(OSError):
        wait_given_back(path)
    return problem


def empty_directory(path: str) -> str | None:
    """Remove all that lies in a directory; return what could not be removed, None where nothing is left.

    No symlink is followed and no mount below is entered, whatever is exchanged meanwhile: everything is
    done relative to descriptors of directories that were opened as such.
    """
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    try:
        return _empty(fd, os.fstat(fd).st_dev, 0)
    except OSError as error:
        return str(error.strerror)
    finally:
        os.close(fd)


def _empty(fd: int, device: int, depth: int) -> str | None:
    """Empty the directory that a descriptor holds; see empty_directory."""
    if depth > _DEEPEST:
        return f"directories are nested more than {_DEEPEST} deep"
    problem = None
    with os.scandir(fd) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        try:
            problem = _remove(fd, name, device, depth) or problem
        except FileNotFoundError:
            continue  # gone by itself
        except OSError as error:
            problem = f"{name}: {error.strerror}"
    return problem


def _remove(fd: int, name: str, device: int, depth: int) -> str | None:
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=fd)
        return None
    below = os.open(name, _OPEN, dir_fd=fd)
    try:
        if os.fstat(below).st_dev != device:
            return f"{name}: another filesystem is mounted there"
        problem = _empty(below, device, depth + 1)
    finally:
        os.close(below)
    if problem is None:
        with suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=fd)
    return problem
