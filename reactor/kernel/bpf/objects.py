"""eBPF objects, loaded by libbpf.so.1 through cffi in ABI mode: no compiler, no BCC, some milliseconds.

An object is all or nothing: either the kernel accepts every program in it, or BpfError says in one line why
not and carries the verifier's log. Nothing is probed by kernel version; what a kernel lacks it refuses.

Everything the kernel holds for an object (programs, links, maps, timers) goes with its last descriptor, so
a daemon that is killed leaves nothing behind. Not for more than one thread at a time.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from reactor.errors import BpfError, BpfNotAttachedError
from reactor.kernel.bpf.libbpf import LIBRARY, BpfMap, ffi, load_library, messages
from reactor.kernel.libc import release_free_memory

BTF: Final = Path("/sys/kernel/btf/vmlinux")
LOCKDOWN: Final = Path("/sys/kernel/security/lockdown")
NO_BTF: Final = f"no {BTF}: this kernel was built without CONFIG_DEBUG_INFO_BTF"

_LOCKED_DOWN: Final = "the kernel is locked down (confidentiality), and shows its memory to no process"
# The verifier's last words are statistics, and its own account of the program's states.
_STATISTICS: Final = re.compile(r"processed \d+ insns|peak_states|stack depth|verification time")
# From 7.3 on a report for people follows, of some twenty lines, which begins so.
_REPORT: Final = "Verification failed: "
_LONGEST_TEXT: Final = 200
_ENOTSUPP: Final = 524  # the kernel's own, which the C library has no text for
_HINTS: Final = {
    _ENOTSUPP: "this kernel has no direct calls, which trampolines need (arm64: from 6.4 on)",
    errno.EPERM: "needs CAP_BPF and CAP_PERFMON, and a kernel that allows tracing",
    errno.EACCES: "needs CAP_BPF and CAP_PERFMON, and a kernel that allows tracing",
    errno.ESRCH: "a function or type that it hooks or reads is not in this kernel",
    errno.ENOENT: "a function or type that it hooks or reads is not in this kernel",
}

OBJECTS: Final = Path(__file__).with_name("compiled")

# A wheel can be built without them: they take clang, and `pip install .` says nothing of what it left out.
_NOT_INSTALLED: Final = "not in this installation"
_HOW_TO_GET_IT: Final = (
    "install the Debian package or a wheel of `make wheel` (docs/install.md); in a checkout run `make bpf`"
)
_LOG_BYTES: Final = 1 << 20  # of the verifier's log; the kernel keeps its end, or its beginning before 6.4
_CGROUP_ITER_SELF_ONLY: Final = 1  # enum bpf_cgroup_iter_order
_NOT_ATTACHED: Final = ("iter/", "syscall")  # sections of programs that are called instead

_uncleared: Final[Any] = ffi.new_allocator(should_clear_after_alloc=False)  # its pages stay untouched


# Why the kernel would not take an eBPF program, as one line, out of an errno and what was said beside it.


def has_btf(path: Path = BTF) -> bool:
    """Return whether the kernel describes its types: whether there is BTF to be read."""
    try:
        with path.open("rb") as file:
            return file.read(2) in {b"\x9f\xeb", b"\xeb\x9f"}
    except OSError:
        return False


def locked_down(path: Path = LOCKDOWN) -> bool:
    """Return whether the kernel lets no process read its memory, root's neither."""
    try:
        return "[confidentiality]" in path.read_text()
    except OSError:
        return False


def explain(
    number: int, messages: Sequence[str], log: str, *, btf: Path = BTF, lockdown: Path = LOCKDOWN
) -> str:
    """Return why, as one line.

    `messages` are libbpf's warnings in order (none where it gives none), `log` is the verifier's (empty: the
    program never got so far).
    """
    if not has_btf(btf):
        return NO_BTF
    if log:
        hint = f"; {_LOCKED_DOWN}" if locked_down(lockdown) else ""
        return f"{last_words(log)} ({os.strerror(number)}){hint}"
    text = explain_errno(number, lockdown=lockdown)
    warning = "" if number in {errno.EPERM, errno.EACCES} else _first(messages)
    return f"{warning} ({text})" if warning else text


