"""Capabilities of this process: their names, and giving them up for good.

Source: capabilities(7), include/uapi/linux/capability.h. A process with no_new_privs does not get back what
it has given up by starting a program, as root or otherwise (cap_bprm_creds_from_file). So this holds without
CAP_SETPCAP as well, without which the bounding set stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Final

from reactor.kernel.libc import drop_bounding_capability, set_capabilities, set_no_new_privileges
from reactor.kernel.procfs import PROC, read_status

# In the order of their numbers, from 0 on.
_LISTED: Final = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT "
    "SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE "
    "AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ "
    "PERFMON BPF CHECKPOINT_RESTORE"
)
_NAMES: Final = tuple(_LISTED.split())
_MOST: Final = 64


def capability_names(mask: int) -> frozenset[str]:
    """Return the names (`CAP_KILL`) in a mask; a newer kernel's unknown ones are passed over."""
    return frozenset(f"CAP_{name}" for number, name in enumerate(_NAMES) if mask >> number & 1)


def keep_capabilities(names: Collection[str]) -> None:
    """Keep these (`CAP_KILL`), as far as this process has them, and give up all others for good.

    For a process of one thread: a capability is a thread's. Raises OSError, KernelInterfaceError.
    """
    set_no_new_privileges()
    kept = sum(1 << number for number, name in enumerate(_NAMES) if f"CAP_{name}" in names)
    for number in range(_MOST):
        if not kept >> number & 1:
            with suppress(OSError):  # none of that number, or no CAP_SETPCAP
                drop_bounding_capability(number)
    set_capabilities(read_status(PROC).capabilities & kept)
