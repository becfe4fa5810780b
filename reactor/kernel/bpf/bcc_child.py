"""Compiles eBPF programs with BCC, pins them and their maps below /sys/fs/bpf, and ends.

Run by `bcc` with the system's Python, which has Debian's package python3-bpfcc: nothing of reactor can be
imported here, and whatever LLVM takes (250 MiB) goes with this process.

    bcc_child.py DIRECTORY PARENT_PID <REQUEST

The request is JSON: `text` the programs in C, `programs` their names with their types (enum bpf_prog_type),
`maps` the maps' names, `step` null or the program that is called out of the map `steps`. The answer is JSON
in one line: `error` or null, `peak_bytes` the most memory that was held. What BCC, clang and the verifier say
is on stderr.
"""

import contextlib
import ctypes
import json
import os
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_KPROBE = 2  # enum bpf_prog_type
# The kernel's headers name structs inside structs without a member's name since 6.19; BCC 0.31 does not know.
_FLAGS = ["-fms-extensions", "-w"]


class _PinError(Exception):
    """One line that says what was refused."""


def main() -> None:
    """Answer the request on stdin."""
    directory, parent_pid = sys.argv[1], int(sys.argv[2])
    _end_with_parent(parent_pid)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, the OOM killer's first choice
    request = json.load(sys.stdin)
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # some of what BCC says is said on stdout
    error = None
    try:
        _pin(directory, request)
    except _PinError as refused:
        error = str(refused)
    except Exception as refused:  # noqa: BLE001 - BCC raises nothing more specific
        error = f"{type(refused).__name__}: {refused}"
    ctypes.CDLL(None).fflush(None)
    os.write(answer_fd, json.dumps({"error": error, "peak_bytes": _peak_bytes()}).encode())
    os._exit(0)  # BCC's own clearing up would only take time


def _pin(directory: str, request: "dict[str, Any]") -> None:
    """Compile and pin everything. Raises _PinError, or what BCC raises."""
    try:
        from bcc import BPF, lib  # noqa: PLC0415 - not having it is an answer
    except ImportError as error:
        message = "{} has no module bcc; Debian's package python3-bpfcc has it ({})"
        raise _PinError(message.format(sys.executable, error)) from None
    module = BPF(text=request["text"].encode(), cflags=_FLAGS)
    for name, program_type in request["programs"].items():
        _pin_one(module.load_func(name.encode(), program_type).fd, directory, name)
    for name in request["maps"]:
        _pin_one(lib.bpf_table_fd(module.module, name.encode()), directory, name)
    if request["step"] is not None:
        step_fd = module.load_func(request["step"].encode(), _KPROBE).fd
        _fill_steps(lib.bpf_table_fd(module.module, b"steps"), step_fd)


def _fill_steps(steps_fd: int, program_fd: int) -> None:
    """Put the program into the map out of which it is called: by itself, too."""
    place, program = ctypes.c_int(0), ctypes.c_int(program_fd)
    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    if library.bpf_map_update_elem(steps_fd, ctypes.byref(place), ctypes.byref(program), ctypes.c_uint64(0)):
        raise _PinError(f"map steps not filled: {os.strerror(ctypes.get_errno())}")


def _pin_one(fd: int, directory: str, name: str) -> None:
    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    if fd < 0 or library.bpf_obj_pin(fd, os.path.join(directory, name).encode()) != 0:
        number = ctypes.get_errno()
        raise _PinError(f"{name} not pinned below {directory}: {os.strerror(number)}")


def _end_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process when the daemon's thread that started it ends, killed or not."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)


def _peak_bytes() -> int:
    """Return VmHWM; ru_maxrss would begin with the parent's."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))


main()
