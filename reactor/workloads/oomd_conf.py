"""systemd-oomd's own configuration, oomd.conf(5): its limits, in the place of which units may have others.

The first oomd.conf counts, and over it the drop-ins of all directories in the order of their names; of one
name that of the first directory. What is wrong is named, and the default counts, as for systemd-oomd.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from reactor.model.managed_oom import OomdDefaults

DIRECTORIES: Final = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")
"""In the order of systemd: the administrator's first."""

_MAIN: Final = "oomd.conf"
_DROP_INS: Final = "oomd.conf.d"
_SECTION: Final = "OOM"
_MOST_BYTES: Final = 64 << 10
_MOST_FILES: Final = 256
_SHOWN: Final = 4
_PER_PERCENT: Final = {"%": 1, "‰": 10, "‱": 100}
_SECONDS: Final = {
    "": 1.0,
    **dict.fromkeys(("us", "usec", "µs", "μs"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_SPAN: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-zµμ]*)")
_SHARE: Final = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,2})?)([%‰‱])")
_LEAST_PERCENT: Final = 1.0
_LONGEST_SECONDS: Final = 86400.0


def oomd_defaults(problems: dict[str, str], *, root: Path = Path("/")) -> OomdDefaults:
    """Return what the files below `root` say; `problems` is told by file what does not count, and why."""
    found = OomdDefaults()
    for path in _files(root, problems):
        try:
            text = _read(path)
        except (OSError, ValueError) as error:
            problems[str(path)] = str(getattr(error, "strerror", None) or error)
            continue
        refused: list[str] = []
        found = with_oomd_conf(found, text, refused.append)
        if refused:
            problems[str(path)] = "; ".join(refused[:_SHOWN])
    return found


def with_oomd_conf(before: OomdDefaults, text: str, refuse: Callable[[str], object]) -> OomdDefaults:
    """Return the limits with those in the text of a file; `refuse` is told what does not count."""
    found, section = before, ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if stripped.startswith("["):
            section = stripped.strip("[]")
            continue
        key, _, value = (part.strip() for part in stripped.partition("="))
        if section != _SECTION or key not in _KEYS:
            continue
        name, read = _KEYS[key]
        try:
            seen = read(value) if value else None
        except ValueError as error:
            refuse(f"{key}: got {value!r:.80}; accepted: {error}")
            continue
        found = replace(found, **{name: getattr(OomdDefaults(), name) if seen is None else seen})
    return found


def _percent(value: str) -> float:
    share = _SHARE.fullmatch(value)
    percent = -1.0 if share is None else float(share[1]) / _PER_PERCENT[share[2]]
    if not 0 <= percent <= 100:
        raise ValueError("a share from 0% to 100%, such as 90%")
    return max(_LEAST_PERCENT, percent)


def _seconds(value: str) -> float | None:
    """Return a time span, None for 0: the default."""
    at, seconds = 0, 0.0
    while at < len(value):
        part = _SPAN.match(value, at)
        if part is None or part[2] not in _SECONDS:
            raise ValueError("a time span of 1s or more, such as 30s, or 0")
        seconds += float(part[1]) * _SECONDS[part[2]]
        at = part.end()
    if seconds and not 1 <= seconds <= _LONGEST_SECONDS:
        raise ValueError("a time span from 1s to 1d, such as 30s, or 0")
    return seconds or None


_KEYS: Final[dict[str, tuple[str, Callable[[str], float | None]]]] = {
    "SwapUsedLimit": ("swap_used_percent", _percent),
    "DefaultMemoryPressureLimit": ("pressure_percent", _percent),
    "DefaultMemoryPressureDurationSec": ("pressure_seconds", _seconds),
}


def _files(root: Path, problems: dict[str, str]) -> Iterator[Path]:
    """Yield the files in the order in which they count, the last one most."""
    main = (root / directory / _MAIN for directory in DIRECTORIES)
    yield from [path for path in main if path.exists()][:1]
    by_name: dict[str, Path] = {}
    for directory in (root / one / _DROP_INS for one in DIRECTORIES):
        try:
            names = [name for name in os.listdir(directory) if name.endswith(".conf")]
        except FileNotFoundError:
            continue
        except OSError as error:
            problems[str(directory)] = str(error.strerror)
            continue
        for name in names:
            by_name.setdefault(name, directory / name)
    for name in sorted(by_name)[:_MOST_FILES]:
        if os.path.realpath(by_name[name]) != os.devnull:  # by which a vendor's file is switched off
            yield by_name[name]


def _read(path: Path) -> str:
    """Return what is in a file. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES >> 10} KiB")
    return content.decode()
