"""The largest processes of a pod: what each holds by kind, its age, and as much of its command as is safe.

A command line is its process's own to write, any bytes of any length at any time, and people write secrets
into it. What is written down is decided here, once:

- the program's name (argv[0]), 80 characters at most;
- options by their names alone: `--token=…`, `-p…`; the word that follows an option is `…`, but for the
  module after `-m` and the file after `-jar`;
- the first other word if it looks like a file, a module or a subcommand, 64 characters at most; every
  further one is `…`;
- at most eight words. Nothing of the environment.

Reading a command line takes the lock of the process's memory map, and a task that holds the lock blocks the
reader for as long. So it is read in a thread of its own. Reading sends no signal and traces nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from heapq import nlargest
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import walk
from reactor.kernel.files import close_descriptor
from reactor.kernel.procfs import (
    PROC,
    optional_kib_line,
    parse_process_memory,
    read_resident_bytes,
    read_start_ticks,
)
from reactor.text import printable

MOST_PROCESSES: Final = 5
_MOST_LISTED: Final = 4096
_MOST_SECONDS: Final = 0.2
_READ_BYTES: Final = 4096
_STATUS_BYTES: Final = 8192
_PROGRAM_CHARACTERS: Final = 80
_WORD_CHARACTERS: Final = 64
_OPTION_CHARACTERS: Final = 32
_NAME_CHARACTERS: Final = 32
_MOST_WORDS: Final = 8
_HIDDEN: Final = "…"
# Options of interpreters whose value is what runs: a module, an archive.
_NAMES_PROGRAM: Final = frozenset({"-m", "-jar"})
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./@+-]+")
# Long without a separator, with digits and letters: a key rather than a name.
_LIKE_A_KEY: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_+@-]{20,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenProcess:
    """A process as it was seen. `command` is fit for people; `age_seconds` is None if it is not known."""

    pid: int
    name: str
    command: str
    age_seconds: float | None
    anonymous_bytes: int
    file_bytes: int
    shared_bytes: int
    swap_bytes: int

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The largest processes of a pod, the largest first, as of `at_seconds` (CLOCK_MONOTONIC).

    `count` is how many were looked at; there are more where `is_partial`.
    """

    at_seconds: float
    processes: tuple[SeenProcess, ...]
    count: int
    is_partial: bool = False


def largest_processes(
    tree: CgroupTree, cgroup: str, *, proc: Path = PROC, most_seconds: float = _MOST_SECONDS
) -> Seen:
    """Return the largest processes in a cgroup and below; what is gone or can't be read is left out.

    4,096 are looked at, for a fifth of a second. Raises OSError if the cgroup is gone.
    """
    until_seconds = time.monotonic() + most_seconds
    sizes: dict[int, int] = {}
    is_partial = False
    for pid in _listed(tree, cgroup):
        is_partial = len(sizes) >= _MOST_LISTED or time.monotonic() > until_seconds
        if is_partial:
            break
        with suppress(OSError, ReactorError):
            sizes[pid] = read_resident_bytes(pid, proc)
    found = []
    for pid in nlargest(MOST_PROCESSES, sizes, key=sizes.__getitem__):
        with suppress(OSError, ReactorError):
            seen = _seen(pid, proc)
            if seen is not None:
                found.append(seen)
    return Seen(at_seconds=time.monotonic(), processes=tuple(found), count=len(sizes), is_partial=is_partial)


def _listed(tree: CgroupTree, cgroup: str) -> Iterator[int]:
    with tree.open(cgroup) as top, closing(walk(top, lambda *_: None)) as directories:
        for directory in directories:
            with suppress(OSError):
                yield from directory.processes() or (0,)  # an empty one takes time, too


def _seen(pid: int, proc: Path) -> SeenProcess | None:
    command = ""  # read first: of one that still has its memory afterwards it is whole
    with suppress(OSError):
        command = command_text(_head(f"{proc}/{pid}/cmdline", _READ_BYTES))
    status = _head(f"{proc}/{pid}/status", _STATUS_BYTES)
    memory = parse_process_memory(status, pid)
    if memory is None:
        return None
    name = printable(memory.name)[:_NAME_CHARACTERS]
    age_seconds = None
    with suppress(OSError, ReactorError):
        started_seconds = read_start_ticks(proc, pid) / os.sysconf("SC_CLK_TCK")
        age_seconds = round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_seconds), 1)
    return SeenProcess(
        pid=pid,
        name=name,
        command=command or f"[{name}]",
        age_seconds=age_seconds,
        anonymous_bytes=memory.anonymous_bytes,
        file_bytes=optional_kib_line(status, b"RssFile:", "/proc/PID/status") or 0,
        shared_bytes=memory.shared_bytes,
        swap_bytes=memory.swap_bytes,
    )


def _head(path: str, most_bytes: int) -> bytes:
    """Return the beginning of a file of /proc. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.read(fd, most_bytes)
    finally:
        close_descriptor(fd)


def command_text(raw: bytes) -> str:
    """Return what may be written down of a command line, as /proc/PID/cmdline has it; empty for none."""
    words = [os.fsdecode(word) for word in raw.rstrip(b"\0").split(b"\0")]
    if len(words) == 1:  # a process that has written its own title, all in one
        words = words[0].split(" ")
    program, *arguments = words
    shown = [_cut(printable(program), _PROGRAM_CHARACTERS)]
    previous, has_word = "", False
    for argument in filter(None, arguments):
        if len(shown) == _MOST_WORDS:
            shown.append(_HIDDEN)
            break
        if argument.startswith("-"):
            shown.append(_option(argument))
        elif has_word or (previous.startswith("-") and previous not in _NAMES_PROGRAM):
            if shown[-1] != _HIDDEN:
                shown.append(_HIDDEN)
        else:
            shown.append(_word(argument))
            has_word = True
        previous = argument
    return " ".join(shown).strip()


def _option(argument: str) -> str:
    """Return an option's name; what may be its value is hidden."""
    if argument.startswith("--"):
        name, equals, _ = argument.partition("=")
        is_plain = _PLAIN.fullmatch(name) is not None and not _LIKE_A_KEY.fullmatch(name.lstrip("-"))
        name = name if is_plain and len(name) <= _OPTION_CHARACTERS else f"--{_HIDDEN}"
        return f"{name}={_HIDDEN}" if equals else name
    if len(argument) <= 2 or argument in _NAMES_PROGRAM:
        return printable(argument)
    return f"{printable(argument[:2])}{_HIDDEN}"


def _word(argument: str) -> str:
    is_plain = _PLAIN.fullmatch(argument) is not None and len(argument) <= _WORD_CHARACTERS
    return argument if is_plain and not _LIKE_A_KEY.fullmatch(argument) else _HIDDEN


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}{_HIDDEN}"
