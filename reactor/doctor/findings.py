"""What is right in form and guards nobody, everybody or too late on this machine, for `reactor config check`.

The configuration may be meant for another machine, or for one that is not set up yet: these are warnings.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
from jeepney.bus import find_system_bus

from reactor.config.documents import Layers, directory_exposure, exposed_because, load_documents
from reactor.config.settings import KEY_OF_EVENT, Configuration
from reactor.doctor.kubernetes import reserved_too_little
from reactor.doctor.rules import managed_oom_findings, rule_findings
from reactor.doctor.thresholds import (
    absurd_on_this_machine,
    late_on_this_machine,
    without_holders,
    without_swap_on_this_machine,
)
from reactor.errors import ConfigError, ReactorError, join
from reactor.kernel import memory_control
from reactor.kernel.cgroup import CgroupTree, processes_below
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.procfs import PROC
from reactor.model.name_patterns import PodParent, is_pattern, matcher
from reactor.model.pod_lists import BUILT_IN_NEVER, VictimUnit
from reactor.model.pods import Pod
from reactor.model.settings import KernelKill, Settings, WebhookSettings
from reactor.policy.lists import Named, entry_text, is_placed
from reactor.programs import unrunnable_because
from reactor.shutdown.kubelet import ends_pods_itself
from reactor.steward.hooks import PREKILL_DIRECTORY, unusable_because
from reactor.tell.channels import WALL, read_secret
from reactor.text import nearest_name
from reactor.workloads.cgroups import CgroupPods
from reactor.workloads.kubelet_storage import NodePaths
from reactor.workloads.kubernetes_pods import KubernetesPods
from reactor.workloads.manifests import SUFFIXES
from reactor.workloads.parents import PodBoundaries
from reactor.workloads.search import matches_of

UNIT: Final = "/system.slice/reactor.service"
_SYSTEMD: Final = Path("/run/systemd/system")
# What an operator needs to get in, and what every other unit stands on: what is never evicted unless the
# operator says so, and beside it what some machines can well do without for a while. These are evicted where
# they lie below a parent, and a warning is what they are worth, maybe one too many. Whole slices count, too.
_NEVER: Final = tuple(map(matcher, BUILT_IN_NEVER))
_BESIDE: Final = re.compile(
    r"(dropbear|systemd-.*|polkit|NetworkManager|networking|wpa_supplicant|iwd|getty@.*|serial-getty@.*|user@0|"
    r"auditd|rsyslog|chronyd?|ntpd?|cloud-.*|multipathd|lvm2-.*|iscsid|tailscaled|wg-quick@.*|cri-docker|"
    r"k3s(-agent)?|rke2-(server|agent)|libvirtd|virt.*d)\.service"
    r"|system\.slice|user\.slice|user-0\.slice|kubepods(\.slice)?"
)
ESSENTIAL_EXAMPLES: Final = "sshd, dbus, systemd's own services, container runtimes, the kubelet"

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


def notification_problems(settings: Settings) -> dict[str, str]:
    """Return by key of the configuration why a notification can't be given by it on this machine."""
    found: dict[str, str] = {}
    for kind, commands in settings.notifications.commands.items():
        problems = [why for why in map(unrunnable_because, commands) if why is not None]
        if problems:
            found[f"reactor.{KEY_OF_EVENT[kind]}"] = "; ".join(problems)
    wall_problem = unrunnable_because((WALL,)) if settings.notifications.wall else None
    if wall_problem is not None:
        found["reactor.wall"] = wall_problem
    no_bus = system_bus_problem() if settings.notifications.desktop else None
    if no_bus is not None:
        found["reactor.desktop"] = no_bus
    if settings.notifications.webhook is not None:
        found |= _of_webhook(settings.notifications.webhook)
    return found


def system_bus_problem() -> str | None:
    """Return why there is no system bus on this machine, None where there is one."""
    try:
        bus = find_system_bus()
    except (RuntimeError, ValueError):
        bus = "DBUS_SYSTEM_BUS_ADDRESS"
    return None if os.path.exists(bus) else f"no system bus at {bus}"


def _of_webhook(webhook: WebhookSettings) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, path in (("urlFile", webhook.url_path), ("tokenFile", webhook.token_path)):
        problem = None if path is None else _secret_problem(path)
        if problem is not None:
            found[f"reactor.webhook.{key}"] = problem
    if webhook.ca_path is not None:
        try:
            ssl.create_default_context(cafile=webhook.ca_path)
        except OSError as error:  # also what OpenSSL says of what it can't read
            found["reactor.webhook.caFile"] = f"{webhook.ca_path}: {error.strerror or error}"
    return found


