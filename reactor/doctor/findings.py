"""What is right in form and guards nobody, everybody or too late on this machine, for `reactor config check`.

The configuration may be meant for another machine, or for one that is not set up yet: these are warnings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from reactor.config.documents import load_documents
from reactor.config.drop_ins import Layers
from reactor.config.refused import join
from reactor.config.settings import load_configuration
from reactor.doctor.disks import without_holders
from reactor.doctor.guarded import Guarded, daemon_cgroup, guarded
from reactor.doctor.managed_oom import managed_oom_findings
from reactor.doctor.notifications import notification_problems, system_bus_problem
from reactor.doctor.rules import rule_findings
from reactor.doctor.thresholds import (
    absurd_on_this_machine,
    late_on_this_machine,
    without_swap_on_this_machine,
)
from reactor.errors import ConfigError, ReactorError
from reactor.kernel import memory_reclaim
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.procfs import PROC
from reactor.model.name_patterns import matcher
from reactor.model.nearest import nearest_name
from reactor.model.pod_parents import PodParent, is_pattern
from reactor.model.settings import KernelKill, Settings
from reactor.policy.lists import Named, matches_by_any_name, rule_text
from reactor.programs import unrunnable_because
from reactor.shutdown.kubelet import ends_pods_itself
from reactor.workloads.manifests import SUFFIXES
from reactor.workloads.search import matches_of

_SHOWN: Final = 5
_OF_ROOT: Final = (
    "each child of / is one pod: a whole slice is evicted at once, such as /system.slice with all services, "
    "or /user.slice with all users; name the slices whose children are to be pods"
)
_ANY_UNIT: Final = ("a.service", "session-1.scope", "0", "user.slice", "Z_9.mount")
_MOUNTED: Final = ("sys", "fs", "cgroup")
_V1_CONTROLLERS: Final = frozenset(
    ("memory", "pids", "cpu", "cpuacct", "cpu,cpuacct", "freezer", "systemd", "unified", "blkio", "devices")
)


class Finding(NamedTuple):
    """Which file, where in it, and what is to be said of it."""

    file: str
    path: str
    why: str

    def __str__(self) -> str:
        """Return it as one line."""
        return ": ".join(part for part in self if part)


def findings(
    settings: Settings, layers: Layers, tree: CgroupTree | None, *, proc: Path = PROC
) -> Iterator[Finding]:
    """Yield what an operator should know of a configuration that is valid; `tree` None: no cgroups here."""
    for path, why in _found(settings, layers.document, tree, proc):
        yield Finding(layers.file_of(path), path, why)
    if tree is not None and settings.kubernetes is None:
        who = guarded(settings, tree, proc=proc, daemon=daemon_cgroup())
        for path, why in _essential(settings, layers.document, who):
            yield Finding(layers.file_of(path), path, why)
        for path, why in (*_process_victims(settings, who), *_lists(settings, who)):
            yield Finding(layers.file_of(path), path, why)
        if settings.manifests_path is not None:
            yield from _manifests(settings.manifests_path, who.problems)


def nobody_because(settings: Settings, tree: CgroupTree | None) -> str | None:
    """Return why no pod is guarded now, as the configuration intends; None where one may be."""
    if not settings.pod_parents:
        return "reactor.pods.parents is empty, so the daemon only observes"
    if tree is not None and not any(_is_there(tree, one) for one in matches_of(tree, settings.pod_parents)):
        return f"there is no cgroup {' or '.join(settings.pod_parents)} yet"
    if tree is not None and settings.kubernetes is None:
        pods = guarded(settings, tree, daemon=daemon_cgroup()).pods
        if pods and all(one.spared_because is not None for one in pods):
            first = f"{pods[0].pod.cgroup} ({pods[0].spared_because})"
            return f"each of the {len(pods)} pods now is never evicted, such as {first}"
    return None


def refusals(path: Path, config_dir: Path | None) -> Iterator[Finding]:
    """Yield why `reactor run` would refuse the file as it lies here: it may be for another machine."""
    try:
        load_configuration(path, config_dir, may_run_commands=True)
    except ConfigError as error:
        yield Finding("", "", f"reactor run refuses it here: {error}")


def _found(
    settings: Settings, document: Mapping[Any, Any], tree: CgroupTree | None, proc: Path
) -> Iterator[tuple[str, str]]:
    yield from _parents(settings, document, tree)
    yield from _commands(settings)
    for path, why in notification_problems(settings).items():
        yield path, f"on this machine {why}"
    yield from _files(settings)
    yield from _shutdown(settings, document)
    if settings.kernel_kill is KernelKill.HARD and tree is not None and tree.version is CgroupVersion.V1:
        yield "reactor.kernelKill", "has no effect on this machine: the memory controller is on cgroup v1"
    if settings.eviction.soft_reclaim_seconds > 0 and tree is not None:
        because = memory_reclaim.unavailable_because(tree)
        if because is not None:
            yield "reactor.reclaimBeforeSoft", f"has no effect on this machine: {because}"
    absurd, late = (
        absurd_on_this_machine(settings, tree, proc=proc),
        late_on_this_machine(settings, tree, proc=proc),
    )
    for what, why in (*absurd.items(), *late.items()):
        yield what, f"on this machine {why}"
    yield from without_swap_on_this_machine(settings, proc=proc).items()
    for threshold, why in without_holders(settings).items():
        yield join("evictionHard" if threshold.is_hard else "evictionSoft", threshold.signal), why
    yield from rule_findings(settings, tree, proc=proc)
    yield from managed_oom_findings(settings, tree, proc=proc)


def _parents(
    settings: Settings, document: Mapping[Any, Any], tree: CgroupTree | None
) -> Iterator[tuple[str, str]]:
    written = _written_parents(document)
    if not settings.pod_parents:
        if written is None:
            yield (
                "reactor.pods.parents",
                "empty: no pod can be evicted (set it, or reactor.nodeCgroup, or reactor.kubernetes)",
            )
        return
    if tree is None:
        yield (
            "reactor.pods.parents",
            "no cgroup memory controller is mounted on this machine: no pod can be evicted",
        )
        return
    if "/" in (settings.pod_parents if written else ()):
        path = f"reactor.pods.parents[{settings.pod_parents.index('/')}]"
        yield path, _OF_ROOT
    named = [] if settings.node_cgroup is None else [("reactor.nodeCgroup", settings.node_cgroup)]
    parents = [
        (f"reactor.pods.parents[{index}]", parent)
        for index, parent in enumerate(settings.pod_parents if written else ())
    ]
    for path, cgroup in (*named, *parents):
        why = _missing_because(tree, cgroup)
        if why is not None:
            yield path, why
    if settings.kubernetes is not None and not written and not _any_is_there(tree, settings.pod_parents):
        yield (
            "reactor.kubernetes",
            f"none of the pods' cgroups is on this machine: {', '.join(settings.pod_parents)}",
        )


def _written_parents(document: Mapping[Any, Any]) -> Sequence[Any] | None:
    """Return the parents as the configuration names them, None where it doesn't."""
    found = ((document.get("reactor") or {}).get("pods") or {}).get("parents")
    return found if isinstance(found, list) else None


