"""What `reactor config init --preset` writes for a server, a desktop and a host of containers.

A preset is text that is written once. The file says all that is in force: a later version of reactor changes
nothing in it, and a list that an operator writes replaces no list that he has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


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
  # logged in with all that he runs. The pod that exceeds its request by most goes first;
  # MemoryLow= of a unit is its request.""",
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
    # Never. `trusting`: here the user chose the name, and may protect his own programs.
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
  # goes first; --memory-reservation is its request.
  # Docker puts containers into /machine.slice with `"cgroup-parent": "machine.slice"` in
  # /etc/docker/daemon.json; else they lie among the services, in /system.slice.""",
    lists="""\
    # Never: podman's monitors, each of which ends with its container.
    never: [/machine.slice/libpod-conmon-*.scope]
""",
)
PURPOSES: Final = {Preset.SERVER: _SERVER, Preset.DESKTOP: _DESKTOP, Preset.CONTAINERS: _CONTAINERS}
