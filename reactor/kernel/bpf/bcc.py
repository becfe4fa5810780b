"""eBPF on kernels without BTF: BCC compiles the programs against the kernel's headers, in a child.

The child (`bcc_child`) runs under the system's Python with Debian's package python3-bpfcc, pins what it made
(`bpf_pins`) and ends, so that LLVM's 250 MiB are there for some seconds only and never in this process. What
is pinned is opened here through libbpf, and attached here: perf events go with their descriptors, on every
kernel, where a pinned link would need 5.15.

BCC needs the running kernel's headers (Debian: linux-headers-*, below /lib/modules) or CONFIG_IKHEADERS, and
executable memory, which a unit with MemoryDenyWriteExecute refuses; deploy/reactor-bcc.conf allows it.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import logging
import os
import re
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import BpfError
from reactor.kernel.bpf.libbpf import LIBRARY, BpfMap, load_library, open_map, open_pinned
from reactor.kernel.bpf.objects import OBJECTS, explain_errno, last_words
from reactor.kernel.files import try_lock
from reactor.kernel.libc import CText, make_map, perf_event_open

KPROBE_TYPE: Final = Path("/sys/bus/event_source/devices/kprobe/type")
ONLINE: Final = Path("/sys/devices/system/cpu/online")

_TYPE_SOFTWARE: Final = 1
_SW_CPU_CLOCK: Final = 0
# type, size, config, sample_period, sample_type, read_format, flags, wakeup_events, bp_type, config1, config2
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQIIQQ")
_IOC_ENABLE: Final = 0x2400
_IOC_SET_BPF: Final = 0x40042408

PINS: Final = Path("/sys/fs/bpf/reactor")
_UNFINISHED: Final = "new_"

PYTHON: Final = "/usr/bin/python3"
COMPILE_SECONDS: Final = 300.0  # 3 s on a machine, 70 s where one is emulated beside other load
_LOOK_SECONDS: Final = 0.2

_LOG: Final = logging.getLogger("reactor.kernel.bpf.bcc")
_CHILD: Final = Path(__file__).with_name("bcc_child.py")
_KPROBE: Final = 2  # enum bpf_prog_type
_PERF_EVENT: Final = 7
_NO_HEADERS: Final = re.compile(r"Unable to find kernel headers|chdir\(/lib/modules/")
_CLANG_ERROR: Final = re.compile(r":\d+: (?:fatal )?error: (.+)")
_VERIFIER_LOG: Final = re.compile(r"Failed to load program: .*\n")
_LONGEST_TEXT: Final = 200


# Perf events that run an eBPF program: kprobes and a CPU's clock. They go with their descriptor.
#
# Source: perf_event_open(2), include/uapi/linux/perf_event.h; the dynamic PMU "kprobe" came with 4.17.


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


# Directories of pinned programs and maps below /sys/fs/bpf/reactor, each locked by the daemon that uses it.
#
# A lock (flock) goes with its process, so an unlocked directory was left by a process that was killed:
# it is taken over where it holds the very same programs, and removed where it doesn't. Taking over spares a
# node that is short of memory the compiler. What this process has taken stays pinned, for the next part of it
# that asks again, and is removed when it ends by itself.
#
# bpffs has no names with a dot in them. Source: kernel/bpf/inode.c.


_own: Final[list[Pins]] = []


class Pins:
    """One directory of pins, locked."""

    __slots__ = ("_lock_fd", "in_use", "path")

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self.in_use = True
        self._lock_fd = lock_fd
        if not _own:
            atexit.register(remove_own)
        _own.append(self)

    def finish(self, name: str) -> None:
        """Give the directory the name under which it can be taken over."""
        self.path = self.path.rename(self.path.with_name(f"{name}_{os.urandom(4).hex()}"))

    def keep(self) -> None:
        """Let another one in this process have it."""
        self.in_use = False

    def remove(self) -> None:
        """Unpin everything and unlock; a second time is harmless. What is in use is freed with its use."""
        lock_fd, self._lock_fd = self._lock_fd, -1
        if lock_fd >= 0:
            _own.remove(self)
            _remove(self.path)
            os.close(lock_fd)


def remove_own() -> None:
    """Remove everything that this process has pinned or taken over."""
    while _own:
        _own[0].remove()


def take(name: str, fill: Callable[[Path], None], *, root: Path = PINS) -> Pins:
    """Return the directory of this name: what is there already, or a new one with what `fill` pins in it.

    The name has to say all that the programs depend on. Raises BpfError where nothing can be pinned, and what
    `fill` raises; then nothing stays.
    """
    for pins in _own:
        if not pins.in_use and pins.path.name.startswith(f"{name}_"):
            pins.in_use = True
            return pins
    with _changing(root):
        found = _take_over(root, name)
        if found is not None:
            return found
        path = root / f"{_UNFINISHED}{name}_{os.urandom(4).hex()}"
        path.mkdir(mode=0o700)
        lock_fd = _locked(path)
    if lock_fd is None:
        raise BpfError(str(path), "is locked by another process")
    pins = Pins(path, lock_fd)
    try:
        fill(path)
        pins.finish(name)
    except BaseException:
        pins.remove()
        raise
    return pins


def _take_over(root: Path, name: str) -> Pins | None:
    """Return an abandoned directory of this name; remove all the other abandoned ones."""
    found = None
    for path in sorted(root.iterdir()):
        lock_fd = _locked(path)
        if lock_fd is None:
            continue
        if found is None and path.name.startswith(f"{name}_"):
            found = Pins(path, lock_fd)
        else:
            _remove(path)
            os.close(lock_fd)
    return found


@contextmanager
def _changing(root: Path) -> Iterator[None]:
    """Hold the lock on all directories; nothing that takes time happens in it."""
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        hint = "a bpf filesystem is needed (mount -t bpf bpf /sys/fs/bpf), and CAP_BPF"
        raise BpfError(str(root), f"{error.strerror}; {hint}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the directory's lock, None where another process does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    if try_lock(fd):
        return fd
    os.close(fd)
    return None


def _remove(path: Path) -> None:
    with suppress(OSError):  # what can't be removed now, the next start removes
        for pin in path.iterdir():
            pin.unlink()
        path.rmdir()


@dataclass(frozen=True, slots=True, kw_only=True)
class BccPrograms:
    """One source and what is in it.

    `kprobes` are programs with the kernel function at whose call each runs; `sampled` are programs that a
    clock runs; `step` is the program that those call out of the map `steps`; `maps` are the names of maps.
    """

    name: str
    kprobes: Mapping[str, str]
    sampled: Sequence[str] = ()
    step: str | None = None
    maps: Sequence[str]


def ask_kernel(programs: BccPrograms) -> None:
    """Raise BpfError or OSError for what the kernel would refuse, before anything is compiled for nothing."""
    os.close(make_map())
    for function in programs.kprobes.values():
        os.close(open_kprobe(function))


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Where the parts are: the Python that has BCC, the sources, bpffs, libbpf; and who asks the kernel."""

    python: str = PYTHON
    sources: Path = OBJECTS
    pins: Path = PINS
    libbpf: str = LIBRARY
    ask: Callable[[BccPrograms], None] = ask_kernel