def explain_errno(number: int, *, lockdown: Path = LOCKDOWN) -> str:
    """Return an errno of the eBPF system calls with what it means there."""
    text = os.strerror(number)
    if number in {errno.EPERM, errno.EACCES} and locked_down(lockdown):
        return f"{text}; {_LOCKED_DOWN}"
    return f"{text}; {_HINTS[number]}" if number in _HINTS else text


def last_words(log: str) -> str:
    """Return the line in which the verifier says what it does not accept."""
    verdict, _, report = log.partition(f"\n{_REPORT}")
    for line in reversed(verdict.splitlines()):
        if line.strip() and not _STATISTICS.search(line):
            return line.strip()[:_LONGEST_TEXT]
    return report.partition("\n")[0][:_LONGEST_TEXT] or "refused by the verifier"


def _first(messages: Sequence[str]) -> str:
    """Return libbpf's first warning, which names what went wrong; the later ones follow from it."""
    first = next((message.strip() for message in messages if message.strip()), "")
    return " ".join(first.removeprefix("libbpf: ").split())[:_LONGEST_TEXT]


def absent_because(name: str, *, directory: Path = OBJECTS, library: str = LIBRARY) -> str | None:
    """Return what an object lacks to be tried at all, as one line; None where the kernel is to be asked."""
    try:
        load_library(library)
        _read_object(directory / f"{name}.bpf.o")
    except BpfError as error:
        return str(error)
    return None if has_btf() else NO_BTF


def not_installed(directory: Path = OBJECTS) -> str | None:
    return None if any(directory.glob("*.bpf.o")) else f"eBPF objects: {_NOT_INSTALLED}: {_HOW_TO_GET_IT}"


