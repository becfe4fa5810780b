"""`reactor doctor`: what this node offers, which sources the daemon would use on it, and what is missing."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from reactor.config.documents import load_document
from reactor.doctor.kubernetes import kubernetes_features, podman_features, runtime_feature
from reactor.doctor.rules import managed_oom_on_this_machine
from reactor.doctor.thresholds import (
    absurd_on_this_machine,
    late_on_this_machine,
    without_holders_by_name,
    without_swap_on_this_machine,
)
from reactor.errors import ConfigError, KernelInterfaceError, ReactorError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.features import Feature, probe
from reactor.kernel.files import parse_integer, read_file, unescape_mount
from reactor.kernel.swap import machine_swap
from reactor.model.quantity import bytes_text
from reactor.model.settings import EbpfLoader, KernelKill, OomOrderMode, Settings
from reactor.model.signals import Signal
from reactor.sources.catalogue import (
    BY_NAME,
    MEMCG_EVENTFD,
    RULE_PRESSURE,
    SOURCES,
    SWAP,
    TICKER,
    Source,
    Watched,
    steps_of,
)
from reactor.tables import Screen, table
from reactor.text import printable

SWAP_FEATURE: Final = "swap"
_LARGEST_BYTES: Final = 4 << 20
_COLUMNS: Final = 5
_ZSWAP: Final = "sys/module/zswap/parameters"
_BEHAVIOURS: Final = {
    "": "pods get none (swapBehavior is not set, which is NoSwap)",
    "NoSwap": "pods get none (swapBehavior NoSwap)",
    "LimitedSwap": "Burstable pods get a share (swapBehavior LimitedSwap), others none",
}

_CONTROLLER: Final = "cgroup memory controller"
_MEMORY_HIGH: Final = "memory.high"
_SWITCHED_OFF: Final = "switched off in the configuration"
_ON_V1: Final = "the memory controller is on cgroup v1"
_WARRANTS: Final = "eBPF warrants"
_NO_CHOICE: Final = frozenset({_SWITCHED_OFF, _ON_V1})


class Place(StrEnum):
    """Where this runs."""

    NODE = "node"
    WITHOUT_SYSTEMD = "without systemd"
    CONTAINER = "container"
    POD = "pod"


NONE_IS_NEEDED: Final = "none is needed"
_NO_CGROUP: Final = f"{NONE_IS_NEEDED}: the steward has its rlimit, and only a unit of the node can have more"
_CGROUPS: Final = "start the container with --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup"
_BY_PLACE: Final = {
    Place.NODE: {},
    Place.WITHOUT_SYSTEMD: {
        "capabilities": "run it as root, or grant it these capabilities",
        "realtime": "run it as root, or grant it CAP_SYS_NICE; with CONFIG_RT_GROUP_SCHED also a runtime",
        "steward's cgroup": _NO_CGROUP,
        "memory lock": "run it as root, or grant it CAP_IPC_LOCK",
    },
    Place.CONTAINER: {
        "capabilities": "start the container with what is missing: --cap-add, or --privileged",
        "realtime": "start the container with --cap-add SYS_NICE --ulimit rtprio=99",
        "steward's cgroup": _NO_CGROUP,
        "memory lock": "start the container with --cap-add IPC_LOCK",
        "cgroup memory controller": _CGROUPS,
        "freezer": _CGROUPS,
    },
    Place.POD: {
        "capabilities": "add what is missing to the container's securityContext.capabilities: "
        "deploy/kustomize/base/daemonset.yaml has all of them, each with what it is for",
        "realtime": "add SYS_NICE to the container's capabilities; with CONFIG_RT_GROUP_SCHED (cgroup v1) a "
        "pod has no realtime runtime: run reactor as a unit of the node, boot the node with rt_group_sched=0 "
        "(Linux 6.16), or write cpu.rt_runtime_us of the pod's cgroups; reactor.realtime.fifoPriority to 0 "
        "does without",
        "steward's cgroup": _NO_CGROUP,
        "memory lock": "add IPC_LOCK to the container's capabilities",
    },
}
_UNIT: Final = "give the unit the capability"
_GRANT: Final = {
    Place.WITHOUT_SYSTEMD: "grant it the capability",
    Place.CONTAINER: "start the container with --cap-add and the capability",
    Place.POD: "add the capability to the container's securityContext",
}
_BOOT: Final = "boot "


def this_place(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Place:
    """Return where this runs.

    The kubelet shows every container where the API server is; docker and podman leave a file, others the
    variable `container`. Source: systemd's detect_container.
    """
    if "KUBERNETES_SERVICE_HOST" in environment:
        return Place.POD
    files = (".dockerenv", "run/.containerenv", "run/systemd/container")
    if environment.get("container") or any((root / file).exists() for file in files):
        return Place.CONTAINER
    return Place.NODE if (root / "run/systemd/system").is_dir() else Place.WITHOUT_SYSTEMD


def fitting(feature: Feature, place: Place) -> Feature:
    """Return a feature whose remedy can be applied where this runs."""
    remedy = feature.remedy
    if not remedy or place is Place.NODE:
        return feature
    remedy = _BY_PLACE[place].get(feature.name) or remedy.replace(_UNIT, _GRANT[place])
    if place in {Place.CONTAINER, Place.POD} and remedy.startswith(_BOOT):
        remedy = f"on the node: {remedy}"
    return replace(feature, remedy=remedy)


def each_once(features: Iterable[Feature]) -> Mapping[str, tuple[str, ...]]:
    """Return each remedy with the names of the features that it is for."""
    found: dict[str, tuple[str, ...]] = {}
    for feature in features:
        if feature.remedy and not feature.available:
            found[feature.remedy] = (*found.get(feature.remedy, ()), feature.name)
    return found


def swap_feature(settings: Settings, root: Path = Path("/")) -> Feature:
    """Return the machine's swap; available where there is some. `root` has proc and sys."""
    try:
        machine = machine_swap(root / "proc")
        if not machine.total_bytes:
            none = ["none: a threshold on swap.available is never met", *_kubelets(settings, has_swap=False)]
            return Feature(name=SWAP_FEATURE, available=False, detail="; ".join(none))
        found = [f"{bytes_text(machine.total_bytes)}, {bytes_text(machine.free_bytes)} free"]
        found += _areas(root / "proc/swaps")
    except (OSError, ReactorError) as error:
        return Feature(name=SWAP_FEATURE, available=False, detail=f"unknown: {error}")
    found += _zswap(root / _ZSWAP)
    found += _kubelets(settings, has_swap=True)
    return Feature(name=SWAP_FEATURE, available=True, detail="; ".join(found))


