"""`reactor config init`: a first configuration for this machine, with the reason of each line.

Nothing in it can end what the machine needs: pods are taken only from cgroups that hold containers and
nothing of the system's, it starts as a dry run, and what else could be guarded stands in comments. With a
preset services or applications are pods as well, and lists name those of them that stay.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from reactor.config.decode import key_of
from reactor.config.documents import Layers, Named, load_document
from reactor.config.kubelet import KubeletConfiguration
from reactor.config.settings import KUBEPODS, read_text, settings_from_text
from reactor.doctor.findings import ESSENTIAL_EXAMPLES, daemon_cgroup, findings
from reactor.doctor.thresholds import observed_on_this_machine
from reactor.errors import ConfigError, Problem, RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC, read_kernel_memory
from reactor.model.name_patterns import PodParent, is_pattern
from reactor.model.quantity import bytes_text
from reactor.model.settings import KubernetesSettings, Settings
from reactor.model.signals import ON_DISK, RESOURCE, Signal
from reactor.text import printable
from reactor.workloads.search import matches_of

_MIB: Final = 1 << 20
_SHARE: Final = 25  # a 25th of the memory, which is 4 %
_GRACE_SECONDS: Final = 30
_LEAST_BYTES, _MOST_BYTES, _STEP_BYTES = 100 * _MIB, 1024 * _MIB, 10 * _MIB
# Where an operator puts services that may be evicted; systemd makes it with the first of them.
_GUARDED: Final = "/guarded.slice"
_SYSTEM, _USERS, _MACHINES, _APPLICATIONS = "/system.slice", "/user.slice", "/machine.slice", "app.slice"
# Where runtimes put containers, and nothing else: podman and systemd-nspawn; docker with the cgroupfs driver.
_OF_CONTAINERS: Final = (_MACHINES, "/docker", "/libpod_parent", "/lxc", "/lxc.payload")
_OF_THE_SYSTEM: Final = frozenset(("system.slice", "user.slice", "init.scope", "init", "reactor"))
_KUBECONFIGS: Final = (
    "/etc/kubernetes/kubelet.conf",
    "/var/lib/kubelet/kubeconfig",
    "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
)
_PLAIN: Final = re.compile(r"[/A-Za-z0-9_.@\\-]+")  # means itself in YAML, wherever it stands
_PARTITIONS: Final = ("/kubepods/system", "/kubepods.slice/kubepods-system.slice")
_KUBELETS_KEYS: Final = tuple(key_of(field) for field in KubeletConfiguration.__dataclass_fields__.values())
_EVICTION_KEYS: Final = tuple(key for key in _KUBELETS_KEYS if "eviction" in key.lower())

_HEAD: Final = """\
# What reactor does on this machine ({found}).
# Written by `reactor config init{preset}`; edit it as you like.
#
#   reactor config check FILE    every error, and what guards nobody or everybody
#   reactor config show FILE     what is in force; who is guarded, spared, never touched
"""
_MEMORY: Final = """\
# When less than this is left, a pod is killed at once. `sudo reactor tune` measures
# what this machine needs, and writes a file for `config init --thresholds-from`.
evictionHard:
  # {share} for what is allocated until the victim's memory is back, and {kernel}
  # that the kernel itself holds, which counts as available.
  memory.available: {hard}Mi
  pid.available: 5%

"""
_SOFT: Final = """\
# Earlier, when less than this is left for 30 s, a pod is asked to end (SIGTERM), and
# killed {grace} s later:
{off}evictionSoft: {{memory.available: {soft}Mi}}
{off}evictionSoftGracePeriod: {{memory.available: 30s}}
{off}evictionMaxPodGracePeriod: {grace}
# If memory falls so fast that the 30 s would be too late, sooner: with
# `softEviction: inTime` below reactor.
"""
_DISKS: Final = """
# No threshold is for a disk: here a pod has no files that reactor knows of, unless a
# manifest names them, so ending a pod would give no space back. Commands can: add
# `nodefs.available: 5%` to evictionHard, and to reactor:
#   reclaim:
#     nodefs: [/usr/bin/journalctl, --vacuum-size=500M]
"""
_SECTION: Final = """\
reactor:
  # Decide and write the journal, evict nobody. When `reactor status` and
  # `reactor explain` show what you expect, make this false and reload:
  # {reload}
  dryRun: true
  # Records of evictions have the minute before: who took the memory, and what the victim
  # ran (program and names of options; no values). `reactor report` makes a page of one.
  blackBox: true
