"""Perf events that run an eBPF program: kprobes and a CPU's clock. They go with their descriptor.

Source: perf_event_open(2), include/uapi/linux/perf_event.h; the dynamic PMU "kprobe" came with 4.17.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from reactor.errors import BpfError
from reactor.kernel.bpf.refusal import explain_errno
from reactor.kernel.libc import CText, perf_event_open

KPROBE_TYPE: Final = Path("/sys/bus/event_source/devices/kprobe/type")
ONLINE: Final = Path("/sys/devices/system/cpu/online")

_TYPE_SOFTWARE: Final = 1
_SW_CPU_CLOCK: Final = 0
# type, size, config, sample_period, sample_type, read_format, flags, wakeup_events, bp_type, config1, config2
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQIIQQ")
_IOC_ENABLE: Final = 0x2400
_IOC_SET_BPF: Final = 0x40042408


def open_kprobe(function: str) -> int:
    """Return the descriptor of a perf event at each call of a kernel function, on every CPU.

    Raises BpfError where there is no such function, or no kprobes, or they are not allowed.
    """
    what = f"kprobe {function}"
    try:
        kind = int(KPROBE_TYPE.read_text())
    except (OSError, ValueError):
        raise BpfError(what, "this kernel has no kprobes (CONFIG_KPROBE_EVENTS)") from None
    name = CText(function)
    attributes = _ATTRIBUTES.pack(kind, _ATTRIBUTES.size, 0, 1, 0, 0, 0, 1, 0, name.address, 0)
    return _opened(attributes, 0, what)


def attach_kprobe(program_fd: int, function: str) -> int:
    """Run a program at each call of a function; return the descriptor that keeps it. Raises BpfError."""
    return _attached(open_kprobe(function), program_fd, f"kprobe {function}")


def attach_clock(program_fd: int, period_ns: int) -> int:
    """Run a program at this period on one CPU, also when it is idle; return the descriptor that keeps it."""
    attributes = _ATTRIBUTES.pack(_TYPE_SOFTWARE, _ATTRIBUTES.size, _SW_CPU_CLOCK, period_ns, *[0] * 7)
    first_cpu = int(ONLINE.read_text().split(",")[0].split("-")[0])
    return _attached(_opened(attributes, first_cpu, "CPU clock"), program_fd, "CPU clock")


def _opened(attributes: bytes, cpu: int, what: str) -> int:
    try:
        return perf_event_open(attributes, cpu)
    except OSError as error:
        raise BpfError(what, _reason(error)) from None


def _attached(event_fd: int, program_fd: int, what: str) -> int:
    try:
        fcntl.ioctl(event_fd, _IOC_SET_BPF, program_fd)
        fcntl.ioctl(event_fd, _IOC_ENABLE, 0)
    except OSError as error:
        os.close(event_fd)
        raise BpfError(what, f"not attached: {_reason(error)}") from None
    return event_fd


def _reason(error: OSError) -> str:
    number = error.errno or 0
    if number in {errno.ENOENT, errno.EINVAL, errno.EADDRNOTAVAIL}:
        return f"{os.strerror(number)}; this kernel has no such function, or none that can be probed"
    return explain_errno(number)
