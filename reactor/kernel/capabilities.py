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


def capability_names(mask: int) -> frozenset[str]:
    """Return the names (`CAP_KILL`) in a mask; a newer kernel's unknown ones are passed over."""
    return frozenset(f"CAP_{name}" for number, name in enumerate(_NAMES) if mask >> number & 1)


def effective_capabilities(proc: Path = PROC) -> frozenset[str]:
    """Return what this process may do. Raises OSError, KernelInterfaceError."""
    return capability_names(read_status(proc).capabilities)
