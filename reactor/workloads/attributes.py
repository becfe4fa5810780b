"""What a cgroup's extended attributes say of the pod in it.

`user.reactor.priority` is a whole number as in a PodSpec. `user.oomd_omit` and `user.oomd_avoid` are what
systemd sets for ManagedOOMPreference=; as systemd-oomd does, the `trusted.` twin is taken where the `user.`
one is missing. Attributes count only where no user but root may write the cgroup: one with a delegated cgroup
must not be able to exempt it, nor what lies in it (systemd, src/oom/oomd-util.c).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeVar

from reactor.workloads.trusted_names import is_roots

_TRUE: Final = frozenset({b"1", b"yes", b"y", b"true", b"t", b"on"})
_FALSE: Final = frozenset({b"0", b"no", b"n", b"false", b"f", b"off"})
_PRIORITY: Final = re.compile(rb"[+-]?[0-9]{1,10}")
_PRIORITIES: Final = range(-(2**31), 2**31)
_Value = TypeVar("_Value")


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
        priority=_read(directory, names, "reactor.priority", parse_priority, problems) or 0,
        avoid=_read(directory, of_oomd, "oomd_avoid", parse_flag, problems) or False,
        omit=_read(directory, of_oomd, "oomd_omit", parse_flag, problems) or False,
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


def _read(
    directory: str,
    names: Collection[str],
    name: str,
    parse: Callable[[bytes], _Value],
    problems: list[str],
) -> _Value | None:
    full_name = next((full for full in (f"user.{name}", f"trusted.{name}") if full in names), None)
    if full_name is None:
        return None
    raw = os.getxattr(directory, full_name, follow_symlinks=False)
    try:
        return parse(raw)
    except ValueError as error:
        problems.append(f"{full_name}: got {raw[:64]!r}; accepted: {error}")
        return None
