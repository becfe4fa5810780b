"""systemd-oomd's own configuration: oomd.conf(5) with its drop-ins, and the rule files that OOMRules= names.

Root writes these files. They are read when units' settings become rules, in a thread: their disk may hang.
A file that can't be read, and a value that can't be, is named, and the default counts, as for systemd-oomd.
Sources: oomd.conf(5) of systemd 261, manager_parse_config_file and ruleset_load_one in src/oom/oomd-conf.c.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from reactor.link.managed_oom import rule_name_problem
from reactor.plain import read_regular

# In the order of systemd: the administrator's first.
DIRECTORIES: Final = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")
_MAIN: Final = "oomd.conf"
_DROP_INS: Final = "oomd.conf.d"
_RULES: Final = "oomd/rules.d"  # since systemd 261
_RULE_FILE: Final = ".oomrule"
_SECTION: Final = "OOM"
_RULE_SECTION: Final = "Rule"
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


class OomAction(StrEnum):
    """What a rule file's Action= says: kill all of the unit, or the worst below it."""

    KILL_ALL = "kill-all"
    KILL_BY_PGSCAN = "kill-by-pgscan"
    KILL_BY_SWAP = "kill-by-swap"


@dataclass(frozen=True, slots=True, kw_only=True)
class OomRuleset:
    """One rule file. A condition that is None does not count; those that do hold for `seconds`.

    No file says so, but what units are set to does: with `while_scanned` reclaim has to scan pages, too.
    """

    action: OomAction
    pressure_percent: float | None = None
    swap_percent: float | None = None
    seconds: float = 0.0
    while_scanned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OomdDefaults:
    """What oomd.conf(5) says, and without it systemd-oomd's own; the rule files by their names."""

    swap_used_percent: float = 90.0
    pressure_percent: float = 60.0
    pressure_seconds: float = 30.0
    rulesets: Mapping[str, OomRuleset] = field(default_factory=dict)


def oomd_defaults(problems: dict[str, str], *, root: Path = Path("/")) -> OomdDefaults:
    """Return what systemd-oomd's own configuration below `root` sets, its rule files among it.

    The first oomd.conf counts, and over it the drop-ins of all directories in the order of their names; of
    one name that of the first directory. What is wrong is named by its file in `problems`.
    """
    found = OomdDefaults()
    refused: dict[Path, list[str]] = {}
    main = [path for directory in DIRECTORIES if (path := root / directory / _MAIN).exists()]
    for path in (*main[:1], *_named_last(root, _DROP_INS, ".conf", problems)):
        refuse = refused.setdefault(path, []).append
        found = with_oomd_conf(found, _text(path, refuse), refuse)
    rulesets: dict[str, OomRuleset] = {}
    for path in _named_last(root, _RULES, _RULE_FILE, problems):
        refuse = refused.setdefault(path, []).append
        text = _text(path, refuse)
        name = path.name.removesuffix(_RULE_FILE)
        if text.strip() and (ruleset := ruleset_of(name, text, refuse)) is not None:
            rulesets[name] = ruleset  # an empty file switches off a vendor's
    problems |= {str(path): "; ".join(some[:_REFUSALS_SHOWN]) for path, some in refused.items() if some}
    return replace(found, rulesets=rulesets)


def with_oomd_conf(before: OomdDefaults, text: str, refuse: Callable[[str], object]) -> OomdDefaults:
    """Return the limits with those in the text of a file; `refuse` is called for what does not count."""
    found = before
    for key, value in _assignments(text, _SECTION):
        if key not in _KEYS:
            continue
        name, read = _KEYS[key]
        try:
            seen = read(value) if value else None
        except ValueError as error:
            refuse(f"{key}: got {value!r:.80}; accepted: {error}")
            continue
        limits: dict[str, Any] = {name: getattr(OomdDefaults(), name) if seen is None else seen}
        found = replace(found, **limits)
    return found