def _any_is_there(tree: CgroupTree, cgroups: Sequence[str]) -> bool:
    return any(_missing_because(tree, cgroup) is None for cgroup in cgroups)


def _missing_because(tree: CgroupTree, cgroup: str) -> str | None:
    """Return what to say of a cgroup or pattern that is not on this machine, None for one that is."""
    if is_pattern(cgroup):
        return _unmatched_because(tree, cgroup)
    try:
        if tree.exists(cgroup):
            return None
    except ReactorError as error:
        return f"never guarded: {error}"
    if _is_made_on_demand(tree, cgroup):
        return None
    inside = _without_mount_point(tree, cgroup)
    if inside is not None:
        return (
            f"{cgroup} begins with the mount point of the cgroups, and is no cgroup: paths start at the "
            f"hierarchy's root (did you mean {inside}?)"
        )
    return f"{cgroup} is not on this machine: no pod is guarded there until it is ({_nearest(tree, cgroup)})"


def _unmatched_because(tree: CgroupTree, pattern: str) -> str | None:
    """Return what to say of a pattern that matches nothing on this machine, None for one that does."""
    if matches_of(tree, [pattern]):
        return None
    inside = _without_mount_point(tree, pattern)
    if inside is not None:
        return (
            f"{pattern} begins with the mount point of the cgroups: paths start at the hierarchy's root "
            f"(did you mean {inside}?)"
        )
    return (
        f"{pattern} matches no cgroup on this machine: it guards no pod now ({_nearest_match(tree, pattern)})"
    )


