"""The lists of pods as they are written: names, globs and paths, and what each of them may say.

A rule is a text, the name of a unit or the path of a cgroup, or a mapping of `unit`, `cgroup`, `process` and
`trusting`; that of a process victim has `never` beside these, names of processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NewType

from reactor.config.decode import CONVERTER, register_scalar
from reactor.config.refused import Refused
from reactor.model.name_patterns import REGEX, matcher
from reactor.model.pod_lists import BUILT_IN_NEVER, PodRule, ProcessVictimRule

ProtectingRule = NewType("ProtectingRule", PodRule)
PreferringRule = NewType("PreferringRule", PodRule)
ProcessRule = NewType("ProcessRule", ProcessVictimRule)
Name = NewType("Name", PodRule)
BuiltIn = NewType("BuiltIn", str)
PodPriority = NewType("PodPriority", int)

_KEYS: Final = ("unit", "cgroup", "process", "trusting")
_ACCEPTED: Final = (
    "a unit's name such as postgresql.service, a cgroup's path such as /system.slice/db-*, or a mapping of "
    "unit, cgroup, process and trusting"
)
_NEVER: Final = "never"
_MOST_SPARED: Final = 64
_LONGEST_PROCESS: Final = 15  # TASK_COMM_LEN without its end
_PRIORITIES: Final = range(-(2**31), 2**31)


def _protecting(raw: Any, _: type) -> ProtectingRule:
    rule = _rule(raw)
    if rule.unit is None and rule.cgroup is None:
        raise Refused(
            raw, "a unit or a cgroup beside the process: every process can take any name, and so hide"
        )
    return ProtectingRule(rule)


def _process_rule(raw: Any, kind: type) -> ProcessRule:
    """Return in which pods one process is killed: by names that count, as this spares the rest of them."""
    if not isinstance(raw, Mapping):
        return ProcessRule(ProcessVictimRule(pods=_protecting(raw, kind)))
    for key in raw:
        if key not in {*_KEYS, _NEVER}:
            raise Refused(key, f"one of {', '.join((*_KEYS, _NEVER))}")
    pods = _protecting({key: value for key, value in raw.items() if key != _NEVER}, kind)
    never = [] if raw.get(_NEVER) is None else raw[_NEVER]
    if not isinstance(never, list) or len(never) > _MOST_SPARED:
        raise Refused(never, f"a list of {_MOST_SPARED} names of processes at most", at=_NEVER)
    names = tuple(_process(one, f"{_NEVER}[{index}]") for index, one in enumerate(never))
    return ProcessRule(ProcessVictimRule(pods=pods, never=names))


def _preferring(raw: Any, _: type) -> PreferringRule:
    rule = _rule(raw)
    if rule.is_trusting:
        raise Refused(raw, "no trusting: this list counts by any name")
    return PreferringRule(rule)


def _name(raw: Any, _: type) -> Name:
    if not isinstance(raw, str):
        raise Refused(raw, _ACCEPTED)
    return Name(_of_text(raw))


def _built_in(raw: Any, _: type) -> BuiltIn:
    if raw not in BUILT_IN_NEVER:
        raise Refused(raw, f"one of {', '.join(BUILT_IN_NEVER)}")
    return BuiltIn(raw)


def _priority(raw: Any, _: type) -> PodPriority:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw not in _PRIORITIES:
        raise Refused(raw, "a whole number of 32 bits such as 1000")
    return PodPriority(raw)


def _rule(raw: Any) -> PodRule:
    if isinstance(raw, str):
        return _of_text(raw)
    if not isinstance(raw, Mapping):
        raise Refused(raw, _ACCEPTED)
    given = {key: value for key, value in raw.items() if value is not None}
    for key in given:
        if key not in _KEYS:
            raise Refused(key, f"one of {', '.join(_KEYS)}")
    trusting = given.pop("trusting", False)
    if not isinstance(trusting, bool):
        raise Refused(trusting, "true or false", at="trusting")
    if not given:
        raise Refused(raw, _ACCEPTED)
    return PodRule(
        unit=_unit(given["unit"], "unit") if "unit" in given else None,
        cgroup=_path(given["cgroup"], "cgroup") if "cgroup" in given else None,
        process=_process(given["process"]) if "process" in given else None,
        is_trusting=trusting,
    )


def _of_text(text: str) -> PodRule:
    return PodRule(cgroup=_path(text)) if text.startswith("/") else PodRule(unit=_unit(text))


def _unit(raw: Any, at: str = "") -> str:
    if isinstance(raw, str) and raw.startswith(REGEX):
        return _expression(raw, at)
    if not isinstance(raw, str) or not raw or "/" in raw or not raw.isprintable():
        accepted = "a unit's name, a glob such as nginx*.service, or ~ and a regular expression, without /"
        raise Refused(raw, accepted, at=at)
    return raw


def _expression(raw: str, at: str) -> str:
    try:
        matcher(raw)
    except ValueError as error:
        raise Refused(raw, str(error), at=at) from None
    return raw


def _path(raw: Any, at: str = "") -> str:
    if isinstance(raw, str) and raw.startswith(REGEX):
        return _expression(raw, at)
    if not isinstance(raw, str) or not raw.startswith("/") or not raw.isprintable() or ".." in raw.split("/"):
        accepted = "a cgroup's path from the hierarchy's root, such as /system.slice/db-*, without .."
        raise Refused(raw, accepted, at=at)
    return "/" + "/".join(part for part in raw.split("/") if part not in {"", "."})


def _process(raw: Any, at: str = "process") -> str:
    if isinstance(raw, str) and raw.startswith(REGEX):
        return _expression(raw, at)
    is_name = isinstance(raw, str) and raw and raw.isprintable()
    if not is_name or (len(raw) > _LONGEST_PROCESS and not set("*?[") & set(raw)):
        accepted = (
            "a process's name of 15 characters at most as in /proc/PID/comm, a glob, or ~ and an expression"
        )
        raise Refused(raw, accepted, at=at)
    return str(raw)


for _scalar, _hook in (
    (ProtectingRule, _protecting),
    (PreferringRule, _preferring),
    (ProcessRule, _process_rule),
    (Name, _name),
    (BuiltIn, _built_in),
    (PodPriority, _priority),
):
    register_scalar(CONVERTER, _scalar, _hook)
