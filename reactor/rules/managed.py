"""What systemd's units set by ManagedOOM…=, as rules that do what systemd-oomd does.

A process in systemd-oomd's place (reactor/managed_oom) receives them, and keeps a file below /run. That is
untrusted: it is of a fixed form, of bounded size, and can bring about no more than that pods which may be
evicted are, one after the other, while tasks of the cgroup that holds them stall or swap is full. A file that
is gone, wrong or old leaves the rules as they were, and that is reported.

The rule files of OOMRules= are read with oomd.conf (oomd_conf.py): at the start, at a reload, and at that of
systemd-oomd.service. Each becomes a rule for the units that name it.

Of memory pressure: `full avg10` of the unit is above its limit for its time while reclaim scans pages of it;
then goes the one below it of which the most pages were scanned, or that holds the most memory if none were;
one to be avoided goes after all others that hold any. Of swap: the machine's swap and memory are
used above one limit; then goes the one below any of the units that has the most in swap. After either, 15 s.
Source: monitor_memory_pressure_contexts_handler and monitor_swap_contexts_handler in systemd's
src/oom/oomd-manager.c.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from reactor.forms import FormError
from reactor.kernel.cgroup_directory import CgroupDirectory
from reactor.kernel.files import GONE
from reactor.link.managed_oom import (
    LONGEST_BYTES,
    PATH,
    ManagedOomKind,
    ManagedOomReport,
    ManagedOomUnit,
    read_report,
)
from reactor.model.name_patterns import PodParent
from reactor.model.rules import MACHINE_SWAP, Condition, Measure, Metric, RankedBy, Rule, RuleAction
from reactor.plain import open_regular
from reactor.policy.rules import is_at_or_below
from reactor.rules.oomd_conf import OomAction, OomdDefaults, OomRuleset, oomd_defaults
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
_OOMS: Final = "user.oomd_ooms"
_KILLED: Final = "user.oomd_kill"
_DIGITS: Final = 18
_MISSING: Final = (
    "is missing: systemd-oomd.service has to run reactor in the place of systemd-oomd, see "
    '"Instead of systemd-oomd" in pressure.md'
)
# An operator's rule has no colon in its name.
_PREFIX = "systemd-oomd:"
_SWAP = f"{_PREFIX}swap"
_FULL = Metric(Measure.PRESSURE, "memory full avg10")
_SCANNED = Metric(Measure.PAGES_SCANNED)
_RECLAIM_SECONDS = 30.0
_COOLDOWN_SECONDS = 15.0
# What was scanned is counted from when the conditions began to hold: there has to be a second observation.
_SHORTEST_SECONDS = 2.0
# Of one pod below a unit after the other: all of a unit is more than the first promise allows.
_RANKED_BY: Final = {
    OomAction.KILL_ALL: RankedBy.MEMORY,
    OomAction.KILL_BY_PGSCAN: RankedBy.PGSCAN,
    OomAction.KILL_BY_SWAP: RankedBy.SWAP,
}


@dataclass(eq=False)
class ManagedOomRules:
    """Keeps the rules of systemd's units true: `add` puts them in the place of those before."""

    add: Callable[[Iterable[Rule]], Awaitable[None]]
    parents: Iterable[str]
    _: KW_ONLY
    path: Path = Path(PATH)
    root: Path = Path("/")
    clock_seconds: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._parents = tuple(map(PodParent, self.parents))
        self._is_conf_read = False
        self._of_oomd_conf: dict[str, str] = {}
        self._defaults = OomdDefaults()
        self._report = ManagedOomReport()
        self._refused: dict[str, str] = {}
        self._seen: tuple[int, int, int] | None = None
        self._touched_ns: int | None = None
        self._touched_seconds = self.clock_seconds()
        self._due_seconds = -math.inf
        self._problem: str | None = None
        self._user_names: dict[str, tuple[int, float]] = {}  # whose each is, and when it was wanted last
        self._wanted: set[str] = set()

    @property
    def problems(self) -> dict[str, str]:
        """Return what keeps the units' settings from counting, and why."""
        found = {f"systemdOomd: {what}": why for what, why in self._of_oomd_conf.items()}
        since_seconds = self.clock_seconds() - self._touched_seconds
        if not self._is_conf_read and since_seconds > _HANGING_SECONDS:
            found["systemdOomd"] = "oomd.conf can't be read: its disk does not answer"
            return found
        problem = self._problem or self._report.problem
        if not problem and since_seconds > _OLD_SECONDS:
            problem = f"{self.path} was not touched for {_OLD_SECONDS:.0f} s: is systemd-oomd.service active?"
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
            await self._read_conf()
        try:
            raw = self._read_changed()
            if raw is None:
                return
            report = await with_pauses(read_report(raw), trio.lowlevel.checkpoint)
        except OSError as error:
            missing = error.errno in GONE
            self._problem = f"{self.path} {_MISSING if missing else f'can not be read: {error.strerror}'}"
            self._seen = None
            return
        except FormError as error:
            self._problem = f"{self.path}: {error}"
            return
        self._problem = None
        if report.reloads != self._report.reloads:
            await self._read_conf()
        self._report = report
        await self.add(managed_rules(await self._accepted(report.units), self._defaults))

    async def _read_conf(self) -> None:
        problems: dict[str, str] = {}
        read = partial(oomd_defaults, problems, root=self.root)
        self._defaults = await in_thread(read, abandon_on_cancel=True)  # its disk may hang
        self._of_oomd_conf, self._is_conf_read = problems, True

    def _read_changed(self) -> bytes | None:
        """Return what the file holds, None where it holds what it did. Raises OSError.

        It lies on tmpfs: nothing is waited for.
        """
        with open_regular(self.path, os.O_NOFOLLOW, may_be_pipe=False) as file:
            found = os.fstat(file.fileno())
            if found.st_mtime_ns != self._touched_ns:
                self._touched_ns, self._touched_seconds = found.st_mtime_ns, self.clock_seconds()
            seen = (found.st_dev, found.st_ino, found.st_size)
            if seen == self._seen or self.clock_seconds() < self._due_seconds:
                return None
            self._seen, self._due_seconds = seen, self.clock_seconds() + _BETWEEN_SECONDS
            if found.st_size > LONGEST_BYTES:
                raise FormError(f"got {found.st_size} bytes; accepted: {LONGEST_BYTES} at the most")
            return file.read(LONGEST_BYTES + 1)

    async def _accepted(self, units: Sequence[ManagedOomUnit]) -> list[ManagedOomUnit]:
        """Return the units for which a rule may evict a pod; record what does not count."""
        accepted, self._refused = [], {}
        self._release_names()
        for number, unit in enumerate(units):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            because = refused_because(unit, self._parents) or self._too_many_because(unit)
            if because is None:
                accepted.append(unit)
                because = missing_because(unit, self._defaults)
            if because is not None:
                self._refused[printable(unit.cgroup)] = because
        return accepted

    def _too_many_because(self, unit: ManagedOomUnit) -> str | None:
        """Return why a user's unit has no rule: there would be too many different ones."""
        if unit.uid is None:
            return None
        for name, _ in named_rules(unit, self._defaults):
            if name not in self._user_names:
                own = sum(uid == unit.uid for uid, _ in self._user_names.values())
                if own >= _MOST_RULES_OF_A_USER or len(self._user_names) >= _MOST_USER_RULES:
                    return "users have had too many different rules, limits and times within an hour"
                self._user_names[name] = unit.uid, self.clock_seconds()
            self._wanted.add(name)
        return None

    def _release_names(self) -> None:
        """Forget the names that no unit has had for an hour; the last report's were wanted until now."""
        now_seconds = self.clock_seconds()
        self._user_names = {
            name: (uid, now_seconds if name in self._wanted else at_seconds)
            for name, (uid, at_seconds) in self._user_names.items()
            if name in self._wanted or now_seconds - at_seconds < _NAME_KEPT_SECONDS
        }
        self._wanted.clear()