def ruleset_of(name: str, text: str, refuse: Callable[[str], object]) -> OomRuleset | None:
    """Return what a rule file says; None, with the reason given to `refuse`, if it can't be in force.

    A file with one wrong value is not in force: a rule without one of its conditions kills more than was
    meant. So is a rule without any condition, which systemd-oomd takes for one that always holds.
    """
    problem = rule_name_problem(name)
    values: dict[str, Any] = {}
    for key, value in _assignments(text, _RULE_SECTION):
        if key not in _RULE_KEYS:
            problem = problem or f"got {key!r:.80}; accepted: {', '.join(sorted(_RULE_KEYS))}"
            continue
        field, read = _RULE_KEYS[key]
        try:
            values[field] = read(value)
        except ValueError as error:
            problem = problem or f"{key}: got {value!r:.80}; accepted: {error}"
    if problem is None and "action" not in values:
        problem = f"got no Action=; accepted: {_ACTIONS_TEXT}"
    if problem is None and values.keys().isdisjoint({"pressure_percent", "swap_percent"}):
        problem = "got no condition; accepted: MemoryPressureAbove=, SwapUsageMax=, or both"
    if problem is not None:
        refuse(f"the rule is not in force: {problem}")
        return None
    return OomRuleset(**values)


def _text(path: Path, refuse: Callable[[str], object]) -> str:
    """Return a file's text; if it can't be read that is refused, and it is empty."""
    try:
        return read_regular(path, _MOST_BYTES, may_be_pipe=False).decode()
    except (OSError, ValueError) as error:
        refuse(str(getattr(error, "strerror", None) or error))
        return ""


def _assignments(text: str, wanted: str) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of one section, see systemd.syntax(7)."""
    section = ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if stripped.startswith("["):
            section = stripped.strip("[]")
            continue
        key, _, value = (part.strip() for part in stripped.partition("="))
        if section == wanted:
            yield key, value


def _percent(value: str) -> float:
    share = _SHARE.fullmatch(value)
    percent = -1.0 if share is None else float(share[1]) / _PER_PERCENT[share[2]]
    if not 0 <= percent <= 100:
        raise ValueError("a share from 0% to 100%, such as 90%")
    return max(_LEAST_PERCENT, percent)


def _span(value: str) -> float:
    """Return a time span in seconds. Raises ValueError with the accepted form."""
    at, seconds = 0, 0.0
    while at < len(value):
        part = _SPAN.match(value, at)
        if part is None or part[2] not in _UNITS_SECONDS:
            raise ValueError("a time span such as 30s or 1min 30s")
        seconds += float(part[1]) * _UNITS_SECONDS[part[2]]
        at = part.end()
    return seconds


def _conf_seconds(value: str) -> float | None:
    """Return a time span of 1 s or more, None for 0: the default."""
    seconds = _span(value)
    if seconds and not 1 <= seconds <= _LONGEST_SECONDS:
        raise ValueError("a time span from 1s to 1d, such as 30s, or 0")
    return seconds or None


def _rule_seconds(value: str) -> float:
    seconds = _span(value)
    if not value or seconds > _LONGEST_SECONDS:
        raise ValueError("a time span up to 1d, such as 30s, or 0")
    return seconds


def _action(value: str) -> OomAction:
    try:
        return OomAction(value.replace("_", "-"))  # as the first version's code spells them
    except ValueError:
        raise ValueError(_ACTIONS_TEXT) from None


_ACTIONS_TEXT: Final = ", ".join(OomAction)
_KEYS: Final[Mapping[str, tuple[str, Callable[[str], float | None]]]] = {
    "SwapUsedLimit": ("swap_used_percent", _percent),
    "DefaultMemoryPressureLimit": ("pressure_percent", _percent),
    "DefaultMemoryPressureDurationSec": ("pressure_seconds", _conf_seconds),
}
_RULE_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "MemoryPressureAbove": ("pressure_percent", _percent),
    "SwapUsageMax": ("swap_percent", _percent),
    "LastingSec": ("seconds", _rule_seconds),
    "Action": ("action", _action),
}


def _named_last(root: Path, below: str, suffix: str, problems: dict[str, str]) -> Iterator[Path]:
    """Yield the files of a directory's four places by their names; of one name the first place's."""
    by_name: dict[str, Path] = {}
    for directory in (root / one / below for one in DIRECTORIES):
        try:
            names = [name for name in os.listdir(directory) if name.endswith(suffix)]
        except FileNotFoundError:
            continue
        except OSError as error:
            problems[str(directory)] = str(error.strerror)
            continue
        for name in names:
            by_name.setdefault(name, directory / name)
    if len(by_name) > _MOST_FILES:
        problems[below] = f"got {len(by_name)} files; accepted: {_MOST_FILES}, and the others don't count"
    for name in sorted(by_name)[:_MOST_FILES]:
        if os.path.realpath(by_name[name]) != os.devnull:  # by which a vendor's file is switched off
            yield by_name[name]