"""
_SMALL: Final = """\
  # A pod that holds less than this stays while another one holds more: it would bring
  # next to nothing back.
  minimumVictimBytes: 16Mi
"""
_WHO: Final = """\
  # Guarded: each cgroup directly below the parents named here.
  # Spared: of these, units in the never lists (pods.never and a built-in one), and pods
  #   with a priority of 2000000000 or more.
  # Never touched: reactor, init, and whatever lies elsewhere{examples}."""
_SLICE: Final = """\
  # Not /system.slice: sshd and dbus are its children. To have a service guarded, give
  # it this slice (systemctl edit NAME: [Service], Slice=guarded.slice), and restart it.
  # `config init --preset server` guards all services but those."""

_PARTITION: Final = """\
  # Pods of the system partition have a limit of their own. No memory threshold evicts them, and
  # at that limit the kernel kills, as on a node without reactor. Sooner, and by priority:
  # rules:
  #   - name: system-partition
  #     cgroups: [{partition}]
  #     when: [{{usage: 95%}}]
  #     for: 0s
  #     action: evictWorst"""


class Preset(StrEnum):
    """What a machine is for."""

    SERVER = "server"
    DESKTOP = "desktop"
    CONTAINERS = "containers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a preset means: `who` says in comments who is guarded, `lists` are keys below `reactor.pods`.

    `grace_seconds` is what a pod has to end by itself once a soft threshold was met for its grace period.
    """

    who: str
    lists: str
    grace_seconds: int


_SERVER: Final = Purpose(
    grace_seconds=30,
    who="""\
  # For a server. Each service is a pod, and so is each container, and each user who is
  # logged in with everything they run. The pod that exceeds its request by most is
  # evicted first; MemoryLow= of a unit is its request.""",
    lists="""\
    # Never, beside a built-in list that `reactor config show` prints (sshd, dbus, journald,
    # logind, udevd, container runtimes, the kubelet):
    never:
      # what other services stand on, and the ways in
      - systemd-*.service
      - NetworkManager.service
      - networking.service
      - wpa_supplicant.service
      - iwd.service
      - wg-quick@*.service
      - tailscaled.service
      - dropbear.service
      - getty@*.service
      - serial-getty@*.service
      - user-0.slice
      - polkit.service
      - cloud-*.service
      # clock, log and audit
      - chrony*.service
      - ntp*.service
      - "*syslog*.service"
      - auditd.service
      # disks
      - lvm2-*.service
      - multipathd.service
      - iscsid.service
      # what keeps containers and virtual machines; those themselves may go
      - /machine.slice/libpod-conmon-*.scope
      - cri-docker.service
      - k3s*.service
      - rke2-*.service
      - libvirtd.service
      - virt*d.service
    # After all others, also after those that are within their request:
    avoid:
      # databases
      - "*postgresql*"
      - mysql*.service
      - mariadb*.service
      - mongod*.service
      - redis*.service
      - etcd.service
      # packages that are being installed
      - apt-daily*.service
      - unattended-upgrades.service
      - packagekit.service
      - dnf-*.service
""",
)
_DESKTOP: Final = Purpose(
    grace_seconds=15,
    who="""\
  # For a desktop. Each application is a pod, with all that it has started. What the
  # session stands on (compositor, shell, sound) and system services lie elsewhere.
  # Applications have cgroups of their own where the session runs under systemd, as
  # those of GNOME and KDE Plasma do.
  # A notice on the screen for each eviction, with the package systembus-notify:
  # desktop: true""",
    lists="""\
    # Never. `trusting`: here the user chose the name, and may protect their own.
    never:
      # keys and agents
      - {unit: "*-agent.service", trusting: true}
      - {unit: "gnome-keyring*", trusting: true}
      - {unit: "app-*kwallet*", trusting: true}
      # what other applications stand on, where a session starts it beside them
      - {unit: "dbus*.service", trusting: true}
      - {unit: "dconf*.service", trusting: true}
      - {unit: "gvfs-*.service", trusting: true}
      - {unit: "xdg-*.service", trusting: true}
      - {unit: "at-spi-*.service", trusting: true}
      - {unit: "pipewire*.service", trusting: true}
      - {unit: "wireplumber*.service", trusting: true}
      - {unit: "ibus*.service", trusting: true}
      - {unit: "app-*ibus*", trusting: true}
      - {unit: "app-*fcitx*", trusting: true}
    # Of these one process is killed, a browser's tab, say, and not the whole application:
    # processVictims:
    #   - {unit: "app-*firefox*", trusting: true}
    #   - {unit: "app-*chrom*", trusting: true}
""",
)
_CONTAINERS: Final = Purpose(
    grace_seconds=10,
    who="""\
  # For a host of containers. Each container is a pod, and a pod of podman's as a whole.
  # Services of this machine are none. The container that exceeds its request by most
  # is evicted first; --memory-reservation is its request.
  # Docker puts containers into /machine.slice with `"cgroup-parent": "machine.slice"` in
  # /etc/docker/daemon.json; else they lie among the services, in /system.slice.""",
    lists="""\
    # Never: podman's monitors, each of which ends with its container.
    never: [/machine.slice/libpod-conmon-*.scope]
""",
)
PURPOSES: Final = {Preset.SERVER: _SERVER, Preset.DESKTOP: _DESKTOP, Preset.CONTAINERS: _CONTAINERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to write a configuration for; paths are of files that exist.

    `parents` are cgroups that hold containers, `others` those that hold anything else that could be guarded,
    each with the number of its children. `partition` is the kubelet's system partition.
    """

    tree: CgroupTree
    has_systemd: bool
    memory_bytes: int
    kernel_bytes: int
    parents: tuple[str, ...] = ()
    others: Mapping[str, int]
    is_kubernetes: bool = False
    kubelet_config: Path | None = None
    kubeconfig: str | None = None
    partition: str | None = None


def first_configuration(
    machine: Machine, thresholds_from: Path | None = None, preset: Preset | None = None
) -> str:
    """Return the configuration's text, which is valid and of which nothing is to be warned.

    The thresholds are those of a file (that of `reactor tune`, or a kubelet's), else from the machine's size.
    Raises ConfigError where that file is none, or has no thresholds; RefusedError where a preset is asked for
    on a Kubernetes node, whose pods are the kubelet's.
    """
    if preset is not None and machine.is_kubernetes:
        raise RefusedError(
            f"--preset {preset} is for a plain node; on this Kubernetes node the kubelet's pods are guarded, "
            "and nothing else"
        )
    taken = _taken(machine, thresholds_from)
    text = "".join(f"{line}\n" for line in _lines(machine, preset, *taken))
    settings_from_text(text, "the first configuration")
    return text


def this_machine(root: Path = Path("/")) -> Machine:
    """Return what this machine has. Raises ReactorError where it has no cgroup memory controller."""
    tree = CgroupTree.discover()
    systemd = daemon_cgroup(root / "run/systemd/system") is not None
    memory = observed_on_this_machine(Settings(), tree).get(Signal.MEMORY_AVAILABLE)
    if memory is None:
        raise RefusedError(
            "the memory of this machine can't be observed: reactor doctor says what is missing"
        )
    kubelets = root / KubernetesSettings().kubelet_config_path.lstrip("/")
    names = tree.children("/")
    return Machine(
        tree=tree,
        has_systemd=systemd,
        memory_bytes=memory.capacity,
        kernel_bytes=read_kernel_memory(PROC),
        parents=(
            *(cgroup for cgroup in _OF_CONTAINERS if tree.exists(cgroup)),
            *([_GUARDED] if systemd or tree.exists(_GUARDED) else []),
        ),
        others=dict(others_of(tree)),
        is_kubernetes=kubelets.is_file() or any(name in {KUBEPODS, f"{KUBEPODS}.slice"} for name in names),
        kubelet_config=kubelets if os.access(kubelets, os.R_OK) else None,
        kubeconfig=next((path for path in _KUBECONFIGS if (root / path.lstrip("/")).is_file()), None),
        partition=next(filter(tree.exists, _PARTITIONS), None),
    )


def warnings(text: str, machine: Machine) -> tuple[str, ...]:
    """Return what `reactor config check` would warn of: nothing, but for thresholds that are another's."""
    settings = settings_from_text(text, "the first configuration")
    layers = Layers(Named("the first configuration", load_document(text, "")), ())
    return (*settings.warnings, *map(str, findings(settings, layers, machine.tree)))


def others_of(tree: CgroupTree) -> Iterator[tuple[str, int]]:
    """Yield cgroups that hold what could be guarded: slices of the operator's, and users' applications."""
    for name in tree.children("/"):
        if (
            name not in _OF_THE_SYSTEM
            and f"/{name}" not in (*_OF_CONTAINERS, _GUARDED)
            and not name.startswith(KUBEPODS)
        ):
            yield f"/{name}", len(tree.children(f"/{name}"))
    pattern = f"{_USERS}/user-[1-9]*.slice/user@*.service/{_APPLICATIONS}"
    applications = matches_of(tree, [pattern])
    if applications:
        yield pattern, sum(len(tree.children(one)) for one in applications)


def _taken(machine: Machine, thresholds_from: Path | None) -> tuple[Mapping[str, Any], str]:
    """Return keys of another document, and where they are from."""
    if thresholds_from is not None:
        document = _document(thresholds_from)
        found = {key: document[key] for key in _EVICTION_KEYS if document.get(key) is not None}
        if not machine.is_kubernetes:
            found = _without_disks(found)
        if not {"evictionHard", "evictionSoft"} & set(found):
            accepted = "a configuration with evictionHard or evictionSoft, such as that of reactor tune"
            raise ConfigError([Problem(path=str(thresholds_from), got="no thresholds", accepted=accepted)])
        return found, str(thresholds_from)
    if machine.is_kubernetes and machine.kubelet_config is not None:
        with suppress(ConfigError, OSError):
            document = _document(machine.kubelet_config)
            return (
                {key: document[key] for key in _KUBELETS_KEYS if document.get(key) is not None},
                str(machine.kubelet_config),
            )
    return {}, ""


def _without_disks(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys without thresholds for filesystems: on a plain node most pods have no files there."""
    of_memory = {
        key: {signal: one for signal, one in value.items() if RESOURCE[Signal(signal)] not in ON_DISK}
        if isinstance(value, Mapping)
        else value
        for key, value in keys.items()
        if key != "mergeDefaultEvictionSettings"
    }
    return {key: value for key, value in of_memory.items() if value != {}}


def _document(path: Path) -> Mapping[str, Any]:
    try:
        text, _ = read_text(path)
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(path=str(path), got=str(error), accepted="UTF-8 text")]) from error
    settings_from_text(text, str(path))
    document = load_document(text, str(path))
    return document if isinstance(document, Mapping) else {}


def _lines(machine: Machine, preset: Preset | None, taken: Mapping[str, Any], origin: str) -> Iterator[str]:
    systemd = "systemd" if machine.has_systemd else "no systemd"
    found = f"{bytes_text(machine.memory_bytes)} of memory, cgroup {machine.tree.version}, {systemd}"
    yield _HEAD.format(found=found, preset="" if preset is None else f" --preset {preset}")
    if taken:
        yield f"# From {printable(origin)}."
    for key, value in taken.items():
        yield from _entry(key, value)
    if not {"evictionHard", "evictionSoft"} & set(taken):
        yield _thresholds(machine, preset)
    yield _SECTION.format(reload="systemctl reload reactor" if machine.has_systemd else "kill -HUP PID")
    if preset is not None:
        yield _SMALL
    yield from _kubernetes(machine) if machine.is_kubernetes else _pods(machine, preset)


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield f"{key}:"
        for name, inner in value.items():
            yield f"  {json.dumps(name)}: {json.dumps(inner, default=str)}"
    else:
        yield f"{key}: {json.dumps(value, default=str)}"


def _thresholds(machine: Machine, preset: Preset | None) -> str:
    share = min(max(machine.memory_bytes // _SHARE, _LEAST_BYTES), _MOST_BYTES)
    wanted = -(-(share + machine.kernel_bytes) // _STEP_BYTES) * _STEP_BYTES
    hard_mib = min(wanted, machine.memory_bytes // 2) // _MIB
    memory = _MEMORY.format(share=bytes_text(share), kernel=bytes_text(machine.kernel_bytes), hard=hard_mib)
    soft = _SOFT.format(
        off="# " if preset is None else "",
        soft=2 * hard_mib,
        grace=_GRACE_SECONDS if preset is None else PURPOSES[preset].grace_seconds,
    )
    text = memory + soft
    return text if machine.is_kubernetes else text + _DISKS


def _kubernetes(machine: Machine) -> Iterator[str]:
    yield "  # The pods are the kubelet's. The API server says which of them are critical:"
    yield "  # those are never evicted."
    if machine.kubeconfig is None:
        yield "  # Enough in a DaemonSet; elsewhere: {kubeconfig: /path/to/kubeconfig}"
        yield "  kubernetes: {}"
    else:
        yield "  kubernetes:"
        yield f"    kubeconfig: {machine.kubeconfig}"
        yield "    role: alongside    # the kubelet evicts, too"
    if machine.partition is not None:
        yield _PARTITION.format(partition=machine.partition)


def _pods(machine: Machine, preset: Preset | None) -> Iterator[str]:
    if preset is not None:
        yield PURPOSES[preset].who
    parents = _parents(machine, preset)
    yield _WHO.format(examples="" if _SYSTEM in parents else f", among it\n  #   {ESSENTIAL_EXAMPLES}")
    if not parents:
        yield "  # Nothing of that kind was found here: until you name a parent, nobody is guarded"
        yield "  # and reactor only observes."
    others = {
        cgroup: count
        for cgroup, count in machine.others.items()
        if cgroup not in parents and not any(PodParent(cgroup).overlaps(PodParent(one)) for one in parents)
    }
    if others:
        yield "  # Could be guarded as well:"
        for cgroup, count in others.items():
            yield f"  #   {_written(cgroup)}    # {count} {'child' if count == 1 else 'children'} now"
    if machine.has_systemd and _SYSTEM not in parents:
        yield _SLICE
    yield "  pods:"
    yield f"    parents: [{', '.join(map(_written, parents))}]"
    if preset is not None:
        yield PURPOSES[preset].lists.rstrip("\n")


def _written(parent: str) -> str:
    """Return a parent as an entry of a list and as a word of a comment, which neither can be ended by it.

    Names are what a runtime, or a container's user, made them: a line has more ends than the line feed.
    """
    if _PLAIN.fullmatch(parent) and not is_pattern(parent):
        return parent
    escaped = parent.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def _parents(machine: Machine, preset: Preset | None) -> tuple[str, ...]:
    """Return the parents of pods; a slice that is not there yet is one that systemd makes."""

    def there(*cgroups: str) -> tuple[str, ...]:
        return tuple(cgroup for cgroup in cgroups if machine.has_systemd or machine.tree.exists(cgroup))

    match preset:
        case None:
            return machine.parents
        case Preset.SERVER:
            return tuple(dict.fromkeys((*there(_SYSTEM, _USERS), *machine.parents)))
        case Preset.CONTAINERS:
            containers = (parent for parent in machine.parents if parent != _GUARDED)
            return tuple(dict.fromkeys((*there(_MACHINES), *containers)))
        case Preset.DESKTOP:
            return tuple(cgroup for cgroup in machine.others if cgroup.endswith(f"/{_APPLICATIONS}"))