def count_kill(directory: CgroupDirectory, processes: int) -> None:
    """Count a kill in a cgroup's attributes, as systemd-oomd does: systemd reports Result=oom-kill then.

    systemd compares `user.oomd_ooms` with what it read last: if the main process of a service has ended, and
    if the cgroup is empty. Both come after the victim's memory is free: after the kill is in time.
    `processes` is 0 if it is not known. A tenant may have written anything there; that is counted
    from 0. Never raises: a cgroup that is gone, or has too many attributes already, has none of these.
    Source: unit_check_oomd_kill in systemd's src/core/cgroup.c, increment_oomd_xattr in src/oom/oomd-util.c.
    """
    for name, by in ((_OOMS, 1), (_KILLED, processes)):
        if by:
            with suppress(OSError):
                os.setxattr(directory.path, name, str(_counted(directory, name) + by).encode())


def _counted(directory: CgroupDirectory, name: str) -> int:
    try:
        raw = os.getxattr(directory.path, name)
    except OSError:
        return 0
    return int(raw) if raw.isdigit() and len(raw) <= _DIGITS else 0


def refused_because(unit: ManagedOomUnit, parents: Iterable[PodParent]) -> str | None:
    """Return why no pod can be evicted for a unit, None where one can: it is above or below their parents."""
    pairs = ((parent.fence, unit.cgroup) for parent in parents)
    if any(is_at_or_below(fence, cgroup) or is_at_or_below(cgroup, fence) for fence, cgroup in pairs):
        return None
    return "there are no pods in it: it is neither above nor below reactor.pods.parents"