def _secret_problem(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
        read_secret(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    except ReactorError as error:
        return str(error)
    if mode & stat.S_IROTH:
        return f"{path} has mode {stat.S_IMODE(mode):04o}: every user may read it"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedPod:
    """A pod, and what it uses now, None where that can't be read.

    `spared_because` is why it is never evicted, None for one that may be.
    """

    pod: Pod
    used_bytes: int | None

    @property
    def spared_because(self) -> str | None:
        """Return why it is never evicted."""
        return self.pod.critical_because

    @property
    def is_essential(self) -> bool:
        """Return whether an operator would lose the machine with it."""
        unit = (self.pod.cgroup or "").rpartition("/")[2]
        if unit.endswith(".socket"):
            unit = f"{unit.removesuffix('.socket')}.service"
        return any(matches(unit) for matches in _NEVER) or _BESIDE.fullmatch(unit) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """The pods there are; `never` are the cgroups that would be pods but for what they are or hold.

    `matches` are the cgroups that each pattern among the parents matches.
    """

    pods: tuple[GuardedPod, ...] = ()
    matches: Mapping[str, Sequence[str]] = field(default_factory=dict)
    never: Mapping[str, str]
    problems: Mapping[str, str]


def daemon_cgroup(systemd: Path = _SYSTEMD) -> str | None:
    """Return the cgroup of the daemon's unit, None where no systemd runs: this process's is as good."""
    return UNIT if systemd.is_dir() else None


def guarded(settings: Settings, tree: CgroupTree, *, proc: Path = PROC, daemon: str | None = None) -> Guarded:
    """Return who is there by these settings. What can't be read is in `problems`.

    On a Kubernetes node nobody is asked for specs: a pod's priority is not known, and its name only if the
    kubelet's log directory has it.
    """
    on_kubernetes = settings.kubernetes is not None
    listing: CgroupPods | KubernetesPods = (
        KubernetesPods(tree, settings, paths=NodePaths(proc=proc))
        if on_kubernetes
        else CgroupPods(tree, settings, proc=proc, daemon=daemon)
    )
    pods = trio.run(listing.listed)
    boundaries = PodBoundaries(tree, settings.pod_parents, settings.node_cgroup, proc, daemon=daemon)
    return Guarded(
        matches={} if isinstance(listing, KubernetesPods) else listing.matches,
        pods=tuple(GuardedPod(pod=pod, used_bytes=_used_bytes(tree, pod)) for pod in pods),
        never={
            cgroup: why
            for cgroup, why in boundaries.spared.items()
            if any(parent.is_parent(os.path.dirname(cgroup)) for parent in boundaries.parents)
        },
        problems={} if on_kubernetes else listing.problems,  # there, that no spec is known
    )


def _used_bytes(tree: CgroupTree, pod: Pod) -> int | None:
    if pod.cgroup is None:
        return None
    try:
        counters = MemoryCounters(tree, pod.cgroup)
    except (OSError, ReactorError):
        return None
    try:
        return counters.working_set_bytes()
    except (OSError, ReactorError):
        return None
    finally:
        counters.close()


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
        victims = (*_process_victims(settings, who), *_units(settings, who, tree))
        for path, why in (*victims, *_lists(settings, who)):
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
            if len(pods) == 1:
                return f"the only pod now is never evicted: {first}"
            return f"each of the {len(pods)} pods now is never evicted, such as {first}"
    return None


def refusals(configuration: Configuration) -> Iterator[Finding]:
    """Yield why `reactor run` would refuse the file as it lies here: it may be for another machine."""
    try:
        configuration.check_exposure()
    except ConfigError as error:
        yield Finding("", "", f"reactor run refuses it here: {error}")


def _found(
    settings: Settings, document: Mapping[Any, Any], tree: CgroupTree | None, proc: Path
) -> Iterator[tuple[str, str]]:
    yield from _parents(settings, document, tree)
    yield from _commands(settings)
    yield from _hooks(settings)
    for path, why in notification_problems(settings).items():
        yield path, f"on this machine {why}"
    yield from _files(settings)
    yield from _own_files(settings)
    yield from _shutdown(settings, document)
    if settings.kernel_kill is KernelKill.HARD and tree is not None and tree.version is CgroupVersion.V1:
        yield "reactor.kernelKill", "has no effect on this machine: the memory controller is on cgroup v1"
    if settings.eviction.soft_reclaim_seconds > 0 and tree is not None:
        because = memory_control.unavailable_because(tree)
        if because is not None:
            yield "reactor.reclaimBeforeSoft", f"has no effect on this machine: {because}"
    absurd, late = (
        absurd_on_this_machine(settings, tree, proc=proc),
        late_on_this_machine(settings, tree, proc=proc),
    )
    for what, why in (*absurd.items(), *late.items()):
        yield what, f"on this machine {why}"
    yield from without_swap_on_this_machine(settings, proc=proc).items()
    yield from reserved_too_little(settings, tree, proc=proc)
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
    below = parts[4:] if len(parts) > 3 and parts[3] in _V1_CONTROLLERS else parts[3:]
    return "/" + "/".join(below)


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
            below = "/".join((meant, *parts[index + 1 :]))
            found = f"{there}/{below}" if _is_there(tree, f"{there}/{below}") else f"{there}/{meant}"
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
    applied = {one.pod.process_victim.entry for one in who.pods if one.pod.process_victim is not None}
    for index, rule in enumerate(settings.pod_lists.process_victims):
        if entry_text(rule.pods) in applied:
            continue
        why = "matches no pod on this machine now"
        named = [one.pod.cgroup for one in who.pods if one.pod.cgroup is not None]
        matched = [one for one in named if is_placed(rule.pods, Named(one, is_trusted=False))]
        if matched and not rule.pods.is_trusting:
            why = (
                f"applies to no pod now: root did not choose the name of {_some(matched)}, "
                "or an earlier rule matches; `trusting: true` takes such names"
            )
        yield f"reactor.pods.processVictims[{index}]", why


def _units(settings: Settings, who: Guarded, tree: CgroupTree) -> Iterator[tuple[str, str]]:
    """Yield the rules for a part of a pod by which a pod of this machine has no such part now."""
    for index, rule in enumerate(settings.pod_lists.process_victims):
        if rule.unit is VictimUnit.PROCESS:
            continue
        entry = entry_text(rule.pods)
        victims = ((one.pod.process_victim, one.pod.cgroup) for one in who.pods)
        named = [
            cgroup for victim, cgroup in victims if victim is not None and victim.entry == entry and cgroup
        ]
        whole = [cgroup for cgroup in named if not _has_parts(tree, cgroup, rule.unit)]
        if whole:
            part = "no cgroup below it now: the whole pod is evicted"
            if rule.unit is VictimUnit.TREE:
                part = "one process alone now: the pod ends with it"
            why = f"{rule.unit}: {_some(whole)} has {part}"
            yield f"reactor.pods.processVictims[{index}]", why


def _has_parts(tree: CgroupTree, cgroup: str, unit: VictimUnit) -> bool:
    try:
        if unit is VictimUnit.LEAF:
            return bool(tree.children(cgroup))
        with closing(tree.open(cgroup)) as directory:
            return len(processes_below(directory)) != 1
    except (OSError, ReactorError):
        return True  # it has just gone


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


def _hooks(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield which hooks before soft evictions are not there, or could be replaced by others."""
    path = "reactor.beforeEviction"
    for index, command in enumerate(settings.hooks.commands):
        where = f"{path}.commands[{index}]" if len(settings.hooks.commands) > 1 else f"{path}.commands"
        why = unrunnable_because(command)
        if why is not None:
            yield where, f"can't be run on this machine: {why}"
            continue
        program = Path(command[0])
        exposed = exposed_because(program, program.stat())
        if exposed is not None:
            yield where, f"is run as root, and {exposed}"
    if settings.hooks.prekill:
        why = unusable_because(PREKILL_DIRECTORY)
        if why is not None:
            yield f"{path}.prekill", f"no hook is called on this machine: {why}"


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


def _own_files(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield where another user could be in the place of the daemon: lock its files, or write them."""
    own = {
        "stateFile": settings.state_path,
        "socket": settings.socket_path,
        "journal.path": settings.journal.path,
    }
    for key, path in own.items():
        with suppress(OSError):  # made by the daemon, for itself alone
            exposed = directory_exposure(Path(path).absolute().parent, may_be_sticky=False)
            if exposed is not None:
                yield f"reactor.{key}", f"{exposed}; another user can stop the daemon there"


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
