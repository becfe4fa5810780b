"""What a cgroup shows of the pod in it, and whose word that is: attributes, main process, names.

Extended attributes: `user.reactor.priority` is a whole number as in a PodSpec. `user.oomd_omit` and
`user.oomd_avoid` are what systemd sets for ManagedOOMPreference=; as systemd-oomd does, the `trusted.` twin
is taken where the `user.` one is missing. Attributes count only where no user but root may write the cgroup:
one with a delegated cgroup must not be able to exempt it, nor what lies in it (systemd, src/oom/oomd-util.c).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from reactor.errors import KernelInterfaceError, ReactorError
from reactor.kernel.files import KernelFile, parse_integer

NEVER_KILLED: Final = b"-1000"
SLICE: Final = ".slice"
_UNITS_OF_PROCESSES: Final = (".service", ".scope")
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_HELD: Final = 512
_TRUE: Final = frozenset({b"1", b"yes", b"y", b"true", b"t", b"on"})
_FALSE: Final = frozenset({b"0", b"no", b"n", b"false", b"f", b"off"})
_PRIORITY_NAME: Final = "reactor.priority"
_PRIORITY: Final = re.compile(rb"[+-]?[0-9]{1,10}")
_PRIORITIES: Final = range(-(2**31), 2**31)


class MainProcess(NamedTuple):
    """A pod's main process; its `name` is empty if there is none, None if it is not known.

    The main process is the first one that is listed directly in the pod's cgroup: on cgroup v2 the one that
    has been there for longest, on v1 the one of the lowest id. Its oom_score_adj is -1000 by who may do that:
    to go below what a process was given takes CAP_SYS_RESOURCE (proc(5)). Its name anybody chooses.
    """

    name: str | None = None
    is_unkillable: bool = False


UNKNOWN: Final = MainProcess()
_NONE: Final = MainProcess("")
_FIRST_BYTES: Final = 32  # of the list of processes, which may be as long as a tenant likes
# On cgroup v1 a descriptor that is read again within a second shows the list of before
# (CGROUP_PIDLIST_DESTROY_DELAY in kernel/cgroup/cgroup-v1.c).
_LIST_LASTS_SECONDS: Final = 2.0


class MainProcessFiles:
    """What the main process in a cgroup's directory says of itself: `main`, UNKNOWN where it can't be read.

    The files are held open: to open them takes most of the time, and mostly they are as they were.
    """

    __slots__ = ("_files", "_read_seconds", "main")

    def __init__(self, proc: Path, directory: str, now_seconds: float, *, with_name: bool) -> None:
        self.main, self._read_seconds = UNKNOWN, now_seconds
        self._files: list[tuple[KernelFile, bytes]] = []
        with suppress(OSError, ReactorError):
            self.main = self._read(directory, proc, with_name=with_name)

    def are_as_read(self, now_seconds: float) -> bool:
        """Return whether the files that are open show that `main` is as it was."""
        since_seconds, self._read_seconds = self._read_seconds, now_seconds
        if not self._files or self.main is UNKNOWN or now_seconds - since_seconds < _LIST_LASTS_SECONDS:
            return False
        try:
            for file, content in self._files:
                if file.read(_FIRST_BYTES) != content:
                    return False
        except OSError:  # the process is gone, or the cgroup
            return False
        return True

    def close(self) -> None:
        self._files.clear()

    def _read(self, directory: str, proc: Path, *, with_name: bool) -> MainProcess:
        path = f"{directory}/cgroup.procs"
        first, end, _ = self._opened(path).partition(b"\n")
        if first and not end:
            raise KernelInterfaceError(path, first, "process ids, one a line")
        pid = parse_integer(first or b"0", path)
        if not pid:  # there is none, or it is of another pid namespace
            return _NONE
        comm = self._opened(f"{proc}/{pid}/comm") if with_name else None
        name = None if comm is None else comm.rstrip(b"\n").decode("utf-8", "replace")
        return MainProcess(name, self._opened(f"{proc}/{pid}/oom_score_adj").strip() == NEVER_KILLED)

    def _opened(self, path: str) -> bytes:
        file = KernelFile(path)
        self._files.append((file, content := file.read(_FIRST_BYTES)))
        return content


def names_are_trusted(cgroup: str, directory: str) -> bool:
    """Return whether root chose the names of a cgroup's children. Raises OSError if it is gone.

    systemd delegates a subtree to a unit (Delegate=), and one to each user below user@UID.service. What lies
    there is called what its owner likes: `sshd.service` in a user's app.slice is no sshd. So names below a
    service or a scope are the unit's own, whose processes may be a container's root.
    """
    if any(part.endswith(_UNITS_OF_PROCESSES) for part in cgroup.split("/")):
        return False
    return is_roots(os.stat(directory))


def is_roots(found: os.stat_result) -> bool:
    """Return whether no user but root, or the one that the daemon runs as, writes a file or directory."""
    return found.st_uid in {0, os.geteuid()} and not found.st_mode & _OTHERS_MAY_WRITE


def is_written_by_root(directory: str, files: Iterable[str]) -> bool:
    """Return whether no other user may write these files of a cgroup; those that are missing are left out.

    Raises OSError.
    """
    for file in files:
        with suppress(FileNotFoundError):
            if not is_roots(os.stat(f"{directory}/{file}")):
                return False
    return True


def held_in_slices(cgroup: str, directory: str) -> Iterator[str]:
    """Yield the units in a slice and in the slices below it, as far as root chose their names.

    What is no slice holds none. Of an enormous tree only the beginning is listed, and what can't be listed is
    left out: a slice is root's to fill.
    """
    left = _MOST_HELD
    waiting = [(cgroup, directory)] if cgroup.endswith(SLICE) else []
    while waiting:
        above, path = waiting.pop()
        with suppress(OSError):
            if not is_roots(os.stat(path)):
                continue
            with os.scandir(path) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            for name in names[:left]:
                left -= 1
                yield f"{above}/{name}"
                if name.endswith(SLICE):
                    waiting.append((f"{above}/{name}", f"{path}/{name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """A pod's priority, and whether it is to be spared for as long as possible, or altogether."""

    priority: int = 0
    avoid: bool = False
    omit: bool = False
    problems: tuple[str, ...] = ()