def _nearest_match(tree: CgroupTree, pattern: str) -> str:
    """Return which pattern was probably meant, one that matches; else the nearest cgroup that is there."""
    parts = pattern.strip("/").split("/")
    for count in range(len(parts) - 1, 0, -1):
        begins = "/" + "/".join(parts[:count])
        there = [one for one in matches_of(tree, [begins]) if _is_there(tree, one)]
        if not there:
            continue
        for one in () if is_pattern(parts[count]) else there:
            meant = _meant(parts[count], _children(tree, one))
            nearer = "" if meant is None else "/".join((begins, meant, *parts[count + 1 :]))
            if nearer and any(_is_there(tree, match) for match in matches_of(tree, [nearer])):
                return f"did you mean {nearer}?"
        return f"the nearest that is there: {there[0]}"
    return _nearest(tree, f"/{parts[0]}")


def _without_mount_point(tree: CgroupTree, cgroup: str) -> str | None:
    """Return the cgroup that a path in the file system means, None where it is none."""
    parts = cgroup.strip("/").split("/")
    root = str(tree.memory_root).strip("/").split("/")
    if parts[: len(root)] == root:
        return "/" + "/".join(parts[len(root) :])
    if tuple(parts[:3]) != _MOUNTED:
        return None
    rest = parts[4:] if len(parts) > 3 and parts[3] in _V1_CONTROLLERS else parts[3:]
    return "/" + "/".join(rest)


def _nearest(tree: CgroupTree, cgroup: str) -> str:
    """Return which cgroup that is there was probably meant; else which there are."""
    there, parts = "", cgroup.strip("/").split("/")
    for index, part in enumerate(parts):
        if _is_there(tree, f"{there}/{part}"):
            there = f"{there}/{part}"
            continue
        names = _children(tree, there or "/")
        meant = _meant(part, names)
        if meant is not None:
            rest = "/".join((meant, *parts[index + 1 :]))
            found = f"{there}/{rest}" if _is_there(tree, f"{there}/{rest}") else f"{there}/{meant}"
            return f"did you mean {found}?"
        if there:
            return f"the nearest that is there: {there}"
        return f"there are: {_some([f'/{name}' for name in names])}" if names else "there are no cgroups here"
    return f"the nearest that is there: {there}"


def _meant(name: str, names: Sequence[str]) -> str | None:
    """Return which of these cgroups was probably meant."""
    return nearest_name(name, names)


def _is_made_on_demand(tree: CgroupTree, cgroup: str) -> bool:
    """Return whether systemd makes the cgroup with the first unit in it: a slice, spelled like no other."""
    name = cgroup.removeprefix("/")
    is_slice = name.endswith(".slice") and "/" not in name
    return is_slice and daemon_cgroup() is not None and _meant(name, _children(tree, "/")) is None


def _is_there(tree: CgroupTree, cgroup: str) -> bool:
    try:
        return tree.exists(cgroup)
    except ReactorError:
        return False


def _children(tree: CgroupTree, cgroup: str) -> tuple[str, ...]:
    try:
        return tree.children(cgroup)
    except (OSError, ReactorError):
        return ()


def _essential(settings: Settings, document: Mapping[Any, Any], who: Guarded) -> Iterator[tuple[str, str]]:
    """Yield the parents whose pods are what an operator can't do without."""
    for index, parent in enumerate(settings.pod_parents):
        is_parent = PodParent(parent).is_parent
        names = [
            os.path.basename(one.pod.cgroup or "")
            for one in who.pods
            if is_parent(os.path.dirname(one.pod.cgroup or ""))
            and one.is_essential
            and one.spared_because is None
        ]
        if names:
            path = f"reactor.pods.parents[{index}]" if _written_parents(document) else "reactor.nodeCgroup"
            remedy = "name each in reactor.pods.never, or guard a slice without them"
            yield path, f"may evict what this machine needs: {_some(names)}; {remedy}"