def missing_because(unit: ManagedOomUnit, defaults: OomdDefaults) -> str | None:
    """Return which of the rule files that a unit names is not in force, None if all are."""
    missing = (name for name in unit.rules if name not in defaults.rulesets)
    return next((f"OOMRules={printable(name)}: no such rule file is in force" for name in missing), None)


def managed_rules(units: Sequence[ManagedOomUnit], defaults: OomdDefaults) -> tuple[Rule, ...]:
    """Return the rules for these units: one for swap, one for each limit and time of memory pressure, and one
    for each rule file.

    Users' own units have rules of their own: the name of a rule shows whether it is theirs.
    """
    by_name: dict[str, tuple[ManagedOomUnit, OomRuleset, dict[str, None]]] = {}
    for unit in units:
        for name, ruleset in named_rules(unit, defaults):
            by_name.setdefault(name, (unit, ruleset, {}))[-1][unit.cgroup] = None
    of_swap = by_name.pop(_SWAP, None)
    rules = [
        _rule(name, ruleset, tuple(cgroups), of_user=first.uid is not None)
        for name, (first, ruleset, cgroups) in by_name.items()
    ]
    if of_swap is not None:
        limit = defaults.swap_used_percent
        metrics = Metric(Measure.SWAP_USED), Metric(Measure.USAGE)
        swap = Rule(
            name=_SWAP,
            cgroups=("/",),
            conditions=tuple(Condition(metric, limit) for metric in metrics),
            for_seconds=0.0,
            action=RuleAction.EVICT_WORST,
            by=RankedBy.SWAP,
            cooldown_seconds=_COOLDOWN_SECONDS,
            below=tuple(of_swap[-1]),
        )
        rules.append(swap)
    return tuple(rules)


def _rule(name: str, ruleset: OomRuleset, cgroups: tuple[str, ...], *, of_user: bool) -> Rule:
    """Return the rule of these conditions. Source: ruleset_check_conditions in systemd's oomd-manager.c."""
    limits = ((_FULL, ruleset.pressure_percent), (MACHINE_SWAP, ruleset.swap_percent))
    conditions = [Condition(metric, limit) for metric, limit in limits if limit is not None]
    if ruleset.while_scanned:
        conditions.append(Condition(_SCANNED, 1, _RECLAIM_SECONDS))
    by = _RANKED_BY[ruleset.action]
    return Rule(
        name=name,
        cgroups=cgroups,
        conditions=tuple(conditions),
        for_seconds=max(_SHORTEST_SECONDS if by is RankedBy.PGSCAN else 0.0, ruleset.seconds),
        action=RuleAction.EVICT_WORST,
        by=by,
        cooldown_seconds=_COOLDOWN_SECONDS,
        cooldown_per_cgroup=True,
        cooldown_per_user_slice=of_user,
        holders_go=by is RankedBy.PGSCAN,
    )


def named_rules(unit: ManagedOomUnit, defaults: OomdDefaults) -> Iterator[tuple[str, OomRuleset]]:
    """Yield the names of the rules that a unit comes to, each with what it is by."""
    whose = _PREFIX if unit.uid is None else f"{_PREFIX}user-"
    if unit.kind is ManagedOomKind.SWAP:
        swap = OomRuleset(action=OomAction.KILL_BY_SWAP, swap_percent=defaults.swap_used_percent)
        yield _SWAP, swap
    elif unit.kind is ManagedOomKind.RULES:
        for name in unit.rules:
            if name in defaults.rulesets:
                yield f"{whose}rule-{name}", defaults.rulesets[name]
    else:
        percent = unit.limit_percent or defaults.pressure_percent
        seconds = max(_SHORTEST_SECONDS, unit.duration_seconds or defaults.pressure_seconds)
        by = OomAction.KILL_BY_PGSCAN
        stall = OomRuleset(action=by, pressure_percent=percent, seconds=seconds, while_scanned=True)
        yield f"{whose}pressure-{percent:g}%-{seconds:g}s", stall