DEBIAN: Final = Toolchain()


class BccObject:
    """Programs that BCC compiled, opened. `compiled` says what that took, "" where it was spared.

    Raises BpfError where they can't be had. Blocks for as long as the compiler takes: for a worker thread.
    `interrupt` is called every now and then meanwhile; what it raises ends the compiler and comes out.
    """

    def __init__(
        self,
        programs: BccPrograms,
        *,
        interrupt: Callable[[], None] = lambda: None,
        toolchain: Toolchain = DEBIAN,
    ) -> None:
        load_library(toolchain.libbpf)  # before anything is compiled for nothing
        self._programs = programs
        self._interrupt = interrupt
        self._toolchain = toolchain
        self._events: list[int] = []
        self._fds: dict[str, int] = {}
        self.compiled = ""
        text = _read_source(toolchain.sources / f"{programs.name}.bcc.c")
        # Distinguishes versions of the programs; only root can pin anything there.
        digest = f"{zlib.crc32(f'{programs}{text}'.encode()):08x}"
        pins = take(f"{programs.name}_{digest}", lambda path: self._compile(text, path), root=toolchain.pins)
        self._pins: Pins | None = pins
        self._maps: dict[str, BpfMap] = {}
        try:
            for name in (*programs.kprobes, *programs.sampled):
                self._fds[name] = open_pinned(pins.path / name, library=toolchain.libbpf)
            for name in programs.maps:
                self._maps[name] = open_map(name, pins.path / name, library=toolchain.libbpf)
                self._fds[name] = self._maps[name].fd
        except (BpfError, OSError) as error:
            self.close()
            pins.remove()
            raise BpfError(f"BCC programs {programs.name}", str(error)) from None

    def map(self, name: str) -> BpfMap:
        return self._maps[name]

    def attach(self) -> None:
        """Attach the kprobes. Raises BpfError; then nothing of it is attached."""
        try:
            for program, function in self._programs.kprobes.items():
                self._events.append(attach_kprobe(self._fds[program], function))
        except BpfError as error:
            self._detach()
            raise BpfError(f"BCC programs {self._programs.name}", str(error)) from None

    def sample(self, program: str, period_ns: int) -> None:
        self._events.append(attach_clock(self._fds[program], period_ns))

    def close(self) -> None:
        """Detach and let go; the pins stay for the next one in this process. A second time is harmless."""
        self._detach()
        while self._fds:
            os.close(self._fds.popitem()[1])
        pins, self._pins = self._pins, None
        if pins is not None:
            pins.keep()

    def _detach(self) -> None:
        while self._events:
            os.close(self._events.pop())

    def _compile(self, text: str, path: Path) -> None:
        programs = dict.fromkeys(self._programs.kprobes, _KPROBE)
        programs |= dict.fromkeys(self._programs.sampled, _PERF_EVENT)
        request = json.dumps(
            {
                "text": text,
                "programs": programs,
                "maps": list(self._programs.maps),
                "step": self._programs.step,
            }
        )
        what = f"BCC programs {self._programs.name}"
        began = time.monotonic()
        try:
            self._toolchain.ask(self._programs)
        except OSError as error:
            raise BpfError(what, explain_errno(error.errno or 0)) from None
        except BpfError as error:
            raise BpfError(what, str(error)) from None
        try:
            status, answer, said = _run_child(
                [self._toolchain.python, "-I", str(_CHILD), str(path)], request, self._interrupt
            )
        except subprocess.TimeoutExpired:
            raise BpfError(what, f"not compiled within {COMPILE_SECONDS:g} s") from None
        except OSError as error:
            raise BpfError(what, f"{self._toolchain.python}: {error.strerror}") from None
        why, peak_bytes = _outcome(status, answer, said)
        if why is not None:
            raise BpfError(what, why, log=said)
        seconds = time.monotonic() - began
        self.compiled = f"compiled in {seconds:.1f} s, {peak_bytes >> 20} MiB at the most"
        _LOG.info("%s: %s", what, self.compiled)


