"""`reactor config show`: what a configuration comes to on this machine, and who is there by it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from reactor.config.documents import Layers
from reactor.config.effective import SECTION, effective
from reactor.config.settings import load_configuration
from reactor.doctor.findings import Guarded, daemon_cgroup, findings, guarded
from reactor.doctor.thresholds import observed_on_this_machine
from reactor.errors import ReactorError, join
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC
from reactor.model.quantity import amount_text, duration_text
from reactor.model.settings import Settings
from reactor.model.signals import RESOURCE, RESOURCE_IN, UNIT, Resource, Signal
from reactor.model.thresholds import Threshold
from reactor.policy.list_entries import is_pattern_entry
from reactor.policy.lists import Named, entry_text, is_placed, victim_of
from reactor.policy.messages import absurd_thresholds
from reactor.tables import Screen, table
from reactor.text import counted

_DEFAULT: Final = "default"
_NEVER: Final = "everything outside these parents"
_MOST_MATCHES: Final = 20


def show(path: Path, config_dir: Path | None, output: str, *, only_changed: bool = False) -> int:
    """Print what is in force; the exit status is 0. Raises ConfigError where the configuration is invalid.

    With `only_changed` values that no file has are left out.
    """
    found = load_configuration(path, config_dir)
    document = in_force(found.settings, found.layers, _tree())
    if only_changed:
        settings = [one for one in document["settings"] if one["file"] is not None]
        document = {**document, "settings": settings}
    if output == "json":
        print(json.dumps(document, default=str))
    else:
        present(document, config_dir, Screen())
    return 0


def in_force(
    settings: Settings, layers: Layers, tree: CgroupTree | None, *, proc: Path = PROC
) -> Mapping[str, Any]:
    """Return what a configuration comes to, as plain JSON values; `tree` None: no cgroups here.

    `file` is where a value is from, None for a default.
    """
    who = None if tree is None else guarded(settings, tree, proc=proc, daemon=daemon_cgroup())
    return {
        "files": list(layers.names),
        "dry_run": settings.dry_run,
        "node_cgroup": settings.node_cgroup,
        "thresholds": list(_thresholds(settings, layers, tree, proc)),
        "pod_parents": list(settings.pod_parents),
        "pod_parent_matches": {} if who is None else {text: list(some) for text, some in who.matches.items()},
        "pods": [] if who is None else list(_pods(who)),
        "never": [] if who is None else [{"cgroup": one, "because": why} for one, why in who.never.items()],
        "built_in_never": [] if settings.kubernetes is not None else list(settings.pod_lists.built_in_never),
        "process_victims": list(_process_victims(settings)),
        "patterns_without_pod": [] if who is None else list(_patterns_without_pod(settings, who)),
        "settings": [
            {"key": one.path, "value": one.value, "file": layers.origin(one.path)}
            for one in effective(layers.document, settings)
        ],
        "warnings": [*settings.warnings, *map(str, findings(settings, layers, tree, proc=proc))],
    }


def _tree() -> CgroupTree | None:
    try:
        return CgroupTree.discover()
    except (OSError, ReactorError):
        return None


def _thresholds(
    settings: Settings, layers: Layers, tree: CgroupTree | None, proc: Path
) -> Iterator[Mapping[str, Any]]:
    observed = observed_on_this_machine(settings, tree, proc=proc)
    absurd = absurd_thresholds(settings.eviction.thresholds, observed)
    for one in settings.eviction.thresholds:
        seen = observed.get(one.signal)
        yield {
            "signal": one.signal,
            "kind": "hard" if one.is_hard else "soft",
            "value": one.value.text,
            "amount": None if seen is None else int(one.value.of(seen.capacity)),
            "unit": UNIT[RESOURCE[one.signal]],
            "available": None if seen is None else seen.available,
            "capacity": None if seen is None else seen.capacity,
            "grace_period_seconds": one.grace_period_seconds,
            "minimum_reclaim": None if one.minimum_reclaim is None else one.minimum_reclaim.text,
            "absurd": absurd.get(f"threshold {one}"),
            "file": _origin(one, layers),
            "derived": _is_derived(one.signal),
        }


def _origin(threshold: Threshold, layers: Layers) -> str | None:
    """Return the file that a threshold is from, None for a default and for a derived one."""
    key = "evictionHard" if threshold.is_hard else "evictionSoft"
    return None if _is_derived(threshold.signal) else layers.origin(join(key, threshold.signal))


def _is_derived(signal: Signal) -> bool:
    return signal.startswith("containerfs.") or signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE


def _patterns_without_pod(settings: Settings, who: Guarded) -> Iterator[str]:
    """Yield the entries of the lists whose pattern matches no pod now; that is no mistake as a rule."""
    lists = settings.pod_lists
    named = [Named(one.pod.cgroup or "", is_trusted=False) for one in who.pods]
    spared = [one.spared_because or "" for one in who.pods]  # a slice for what it holds
    for key, rules in (("never", lists.never), ("avoid", lists.avoid), ("prefer", lists.prefer)):
        for index, rule in enumerate(rules):
            text = entry_text(rule)
            is_matched = any(is_placed(rule, one) for one in named) or any(text in why for why in spared)
            if is_pattern_entry(rule) and not is_matched:
                yield f"reactor.pods.{key}[{index}]: {text}"


def _process_victims(settings: Settings) -> Iterator[Mapping[str, Any]]:
    for one in settings.pod_lists.process_victims:
        victim = victim_of(one)
        yield {
            "rule": victim.entry,
            "never": list(victim.never),
            "built_in_never": list(victim.built_in_never),
            "namespace": one.pods.namespace,
        }


def _pods(who: Guarded) -> Iterator[Mapping[str, Any]]:
    for one in who.pods:
        yield {
            "pod": one.pod.key,
            "cgroup": one.pod.cgroup,
            "qos_class": one.pod.qos_class,
            "priority": one.pod.priority,
            "victim": "pod" if one.pod.process_victim is None else "process",
            "process_victim_rule": None if one.pod.process_victim is None else one.pod.process_victim.entry,
            "request_bytes": one.pod.requests.get(Resource.MEMORY, 0),
            "used_bytes": one.used_bytes,
            "is_guarded": one.spared_because is None,
            "because": one.spared_because,
        }


def present(document: Mapping[str, Any], config_dir: Path | None, screen: Screen) -> None:
    """Print it as tables."""
    main, *drop_ins = document["files"]
    labels: dict[str | None, str] = {None: _DEFAULT, main: os.path.basename(main)}
    labels |= {name: os.path.relpath(name, config_dir) for name in drop_ins}
    for name in document["files"]:
        screen.say(f"{labels[name]}: {name}")
    node = document["node_cgroup"] or "this machine"
    screen.say(f"node: {node}{', dry run: no pod is evicted' if document['dry_run'] else ''}")
    screen.print(_threshold_table(document["thresholds"], labels))
    _print_pods(screen, document)
    if document["built_in_never"]:
        screen.say(f"never evicted, by unit: {', '.join(document['built_in_never'])}")
    # In two tables: a key of 36 columns beside a path of 30 leaves a screen no room for the file's name.
    for heading, prefix in (("KEY", ""), ("KEY OF reactor", f"{SECTION}.")):
        rows = [
            (one["key"].removeprefix(prefix), _text(one["value"]), labels[one["file"]])
            for one in document["settings"]
            if one["key"].startswith(f"{SECTION}.") == bool(prefix)
        ]
        if rows:
            screen.print(table((heading, "VALUE", "FROM"), rows, whole=f"{heading},FROM"))
    for warning in document["warnings"]:
        screen.say(f"warning: {warning}")


def _threshold_table(thresholds: Iterable[Mapping[str, Any]], labels: Mapping[str | None, str]) -> Any:
    rows = []
    for one in thresholds:
        unit = RESOURCE_IN[one["unit"]]
        here, free = (amount_text(one[key], unit) for key in ("amount", "available"))
        kind = one["kind"]
        if one["grace_period_seconds"]:
            kind += f" {duration_text(one['grace_period_seconds'])}"
        where = "derived" if one["derived"] else labels[one["file"]]
        rows.append(
            (one["signal"], kind, one["value"], here + (" (ignored)" if one["absurd"] else ""), free, where)
        )
    return table(
        ("SIGNAL", "KIND", "BELOW", "IS HERE", "AVAILABLE", "FROM"),
        rows,
        right="BELOW,IS HERE,AVAILABLE",
        whole="SIGNAL,KIND",
    )


def _print_pods(screen: Screen, document: Mapping[str, Any]) -> None:
    parents: Sequence[str] = document["pod_parents"]
    if not parents:
        screen.say("guarded: nobody, since reactor.pods.parents is empty: the daemon only observes")
        return
    pods = sorted(document["pods"], key=lambda one: (not one["is_guarded"], -(one["used_bytes"] or 0)))
    guarded_pods = [one for one in pods if one["is_guarded"]]
    screen.say(f"guarded: {counted(len(guarded_pods), 'pod')} now; each child of {', '.join(parents)} is one")
    _print_matches(screen, document["pod_parent_matches"])
    if guarded_pods:
        rows = [
            (
                one["cgroup"],
                amount_text(one["used_bytes"], Resource.MEMORY),
                amount_text(one["request_bytes"], Resource.MEMORY),
                one["priority"],
            )
            for one in guarded_pods
        ]
        columns = ("GUARDED", "USES", "REQUEST", "PRIORITY")
        screen.print(table(columns, rows, right="USES,REQUEST,PRIORITY", whole="GUARDED"))
    _print_process_victims(screen, document["process_victims"], guarded_pods)
    for entry in document["patterns_without_pod"]:
        screen.say(f"{entry} matches no pod now")
    spared = [(one["cgroup"], one["because"]) for one in pods if not one["is_guarded"]]
    if spared:
        screen.print(table(("SPARED", "BECAUSE"), spared, whole="SPARED"))
    never = [(one["cgroup"], f"is or holds {one['because']}") for one in document["never"]]
    screen.print(table(("NEVER TOUCHED", "BECAUSE"), [*never, (_NEVER, "no pods")], whole="NEVER TOUCHED"))


def _print_process_victims(
    screen: Screen, rules: Sequence[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]
) -> None:
    """Print in which pods one process is killed, by which rule, and which processes are spared there."""
    if not rules:
        return
    by_rule: dict[str, list[str]] = {one["rule"]: [] for one in rules}
    for pod in pods:
        if pod["process_victim_rule"] is not None:
            by_rule[pod["process_victim_rule"]].append(pod["cgroup"])
    rows = [
        (
            one["rule"],
            # What pods there are by their specs the daemon alone is told.
            ", ".join(by_rule[one["rule"]]) or ("none now" if one["namespace"] is None else "by their specs"),
            ", ".join(one["never"]) or "none",
        )
        for one in rules
    ]
    columns = ("ONE PROCESS IS KILLED BY", "PODS", "SPARED")
    screen.print(table(columns, rows, whole="ONE PROCESS IS KILLED BY"))
    screen.say(f"processes spared by any such rule: {', '.join(rules[0]['built_in_never'])}")


def _print_matches(screen: Screen, matches: Mapping[str, Sequence[str]]) -> None:
    for pattern, cgroups in matches.items():
        screen.say(f"{pattern} matches {counted(len(cgroups), 'cgroup')} now{':' if cgroups else ''}")
        for cgroup in cgroups[:_MOST_MATCHES]:
            screen.say(f"  {cgroup}")
        if len(cgroups) > _MOST_MATCHES:
            screen.say(f"  and {len(cgroups) - _MOST_MATCHES} more")


def _text(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)
