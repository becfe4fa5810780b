"""What systemd's units set by ManagedOOM…=, as rules that do what systemd-oomd does.

A process in systemd-oomd's place (reactor/managed_oom) receives them, and keeps a file below /run. That is
untrusted: it is of a fixed form, of bounded size, and can bring about no more than that pods which may be
evicted are, one after the other, while tasks of the cgroup that holds them stall or swap is full. A file that
is gone, wrong or old leaves the rules as they were, and that is reported.

Of memory pressure: `full avg10` of the unit is above its limit for its time while reclaim scans pages of it;
then goes the one below it of which the most pages were scanned. Of swap: the machine's swap and memory are
used above one limit; then goes the one below any of the units that has the most in swap. After either, 15 s.
Source: monitor_memory_pressure_contexts_handler and monitor_swap_contexts_handler in systemd's
src/oom/oomd-manager.c.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import trio

from reactor.forms import FormError
from reactor.kernel.files import GONE
from reactor.link.managed_oom import LONGEST_BYTES, PATH, read_report
from reactor.model.managed_oom import ManagedOomKind, ManagedOomReport, ManagedOomUnit, OomdDefaults
from reactor.model.name_patterns import PodParent
from reactor.model.rules import Condition, Measure, Metric, RankedBy, Rule, RuleAction
from reactor.policy.rules import is_at_or_below
from reactor.text import printable
from reactor.threads import in_thread, with_pauses

_TICK_SECONDS: Final = 1.0
# Between two changes that count: a user can bring one about at any time.
_BETWEEN_SECONDS: Final = 5.0
_AT_ONCE: Final = 16  # units, which take 0.25 ms at the most
# It touches the file every 15 s, and systemd starts it again after one second.
_OLD_SECONDS: Final = 90.0
# By users, who could have others for ever: each name is one of a metric's. A name that no unit has had for so
# long is left to others.
_MOST_USER_RULES: Final = 64
_NAME_KEPT_SECONDS: Final = 3600.0
_MOST_RULES_OF_A_USER: Final = 4
_HANGING_SECONDS: Final = 5.0
_SHOWN: Final = 5
_MISSING: Final = (
    "is missing: systemd-oomd.service has to run reactor in the place of systemd-oomd, see "
    '"Instead of systemd-oomd" in pressure.md'
)
# An operator's rule has no colon in its name.
_PREFIX = "systemd-oomd:"
_FULL = Metric(Measure.PRESSURE, "memory full avg10")
_SCANNED = Metric(Measure.PAGES_SCANNED)
_RECLAIM_SECONDS = 30.0
_COOLDOWN_SECONDS = 15.0
# What was scanned is counted from when the conditions began to hold: there has to be a second observation.
_SHORTEST_SECONDS = 2.0
# Of oomd.conf, in the order of systemd: the administrator's first.
DIRECTORIES: Final = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")
_MAIN: Final = "oomd.conf"
_DROP_INS: Final = "oomd.conf.d"
_SECTION: Final = "OOM"
_MOST_BYTES: Final = 64 << 10
_MOST_FILES: Final = 256
_REFUSALS_SHOWN: Final = 4
_PER_PERCENT: Final = {"%": 1, "‰": 10, "‱": 100}
_UNITS_SECONDS: Final = {
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


class ManagedOomRules:
    """Keeps the rules of systemd's units true: `add` puts them in the place of those before."""

    def __init__(
        self,
        add: Callable[[Iterable[Rule]], Awaitable[None]],
        parents: Iterable[str],
        *,
        path: Path = Path(PATH),
        root: Path = Path("/"),
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._add = add
        self._parents = tuple(map(PodParent, parents))
        self._path = path
        self._root = root
        self._clock_seconds = clock_seconds
        self._is_conf_read = False
        self._of_oomd_conf: dict[str, str] = {}
        self._defaults = OomdDefaults()
        self._report = ManagedOomReport()
        self._refused: dict[str, str] = {}
        self._seen: tuple[int, int, int] | None = None
        self._touched_ns: int | None = None
        self._touched_seconds = clock_seconds()
        self._due_seconds = -math.inf
        self._problem: str | None = None
        self._user_names: dict[int, dict[str, float]] = {}  # when each was wanted last
        self._wanted: set[str] = set()

    @property
    def problems(self) -> dict[str, str]:
        """Return what keeps the units' settings from counting, and why."""
        found = {f"systemdOomd: {what}": why for what, why in self._of_oomd_conf.items()}
        since_seconds = self._clock_seconds() - self._touched_seconds
        if not self._is_conf_read and since_seconds > _HANGING_SECONDS:
            found["systemdOomd"] = "oomd.conf can't be read: its disk does not answer"
            return found
        problem = self._problem or self._report.problem
        if not problem and since_seconds > _OLD_SECONDS:
            problem = (
                f"{self._path} was not touched for {_OLD_SECONDS:.0f} s: is systemd-oomd.service active?"
            )
        if not problem and self._report.left_out:
            problem = f"{self._report.left_out} settings of units are left out: too many, or not possible"
        if problem:
            kept = "; the last known settings are in force" if self._report.units else ""
            found["systemdOomd"] = f"{problem}{kept}"
        return found

    def document(self) -> dict[str, Any]:
        return {
            "units": len(self._report.units),
            "not_honoured": len(self._refused),
            "such_as": dict(list(self._refused.items())[:_SHOWN]),
            "swap_used_limit_percent": self._defaults.swap_used_percent,
            "pressure_limit_percent": self._defaults.pressure_percent,
            "pressure_duration_seconds": self._defaults.pressure_seconds,
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep them true until cancelled."""
        task_status.started()
        while True:
            await self.tick()
            await trio.sleep(_TICK_SECONDS)

    async def tick(self) -> None:
        """Read the file if it has changed, and go by it then."""
        if not self._is_conf_read:
            self._defaults, self._of_oomd_conf = await in_thread(
                _read_oomd_conf, self._root, abandon_on_cancel=True
            )
            self._is_conf_read = True
        try:
            raw = self._read_changed()
            if raw is None:
                return
            report = await with_pauses(read_report(raw), trio.lowlevel.checkpoint)
        except OSError as error:
            missing = error.errno in GONE
            self._problem = f"{self._path} {_MISSING if missing else f'can not be read: {error.strerror}'}"
            self._seen = None
            return
        except FormError as error:
            self._problem = f"{self._path}: {error}"
            return
        self._problem = None
        self._report = report
        await self._add(managed_rules(await self._accepted(report.units), self._defaults))

    def _read_changed(self) -> bytes | None:
        """Return what the file holds, None where it holds what it did. Raises OSError.

        It lies on tmpfs: nothing is waited for.
        """
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if found.st_mtime_ns != self._touched_ns:
                self._touched_ns, self._touched_seconds = found.st_mtime_ns, self._clock_seconds()
            seen = (found.st_dev, found.st_ino, found.st_size)
            if seen == self._seen or self._clock_seconds() < self._due_seconds:
                return None
            self._seen, self._due_seconds = seen, self._clock_seconds() + _BETWEEN_SECONDS
            if found.st_size > LONGEST_BYTES:
                raise FormError(f"got {found.st_size} bytes; accepted: {LONGEST_BYTES} at the most")
            return os.read(fd, LONGEST_BYTES + 1)
        finally:
            os.close(fd)

    async def _accepted(self, units: Sequence[ManagedOomUnit]) -> list[ManagedOomUnit]:
        """Return the units for which a rule may evict a pod; record the others."""
        accepted, self._refused = [], {}
        self._release_names()
        for number, unit in enumerate(units):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            because = refused_because(unit, self._parents) or self._too_many_because(unit)
            if because is None:
                accepted.append(unit)
            else:
                self._refused[printable(unit.cgroup)] = because
        return accepted

    def _too_many_because(self, unit: ManagedOomUnit) -> str | None:
        """Return why a user's unit has no rule: there would be too many different ones."""
        if unit.uid is None:
            return None
        name = rule_name(unit, self._defaults)
        if any(name in names for names in self._user_names.values()):
            self._wanted.add(name)
            return None
        own = self._user_names.setdefault(unit.uid, {})
        if len(own) >= _MOST_RULES_OF_A_USER or sum(map(len, self._user_names.values())) >= _MOST_USER_RULES:
            return "users have had too many different limits and times within an hour"
        own[name] = self._clock_seconds()
        self._wanted.add(name)
        return None

    def _release_names(self) -> None:
        """Forget the names that no unit has had for an hour; the last report's were wanted until now."""
        now_seconds = self._clock_seconds()
        for uid, names in list(self._user_names.items()):
            names |= {name: now_seconds for name in names if name in self._wanted}
            kept = {name: at for name, at in names.items() if now_seconds - at < _NAME_KEPT_SECONDS}
            self._user_names[uid] = kept
            if not kept:
                del self._user_names[uid]
        self._wanted.clear()


def _read_oomd_conf(root: Path) -> tuple[OomdDefaults, dict[str, str]]:
    """Return what oomd.conf sets, and by file what of it does not count. Blocks while the disk hangs."""
    problems: dict[str, str] = {}
    return oomd_defaults(problems, root=root), problems


def refused_because(unit: ManagedOomUnit, parents: Iterable[PodParent]) -> str | None:
    """Return why no pod can be evicted for a unit, None where one can: it is above or below their parents."""
    cgroup = unit.cgroup
    for parent in parents:
        if is_at_or_below(parent.fence, cgroup) or is_at_or_below(cgroup, parent.fence):
            return None
    return "there are no pods in it: it is neither above nor below reactor.pods.parents"


def managed_rules(units: Sequence[ManagedOomUnit], defaults: OomdDefaults) -> tuple[Rule, ...]:
    """Return the rules for these units: one for swap, and one for each limit and time of memory pressure.

    Users' own units have rules of their own: the name of a rule shows whether it is theirs.
    """
    by_name: dict[str, tuple[float, float, bool, list[str]]] = {}
    of_swap: list[str] = []
    for unit in units:
        if unit.kind is ManagedOomKind.SWAP:
            of_swap.append(unit.cgroup)
            continue
        made = (*_limit(unit, defaults), unit.uid is None, list[str]())
        by_name.setdefault(rule_name(unit, defaults), made)[-1].append(unit.cgroup)
    rules = [
        Rule(
            name=name,
            cgroups=tuple(dict.fromkeys(cgroups)),
            conditions=(Condition(_FULL, percent), Condition(_SCANNED, 1, _RECLAIM_SECONDS)),
            for_seconds=seconds,
            action=RuleAction.EVICT_WORST,
            by=RankedBy.PGSCAN,
            cooldown_seconds=_COOLDOWN_SECONDS,
            cooldown_per_cgroup=True,
            cooldown_per_user_slice=not is_systems,
        )
        for name, (percent, seconds, is_systems, cgroups) in by_name.items()
    ]
    if of_swap:
        limit = defaults.swap_used_percent
        metrics = Metric(Measure.SWAP_USED), Metric(Measure.USAGE)
        rules.append(
            Rule(
                name=f"{_PREFIX}swap",
                cgroups=("/",),
                conditions=tuple(Condition(metric, limit) for metric in metrics),
                for_seconds=0.0,
                action=RuleAction.EVICT_WORST,
                by=RankedBy.SWAP,
                cooldown_seconds=_COOLDOWN_SECONDS,
                below=tuple(dict.fromkeys(of_swap)),
            )
        )
    return tuple(rules)


def rule_name(unit: ManagedOomUnit, defaults: OomdDefaults) -> str:
    """Return the name of the rule that a unit comes to."""
    if unit.kind is ManagedOomKind.SWAP:
        return f"{_PREFIX}swap"
    percent, seconds = _limit(unit, defaults)
    whose = "pressure" if unit.uid is None else "user-pressure"
    return f"{_PREFIX}{whose}-{percent:g}%-{seconds:g}s"


def _limit(unit: ManagedOomUnit, defaults: OomdDefaults) -> tuple[float, float]:
    """Return the limit of a unit's memory pressure in percent, and for how many seconds it is above it."""
    seconds = unit.duration_seconds or defaults.pressure_seconds
    return unit.limit_percent or defaults.pressure_percent, max(_SHORTEST_SECONDS, seconds)


def oomd_defaults(problems: dict[str, str], *, root: Path = Path("/")) -> OomdDefaults:
    """Return what systemd-oomd's own configuration below `root` sets, see oomd.conf(5).

    The first oomd.conf counts, and over it the drop-ins of all directories in the order of their names; of
    one name that of the first directory. What is wrong is named by its file in `problems`, and the default
    counts, as for systemd-oomd.
    """
    found = OomdDefaults()
    for path in _conf_files(root, problems):
        try:
            text = _read_conf(path)
        except (OSError, ValueError) as error:
            problems[str(path)] = str(getattr(error, "strerror", None) or error)
            continue
        refused: list[str] = []
        found = with_oomd_conf(found, text, refused.append)
        if refused:
            problems[str(path)] = "; ".join(refused[:_REFUSALS_SHOWN])
    return found


def with_oomd_conf(before: OomdDefaults, text: str, refuse: Callable[[str], object]) -> OomdDefaults:
    """Return the limits with those in the text of a file; `refuse` is called for what does not count."""
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


def _conf_percent(value: str) -> float:
    share = _SHARE.fullmatch(value)
    percent = -1.0 if share is None else float(share[1]) / _PER_PERCENT[share[2]]
    if not 0 <= percent <= 100:
        raise ValueError("a share from 0% to 100%, such as 90%")
    return max(_LEAST_PERCENT, percent)


def _conf_seconds(value: str) -> float | None:
    """Return a time span, None for 0: the default."""
    at, seconds = 0, 0.0
    while at < len(value):
        part = _SPAN.match(value, at)
        if part is None or part[2] not in _UNITS_SECONDS:
            raise ValueError("a time span of 1s or more, such as 30s, or 0")
        seconds += float(part[1]) * _UNITS_SECONDS[part[2]]
        at = part.end()
    if seconds and not 1 <= seconds <= _LONGEST_SECONDS:
        raise ValueError("a time span from 1s to 1d, such as 30s, or 0")
    return seconds or None


_KEYS: Final[dict[str, tuple[str, Callable[[str], float | None]]]] = {
    "SwapUsedLimit": ("swap_used_percent", _conf_percent),
    "DefaultMemoryPressureLimit": ("pressure_percent", _conf_percent),
    "DefaultMemoryPressureDurationSec": ("pressure_seconds", _conf_seconds),
}


def _conf_files(root: Path, problems: dict[str, str]) -> Iterator[Path]:
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


def _read_conf(path: Path) -> str:
    """Return what is in a file. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES >> 10} KiB")
    return content.decode()
