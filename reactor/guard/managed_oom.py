"""What systemd's units say of being killed, as rules beside the operator's own.

A process in systemd-oomd's place (reactor/managed_oom) hears it of systemd, and keeps a file below /run. What
the file says counts as a stranger's: it is of a fixed form, of bounded size, and can bring about no more than
that pods which may be evicted are, one after the other, while tasks of the cgroup that holds them stall or
swap is full. A file that is gone, wrong or old leaves the rules as they were, and that is reported.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from reactor.guard.rules import RuleWatch
from reactor.kernel.files import GONE
from reactor.link.managed_oom import LONGEST_BYTES, PATH, ManagedOomError, read_report
from reactor.model.managed_oom import ManagedOomReport, ManagedOomUnit, OomdDefaults
from reactor.model.pod_parents import PodParent
from reactor.policy.managed_oom import managed_rules, refused_because, rule_name
from reactor.text import printable
from reactor.threads import in_thread
from reactor.workloads.oomd_conf import oomd_defaults

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


class ManagedOomRules:
    """Keeps the rules of systemd's units true in `rules`."""

    def __init__(
        self,
        rules: RuleWatch,
        parents: Iterable[str],
        *,
        path: Path = Path(PATH),
        root: Path = Path("/"),
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
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
        """Return how it stands as plain JSON values."""
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
        """Look whether the file has changed, and go by it then."""
        if not self._is_conf_read:
            self._defaults, self._of_oomd_conf = await in_thread(
                _read_oomd_conf, self._root, abandon_on_cancel=True
            )
            self._is_conf_read = True
        try:
            raw = self._read_changed()
            if raw is None:
                return
            report = await _in_turns(raw)
        except OSError as error:
            missing = error.errno in GONE
            self._problem = f"{self._path} {_MISSING if missing else f'can not be read: {error.strerror}'}"
            self._seen = None
            return
        except ManagedOomError as error:
            self._problem = f"{self._path}: {error}"
            return
        self._problem = None
        self._report = report
        await self._rules.add(managed_rules(await self._accepted(report.units), self._defaults))

    def _read_changed(self) -> bytes | None:
        """Return what the file holds, None where it holds what it did. Raises OSError, ManagedOomError.

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
                raise ManagedOomError(f"got {found.st_size} bytes; accepted: {LONGEST_BYTES} at the most")
            return os.read(fd, LONGEST_BYTES + 1)
        finally:
            os.close(fd)

    async def _accepted(self, units: Sequence[ManagedOomUnit]) -> list[ManagedOomUnit]:
        """Return the units for which a rule may evict a pod; take note of the others."""
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
    """Return what oomd.conf says, and by file what of it does not count. Blocks while the disk hangs."""
    problems: dict[str, str] = {}
    return oomd_defaults(problems, root=root), problems


async def _in_turns(raw: bytes) -> ManagedOomReport:
    """Return what the file says; the loop goes first in between. Raises ManagedOomError."""
    reading = read_report(raw)
    count = 0
    while True:
        try:
            next(reading)
        except StopIteration as over:
            report: ManagedOomReport = over.value
            return report
        count += 1
        if count % _AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