def _run_child(command: Sequence[str], request: str, interrupt: Callable[[], None]) -> tuple[int, str, str]:
    """Return the child's status, its answer and what it said. Raises OSError, subprocess.TimeoutExpired."""
    deadline = time.monotonic() + COMPILE_SECONDS
    with subprocess.Popen(
        [*command, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
    ) as child:
        unsent: str | None = request  # taken by the first call, whatever becomes of it
        try:
            while True:
                try:
                    answer, said = child.communicate(unsent, timeout=_LOOK_SECONDS)
                except subprocess.TimeoutExpired:
                    unsent = None
                    if time.monotonic() > deadline:
                        raise
                    interrupt()
                else:
                    return child.returncode, answer, said
        except BaseException:
            child.kill()
            raise


def _outcome(status: int, answer: str, said: str) -> tuple[str | None, int]:
    """Return why there are no programs, None where there are, and the most memory that the child held."""
    try:
        document = json.loads(answer)
        error, peak_bytes = document["error"], int(document["peak_bytes"])
    except (ValueError, TypeError, KeyError):
        return _ended(status, said), 0
    return None if error is None else _meaning(str(error), said), peak_bytes


def _meaning(error: str, said: str) -> str:
    """Return the one line of what BCC, clang and the verifier said that names the cause."""
    if _NO_HEADERS.search(said):
        return f"no kernel headers for {os.uname().release}: Debian's packages linux-headers-* have them"
    found = _CLANG_ERROR.search(said)
    if found:
        return f"not compiled: {found[1][:_LONGEST_TEXT]}"
    log = _VERIFIER_LOG.split(said, maxsplit=1)
    if len(log) > 1 and log[1].strip():
        return f"{last_words(log[1])} ({error})"
    return " ".join(error.split())[:_LONGEST_TEXT]


def _ended(status: int, said: str) -> str:
    """Return how a child ended that gave no answer."""
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
    killed = "; it takes 250 MiB (see deploy/reactor-bcc.conf)" if status == -9 else ""
    return f"the compiler ended with {how}{killed}{f': {last[:_LONGEST_TEXT]}' if last else ''}"


def _read_source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BpfError(f"BCC source {path.name}", f"{error.strerror}: `make bpf`") from None
