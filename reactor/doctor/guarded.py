"""Who is there by a configuration: which pods would be guarded, which are spared, what is never touched."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, MemoryCounters
from reactor.kernel.procfs import PROC
from reactor.model.name_patterns import matcher
from reactor.model.pod_lists import BUILT_IN_NEVER
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.workloads.boundaries import PodBoundaries
from reactor.workloads.kubelet_storage import NodePaths
from reactor.workloads.kubernetes_pods import KubernetesPods
from reactor.workloads.pods import Workloads

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
    listing: Workloads | KubernetesPods = (
        KubernetesPods(tree, settings, paths=NodePaths(proc=proc))
        if on_kubernetes
        else Workloads(tree, settings, proc=proc, daemon=daemon)
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