def read_attributes(directory: str, *, honours_oomd: bool = True) -> Attributes:
    """Return the attributes of a cgroup's directory; wrong ones count as absent and are named.

    Without `honours_oomd` those that are systemd's are left out. Raises OSError where the cgroup is gone.
    """
    # One call for most cgroups, which have none. trusted.* is listed to CAP_SYS_ADMIN only.
    try:
        names = os.listxattr(directory, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        names = []
    if not names:
        return Attributes()
    problems: list[str] = []
    of_oomd = names if honours_oomd else ()
    found = Attributes(
        priority=_read(directory, names, _PRIORITY_NAME, problems),
        avoid=bool(_read(directory, of_oomd, "oomd_avoid", problems)),
        omit=bool(_read(directory, of_oomd, "oomd_omit", problems)),
        problems=tuple(problems),
    )
    if found == Attributes():
        return found
    status = os.stat(directory)
    if not is_roots(status):
        whose = f"user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}"
        return Attributes(
            problems=(f"attributes of a cgroup owned by {whose} don't count; accepted: root's alone",)
        )
    return found


def parse_priority(raw: bytes) -> int:
    """Return a priority. Raises ValueError with the accepted form."""
    if not _PRIORITY.fullmatch(raw.strip()) or int(raw) not in _PRIORITIES:
        raise ValueError("a whole number of 32 bits such as 1000")
    return int(raw)


def parse_flag(raw: bytes) -> bool:
    """Return a flag as systemd reads one. Raises ValueError with the accepted form."""
    word = raw.strip(b" \n\0").lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("1 or 0")


def _read(directory: str, names: Collection[str], name: str, problems: list[str]) -> int:
    """Return a priority or a flag, 0 for none. Raises OSError."""
    full_name = next((full for full in (f"user.{name}", f"trusted.{name}") if full in names), None)
    if full_name is None:
        return 0
    raw = os.getxattr(directory, full_name, follow_symlinks=False)
    try:
        return parse_priority(raw) if name == _PRIORITY_NAME else parse_flag(raw)
    except ValueError as error:
        problems.append(f"{full_name}: got {raw[:64]!r}; accepted: {error}")
        return 0
