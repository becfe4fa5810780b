"""Capabilities by name. Source: include/uapi/linux/capability.h, capabilities(7)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from reactor.kernel.procfs import PROC, read_status

# By their numbers, from 0 on.
_IN_ORDER: Final = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT "
    "SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE "
    "AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ "
    "PERFMON BPF CHECKPOINT_RESTORE"
)
_NAMES: Final = tuple(_IN_ORDER.split())
_OF_OTHERS: Final = "CAP_DAC_OVERRIDE"
# What the daemon uses, and each for what; without it the daemon runs on, with less.
_USED: Final = {
    "CAP_KILL": "ending processes of other users",
    "CAP_SYS_PTRACE": "process_mrelease",
    "CAP_SYS_NICE": "realtime priority",
    "CAP_IPC_LOCK": "locking its memory",
    "CAP_SYS_RESOURCE": "its oom_score_adj, short pressure windows, more descriptors",
    "CAP_NET_ADMIN": "process events",
    _OF_OTHERS: "control files of cgroups that belong to others",
    "CAP_BPF": "eBPF",
    "CAP_PERFMON": "eBPF",
    "CAP_SYSLOG": "the node's own counters in eBPF",
}


def capability_names(mask: int) -> frozenset[str]:
    """Return the names (`CAP_KILL`) in a mask; a newer kernel's unknown ones are passed over."""
    return frozenset(f"CAP_{name}" for number, name in enumerate(_NAMES) if mask >> number & 1)


def needed_capabilities(*, delegated: bool) -> dict[str, str]:
    """Return the names of those that the daemon uses, and what for.

    `delegated`: the cgroups may belong to others than root.
    """
    return {name: use for name, use in _USED.items() if delegated or name != _OF_OTHERS}


def effective_capabilities(proc: Path = PROC) -> frozenset[str]:
    """Return what this process may do. Raises OSError, KernelInterfaceError."""
    return capability_names(read_status(proc).capabilities)
