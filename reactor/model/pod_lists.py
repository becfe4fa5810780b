"""The operator's lists of pods: who is never evicted, who first, who last; and where one process goes.

All but the last are for a plain node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

# Names of units, as patterns: without these the operator does not get in, or all other units suffer. With
# systemd's names for the instances of sshd, one a connection, and for the slices that hold them.
BUILT_IN_NEVER: Final = (
    "init.scope",
    "reactor.service",
    "ssh.service",
    "sshd.service",
    "ssh@*.service",
    "sshd@*.service",
    "sshd-*@*.service",
    "system-ssh*.slice",
    "dbus.service",
    "dbus-broker.service",
    "systemd-journald.service",
    "systemd-logind.service",
    "systemd-udevd.service",
    "containerd.service",
    "crio.service",
    "docker.service",
    "podman.service",
    "kubelet.service",
)

# Names of processes, as patterns, of which none is killed alone: the session ends with each of these, or a
# terminal with what runs in it. Where one of them is the hog, its pod is killed as a whole.
SPARED_PROCESSES: Final = (
    "systemd",
    "(sd-pam)",
    "dbus-daemon",
    "dbus-broker*",
    "gnome-shell",
    "gnome-session*",
    "gdm*",
    "kwin_*",
    "plasmashell",
    "plasma_session",
    "ksmserver",
    "startplasma*",
    "sddm*",
    "sway",
    "Hyprland",
    "labwc",
    "weston",
    "cinnamon*",
    "mate-session",
    "xfce4-session",
    "xfwm4",
    "lightdm*",
    "Xorg",
    "Xwayland",
    "pipewire*",
    "wireplumber",
    "login",
    "sshd*",
    "sftp-server",
    "su",
    "sudo",
    "tmux*",
    "screen",
    "sh",
    "bash",
    "dash",
    "fish",
    "ksh*",
    "zsh",
    "conmon",
)

# On a Kubernetes node: what the runtime runs beside a pod's own processes. A shell is a container's command
# there as often as not, and a tenant's own.
SPARED_BESIDE_CONTAINERS: Final = ("pause", "conmon")

MOST_LABEL_KEYS: Final = 16


class Preference(IntEnum):
    """Whether a pod goes before all others, or after them: the smaller one first."""

    PREFER = -1
    NONE = 0
    AVOID = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEntry:
    """Pods by what they are called; each pattern that is given has to match (name_patterns.py).

    `unit` is the name of the pod's cgroup; `cgroup` is its path, in a glob component by component;
    `process` is the name of its main process. `is_trusting`: the entry counts also where an unprivileged user
    chose the name. Pods of a Kubernetes node go by their `namespace` alone, and by all `labels` if any.
    """

    unit: str | None = None
    cgroup: str | None = None
    process: str | None = None
    is_trusting: bool = False
    namespace: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


class VictimUnit(StrEnum):
    """What is killed of a pod: a process, a process with its descendants, or a cgroup below the pod's."""

    PROCESS = "process"
    TREE = "tree"
    LEAF = "leaf"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessVictim:
    """Of a pod one process is killed, or one `unit`, not all of them. `entry` is which entry says so.

    `never` are patterns of the names of processes that are spared, beside those of `built_in_never`.
    """

    entry: str
    never: tuple[str, ...] = ()
    built_in_never: tuple[str, ...] = SPARED_PROCESSES
    unit: VictimUnit = VictimUnit.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessVictimEntry:
    """In which pods one process (or `unit`) is killed, and which are spared there, as patterns of names."""

    pods: PodEntry
    never: tuple[str, ...] = ()
    unit: VictimUnit = VictimUnit.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLists:
    """Who is never evicted (`built_in_never`, by unit, and `never`), who last, and who first.

    `priorities` are asked in their order, the first that matches counts; so are `process_victims`.
    `honours_oomd`: what systemd's ManagedOOMPreference says of a unit counts, too.
    """

    never: tuple[PodEntry, ...] = ()
    avoid: tuple[PodEntry, ...] = ()
    prefer: tuple[PodEntry, ...] = ()
    priorities: tuple[tuple[PodEntry, int], ...] = ()
    process_victims: tuple[ProcessVictimEntry, ...] = ()
    built_in_never: tuple[str, ...] = BUILT_IN_NEVER
    honours_oomd: bool = True

    @property
    def label_keys(self) -> frozenset[str]:
        return frozenset(key for one in self.process_victims for key, _ in one.pods.labels)

    @property
    def wants_processes(self) -> bool:
        """Return whether an entry goes by the name of a process."""
        entries = (
            *self.never,
            *self.avoid,
            *self.prefer,
            *(entry for entry, _ in self.priorities),
            *(one.pods for one in self.process_victims),
        )
        return any(entry.process is not None for entry in entries)