def _process_victims(settings: Settings, who: Guarded) -> Iterator[tuple[str, str]]:
    """Yield the rules for one process of a pod that apply to no pod of this machine now."""
    applied = {one.pod.process_victim.rule for one in who.pods if one.pod.process_victim is not None}
    for index, rule in enumerate(settings.pod_lists.process_victims):
        if rule_text(rule.pods) in applied:
            continue
        why = "matches no pod on this machine now"
        pods = replace(rule.pods, process=None)
        named = [one.pod.cgroup for one in who.pods if one.pod.cgroup is not None]
        matched = [one for one in named if matches_by_any_name(pods, Named(one, is_trusted=False))]
        if matched and not rule.pods.is_trusting:
            why = (
                f"applies to no pod now: root did not choose the name of {_some(matched)}, "
                "or an earlier rule matches; `trusting: true` takes such names"
            )
        yield f"reactor.pods.processVictims[{index}]", why


def _lists(settings: Settings, who: Guarded) -> Iterator[tuple[str, str]]:
    """Yield the names on the lists that are no pod's, and the entries that spare each pod there could be."""
    yield from ((path, why) for path, why in who.problems.items() if path.startswith("reactor.pods."))
    for index, rule in enumerate(settings.pod_lists.never):
        if rule.process is None and rule.cgroup is None and all(map(matcher(rule.unit or ""), _ANY_UNIT)):
            yield f"reactor.pods.never[{index}]", f"{rule.unit} is each unit: no pod can be evicted"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _shutdown(settings: Settings, document: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield why a shutdown of this machine would not be held up, or who does so already."""
    if not settings.shutdown_groups:
        return
    by_priority = "shutdownGracePeriodByPodPriority"
    path = by_priority if document.get(by_priority) else "shutdownGracePeriod"
    no_bus = system_bus_problem()
    if no_bus is not None:
        yield path, f"has no effect on this machine: {no_bus}"
    kubernetes = settings.kubernetes
    if kubernetes is not None and ends_pods_itself(Path(kubernetes.kubelet_config_path)):
        why = f"the kubelet ends the pods itself, by {kubernetes.kubelet_config_path}"
        yield path, f"has no effect on this machine: {why}"


def _commands(settings: Settings) -> Iterator[tuple[str, str]]:
    for filesystem, commands in settings.reclaim.commands.items():
        path = f"reactor.reclaim.{filesystem}"
        for index, command in enumerate(commands):
            why = unrunnable_because(command)
            if why is not None:
                yield (
                    (f"{path}[{index}]" if len(commands) > 1 else path),
                    f"can't be run on this machine: {why}",
                )


def _files(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what the configuration names and this machine does not have."""
    named: dict[str, str | None] = {
        "reactor.pods.manifests": settings.manifests_path,
        "reactor.runtime.endpoint": settings.runtime_endpoint,
        "reactor.podman.socket": settings.podman_socket,
        **{f"reactor.filesystems.{name}": path for name, path in settings.filesystems.items()},
    }
    if settings.kubernetes is not None:
        named["reactor.kubernetes.kubeconfig"] = settings.kubernetes.kubeconfig_path
        named["reactor.kubernetes.kubelet.caFile"] = settings.kubernetes.kubelet_ca_path
    for path, file in named.items():
        try:
            if file is not None:
                Path(file).stat()
        except OSError as error:
            yield path, f"{file}: {error.strerror} on this machine"


def _manifests(directory: str, problems: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is wrong with manifests, and those whose priority is left to an admission plugin."""
    for where, why in problems.items():
        if where.startswith(directory):
            yield Finding("", "", why if why.startswith(where) else f"{where}: {why}")
    try:
        files = sorted(
            one for one in Path(directory).iterdir() if one.name.endswith(SUFFIXES) and one.is_file()
        )
    except OSError:
        return
    for file in files:
        try:
            documents = load_documents(file.read_text(encoding="utf-8"), str(file))
        except (OSError, ValueError, ConfigError):
            continue  # said above
        for index, document in enumerate(documents):
            spec = document.get("spec") if isinstance(document, Mapping) else None
            if not isinstance(spec, Mapping) or spec.get("priority") is not None:
                continue
            if spec.get("priorityClassName"):
                path = f"{join('', index)}.spec.priorityClassName"
                yield Finding(str(file), path, _unresolved(spec["priorityClassName"]))


def _unresolved(name: object) -> str:
    return (
        f"{name!r} counts as priority 0: on a plain node nobody resolves the name of a class; write "
        "spec.priority"
    )