def parse_swaps(raw: bytes, interface: str = "/proc/swaps") -> tuple[str, ...]:
    """Return the names of the files and devices that are swapped to. Raises KernelInterfaceError."""
    names = []
    for line in raw.splitlines()[1:]:
        words = line.split()
        if len(words) != _COLUMNS:
            raise KernelInterfaceError(interface, line[:64], "five words")
        parse_integer(words[2], interface)
        names.append(printable(unescape_mount(words[0]).decode("utf-8", "surrogateescape")))
    return tuple(names)


def _areas(path: Path) -> Iterator[str]:
    names = parse_swaps(read_file(path), str(path))
    yield f"on {', '.join(names)}"
    if any(Path(name).name.startswith("zram") for name in names):
        yield "what is swapped to zram stays in memory, compressed: memory.available counts it as used"


def _zswap(directory: Path) -> Iterator[str]:
    """Yield that zswap keeps pages in memory before they reach the disk."""
    with suppress(OSError):
        if read_file(directory / "enabled").strip() in {b"Y", b"1"}:
            percent = read_file(directory / "max_pool_percent").strip().decode("ascii", "replace")
            yield f"zswap keeps pages compressed in memory first, in {percent} % of it at most"


def _kubelets(settings: Settings, *, has_swap: bool) -> Iterator[str]:
    """Yield what the kubelet says of swap; nothing on a plain node, or where its file can't be read."""
    if settings.kubernetes is None:
        return
    path = settings.kubernetes.kubelet_config_path
    try:
        with Path(path).open("rb") as file:
            document: Any = load_document(file.read(_LARGEST_BYTES).decode(), path)
    except (OSError, UnicodeDecodeError, ConfigError):
        return
    if not isinstance(document, Mapping):
        return
    if document.get("failSwapOn", True) is not False:
        if has_swap:
            yield f"{path}: the kubelet does not start with swap (failSwapOn is true, as by default)"
        return
    behaviour = document.get("memorySwap")
    behaviour = behaviour.get("swapBehavior") if isinstance(behaviour, Mapping) else None
    text = _BEHAVIOURS.get(behaviour or "") if isinstance(behaviour, str | None) else None
    yield f"{path}: " + (text or f"unknown swapBehavior {printable(repr(behaviour))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Whether a source would be used, for what, and why so."""

    name: str
    used: bool
    purpose: str
    because: str


def examine(settings: Settings | None, output: str, *, verbose: bool = False, strict: bool = False) -> int:
    """Print what there is; the exit status is 1 where reactor can't guard this node at all.

    With `strict` it is 2 there, and 1 where something less than the first choice would be used. With
    `verbose` the verifier's log of each eBPF program that was refused is printed too.
    """
    wanted = settings or Settings()
    place = this_place()
    features = (
        *(fitting(one, place) for one in probe(for_others=_writes_for_others(wanted))),
        swap_feature(wanted),
        runtime_feature(wanted),
        *podman_features(wanted),
        *kubernetes_features(wanted),
    )
    by_name = {feature.name: feature for feature in features}
    plans = source_plans(settings or Settings(), by_name)
    kernel_kill = kernel_kill_plan(settings or Settings(), by_name)
    absurd, late = absurd_on_this_machine(wanted), late_on_this_machine(wanted)
    without_swap = without_swap_on_this_machine(wanted)
    without_files = without_holders_by_name(wanted)
    systemd_oomd = managed_oom_on_this_machine(wanted)
    works = any(feature.name == _CONTROLLER and feature.available for feature in features)
    lacks = second_choices(wanted, plans, by_name)
    status = exit_status(works=works, lacks=lacks, strict=strict)
    if output == "json":
        found = {
            "features": [asdict(one) for one in features],
            "sources": [asdict(one) for one in plans],
            "kernel_kill": kernel_kill,
            "absurd_thresholds": absurd,
            "late_thresholds": late,
            "thresholds_without_swap": without_swap,
            "thresholds_without_files": without_files,
            "systemd_oomd": systemd_oomd,
            "can_guard": works,
            "second_choices": lacks,
        }
        print(json.dumps(found))
        return status
    screen = Screen()
    rows = [(one.name, _yes(used=one.available), one.detail) for one in features]
    screen.print(table(("FEATURE", "THERE", "DETAIL"), rows))
    screen.print(
        table(
            ("SOURCE", "USED", "FOR", "BECAUSE"),
            [(one.name, _yes(used=one.used), one.purpose, one.because) for one in plans],
        )
    )
    screen.say(f"kernel kill: {kernel_kill}")
    for what, why in (*absurd.items(), *late.items(), *without_swap.items(), *without_files.items()):
        screen.say(f"{what}: {why}")
    for why in systemd_oomd:
        screen.say(f"systemdOomd: {why}")
    for what, why in lacks.items():
        screen.say(f"second choice: {what}: {why}")
    for remedy, names in each_once(_of_use(features, plans, wanted.kernel_kill)).items():
        screen.say(f"remedy: {', '.join(names)}: {remedy}")
    for feature in features:
        if verbose and feature.log:
            screen.print(f"log of {feature.name}:\n{feature.log}")
    if not works:
        screen.print("reactor can't guard this node: the cgroup memory controller is missing")
    return status


def _writes_for_others(wanted: Settings) -> bool:
    """Return whether files of users other than root are written; a kubelet's cgroups belong to root."""
    return wanted.kubernetes is None or wanted.oom_order is OomOrderMode.POLICY


def exit_status(*, works: bool, lacks: Mapping[str, str], strict: bool) -> int:
    """Return the exit status of the command."""
    if not strict:
        return 0 if works else 1
    return (1 if lacks else 0) if works else 2


def second_choices(
    settings: Settings, plans: Iterable[SourcePlan], features: Mapping[str, Feature]
) -> dict[str, str]:
    """Return what would be used, or done without, in place of a first choice, each with the reason.

    What the configuration switches off, and what the other cgroup version has, is no choice at all.
    """
    found: dict[str, str] = {}
    for watched in (Watched.MEMORY, Watched.PROCESSES, Watched.OOM_KILLS):
        names = {source.name for source in steps_of(watched)}
        chain = [plan for plan in plans if plan.name in names and _is_choice(plan, features)]
        if chain and not chain[0].used:
            used = next((plan.name for plan in chain if plan.used), TICKER)
            found[watched] = f"{used} in place of {chain[0].name}: {chain[0].because}"
    wanted = ["capabilities"]
    wanted += ["realtime"] if settings.realtime.fifo_priority else []
    wanted += ["memory lock"] if settings.realtime.lock_memory else []
    for name in wanted:
        feature = features.get(name)
        if feature is not None and not feature.available:
            found[name] = feature.detail
    return found


def _is_choice(plan: SourcePlan, features: Mapping[str, Feature]) -> bool:
    on_v2 = features.get(_MEMORY_HIGH)
    is_of_v1 = BY_NAME[plan.name].version is CgroupVersion.V1
    return plan.because not in _NO_CHOICE and not (is_of_v1 and on_v2 is not None and on_v2.available)


def _of_use(
    features: Iterable[Feature], plans: Iterable[SourcePlan], kernel_kill: KernelKill
) -> Iterator[Feature]:
    """Yield the features but for those of the other version of cgroups, and those that nothing needs."""
    idle = {BY_NAME[plan.name].feature for plan in plans if plan.because == _ON_V1}
    if idle or kernel_kill is KernelKill.OFF:
        idle.add(_WARRANTS)
    return (one for one in features if one.name not in idle and not one.remedy.startswith(NONE_IS_NEEDED))


def kernel_kill_plan(settings: Settings, features: Mapping[str, Feature]) -> str:
    """Return whether the kernel would kill at a crossing, and why not."""
    feature = features.get(_WARRANTS)
    eventfd = _feature(BY_NAME[MEMCG_EVENTFD], features)
    because = (
        None
        if feature is not None and feature.available
        else "unknown"
        if feature is None
        else feature.detail
    )
    if eventfd is not None and eventfd.available:
        because = _ON_V1
    elif (loader := settings.sources.ebpf_loader) in {EbpfLoader.BCC, EbpfLoader.KPROBE}:
        because = f"reactor.ebpf.loader is {loader}"
    if settings.kernel_kill is KernelKill.OFF:
        can = "this node can" if because is None else f"this node can't: {because}"
        return f"not used: switched off in the configuration; {can}"
    if because is not None:
        return f"not used: {because}"
    return "used where it is certain in advance whom a crossing of a hard memory threshold evicts"


def source_plans(settings: Settings, features: Mapping[str, Feature]) -> tuple[SourcePlan, ...]:
    """Return the sources in the order of their chains; one stands in only where the one before is missing."""
    plans: list[SourcePlan] = []
    first: dict[Watched, str] = {}
    for source in SOURCES:
        plan = _plan(source, settings, features)
        if plan.used and not source.is_hint:
            before = first.setdefault(source.watched, source.name)
            if before != source.name:
                plan = dataclasses.replace(plan, used=False, because=f"{before} comes first")
        plans.append(plan)
    return tuple(plans)


def _plan(source: Source, settings: Settings, features: Mapping[str, Feature]) -> SourcePlan:
    """Return whether a source can be used by itself, whatever comes before it in its chain."""
    feature = _feature(source, features)
    used = source.feature is None or (feature is not None and feature.available)
    because = source.because if feature is None else feature.detail
    if source.name == SWAP and not _watches_swap(settings):
        used, because = False, "no threshold is for swap.available"
    if source.name == RULE_PRESSURE and not _has_rules_on_pressure(settings):
        used, because = False, "no rule is on pressure"
    if source.name == TICKER:
        because = f"every {settings.housekeeping_interval_seconds:g} s"
    eventfd = _feature(BY_NAME[MEMCG_EVENTFD], features)
    if not source.is_allowed(settings.sources):
        used, because = False, _SWITCHED_OFF
    elif source.version is CgroupVersion.V2 and eventfd is not None and eventfd.available:
        used, because = False, _ON_V1
    return SourcePlan(name=source.name, used=used, purpose=source.purpose, because=because)


def _watches_swap(settings: Settings) -> bool:
    return any(one.signal is Signal.SWAP_AVAILABLE for one in settings.eviction.thresholds)


def _has_rules_on_pressure(settings: Settings) -> bool:
    return any(one.metric.resource is not None for rule in settings.rules for one in rule.conditions)


def _feature(source: Source, features: Mapping[str, Feature]) -> Feature | None:
    return None if source.feature is None else features.get(source.feature)


def _yes(*, used: bool) -> str:
    return "yes" if used else "no"