class BpfObject:
    """One object file, loaded. `shared` gives maps of another object to the maps of the same names.

    Raises BpfError where it can't be: no libbpf, no object file or a broken one, no BTF, no capability, a
    function that this kernel does not have, the verifier's refusal. `close` closes all descriptors of it.
    """

    def __init__(
        self,
        name: str,
        *,
        shared: Mapping[str, BpfMap] | None = None,
        directory: Path = OBJECTS,
        library: str = LIBRARY,
    ) -> None:
        self.name = name
        self._links: list[Any] = []
        self._object: Any = ffi.NULL
        self._c = load_library(library)
        raw = _read_object(directory / f"{name}.bpf.o")
        messages.clear()
        self._log = _uncleared("char[]", _LOG_BYTES)
        self._log[0] = b"\0"
        options = ffi.new(
            "struct open_options *",
            {
                "sz": ffi.sizeof("struct open_options"),
                "kernel_log_buf": self._log,
                "kernel_log_size": _LOG_BYTES,
            },
        )
        self._object = self._c.bpf_object__open_mem(raw, len(raw), options)
        if self._object == ffi.NULL:
            raise self._error(ffi.errno, "is not an eBPF object that libbpf can read")
        try:
            for map_name, shared_map in (shared or {}).items():
                reused = self._c.bpf_map__reuse_fd(self._find_map(map_name), shared_map.fd)
                self._check(reused, f"map {map_name} not shared")
            self._check(self._c.bpf_object__load(self._object), "not loaded")
            self._log = ffi.new("char[]", 1)  # nothing is verified from here on
        except BaseException:
            self.close()
            raise
        finally:
            release_free_memory()  # of what was taken for the kernel's BTF, 7 MiB

    def map(self, name: str) -> BpfMap:
        """Return one of the object's maps. Raises BpfError for a name that it has not."""
        found = self._find_map(name)
        return BpfMap(self._c, name, self._c.bpf_map__fd(found), self._c.bpf_map__max_entries(found))

    def attach(self) -> None:
        """Attach every program that hooks something.

        Raises BpfNotAttachedError; then nothing of it is attached.
        """
        program = ffi.NULL
        while (program := self._c.bpf_object__next_program(self._object, program)) != ffi.NULL:
            section = _text(self._c.bpf_program__section_name(program))
            if section.startswith(_NOT_ATTACHED):
                continue
            messages.clear()
            link = self._c.bpf_program__attach(program)
            if link == ffi.NULL:
                number = ffi.errno
                self._detach()
                raise self._error(number, f"{section} not attached", BpfNotAttachedError)
            self._links.append(link)

    def iterate(self, program_name: str, cgroup_fd: int) -> bytes:
        """Return what an iterator program writes about the cgroup that is open as `cgroup_fd`.

        Raises OSError: ENOENT or ENODEV where the cgroup is gone.
        """
        link_info = ffi.new(
            "struct cgroup_link_info *", {"order": _CGROUP_ITER_SELF_ONLY, "cgroup_fd": cgroup_fd}
        )
        options = ffi.new(
            "struct iter_options *",
            {
                "sz": ffi.sizeof("struct iter_options"),
                "link_info": link_info,
                "link_info_len": ffi.sizeof("struct cgroup_link_info"),
            },
        )
        link = self._c.bpf_program__attach_iter(self._program(program_name), options)
        if link == ffi.NULL:
            raise _os_error(ffi.errno, f"eBPF iterator {program_name}")
        try:
            fd = self._c.bpf_iter_create(self._c.bpf_link__fd(link))
            if fd < 0:
                raise _os_error(-fd, f"eBPF iterator {program_name}")
            with open(fd, "rb", buffering=0) as rows:
                return rows.readall()
        finally:
            self._c.bpf_link__destroy(link)

    def run(self, program_name: str, result_bytes: int) -> bytes:
        """Run a syscall program once; return what it has made of so many zero bytes. Raises BpfError."""
        return self.caller(program_name, result_bytes)(bytes(result_bytes))

    def caller(self, program_name: str, size: int) -> Callable[[bytes], bytes]:
        """Return a call of a syscall program: so many bytes in, what it has made of them out.

        A call is one system call; it raises BpfError. Not for more than one thread at a time.
        """
        context = ffi.new("char[]", size)
        room = ffi.buffer(context)
        options = ffi.new(
            "struct test_run_options *",
            {
                "sz": ffi.sizeof("struct test_run_options"),
                "ctx_in": context,
                "ctx_size_in": size,  # the kernel copies it back over the input
            },
        )
        fd = self._c.bpf_program__fd(self._program(program_name))

        def call(order: bytes) -> bytes:
            room[:] = order
            result = self._c.bpf_prog_test_run_opts(fd, options)
            if result < 0:
                raise self._error(-result, f"{program_name} not run")
            return bytes(room)

        return call

    def close(self) -> None:
        """Detach and unload; a second time is harmless."""
        self._detach()
        loaded, self._object = self._object, ffi.NULL
        if loaded != ffi.NULL:
            self._c.bpf_object__close(loaded)

    def _detach(self) -> None:
        while self._links:
            self._c.bpf_link__destroy(self._links.pop())

    def _find_map(self, name: str) -> Any:
        found = self._c.bpf_object__find_map_by_name(self._object, name.encode())
        if found == ffi.NULL:
            raise self._error(errno.ENOENT, f"has no map {name}")
        return found

    def _program(self, name: str) -> Any:
        found = self._c.bpf_object__find_program_by_name(self._object, name.encode())
        if found == ffi.NULL:
            raise self._error(errno.ENOENT, f"has no program {name}")
        return found

    def _check(self, result: int, what: str) -> None:
        if result < 0:
            raise self._error(-result, what)

    def _error(self, number: int, what: str, kind: type[BpfError] = BpfError) -> BpfError:
        log = _text(self._log)
        return kind(f"eBPF object {self.name}", f"{what}: {explain(number, messages, log)}", log=log)


def _read_object(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BpfError(f"eBPF object {path.name}", _NOT_INSTALLED, remedy=_HOW_TO_GET_IT) from None
    except OSError as error:
        raise BpfError(f"eBPF object {path}", error.strerror or str(error)) from None


def _os_error(number: int, what: str) -> OSError:
    return OSError(number, os.strerror(number), what)


def _text(c_string: Any) -> str:
    text: str = ffi.string(c_string).decode("utf-8", "replace")
    return text
