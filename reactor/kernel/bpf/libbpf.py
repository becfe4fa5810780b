"""libbpf.so.1 through cffi in ABI mode, what it says, and the maps that it reads and writes."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any, Final

from reactor.errors import BpfError
from reactor.kernel.bpf import _libbpf_ffi

LIBRARY: Final = "libbpf.so.1"

_HASH: Final = 1  # enum bpf_map_type
_ARRAY: Final = 2
_LIBBPF_WARN: Final = 0
_MESSAGE_BYTES: Final = 4096
_M_MMAP_THRESHOLD: Final = -3  # malloc.h
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 64 << 10

ffi: Final[Any] = _libbpf_ffi.ffi
messages: Final[list[str]] = []  # libbpf's warnings since this was last cleared
_libraries: Final[dict[str, Any]] = {}


def load_library(name: str) -> Any:
    """Return libbpf, its warnings collected in `messages` where that can be, and never printed to stderr."""
    if name not in _libraries:
        try:
            library = ffi.dlopen(name)
        except OSError:
            raise BpfError(name, "not found", remedy="Debian's package libbpf1 has it") from None

        # The third argument is a va_list. Where it is not passed by reference already (an array on x86-64
        # and s390x, a large struct on arm64) it is itself a pointer: in all of them a void pointer here.
        def keep(level: int, text_format: Any, arguments: Any) -> int:
            if level == _LIBBPF_WARN:
                text = ffi.new("char[]", _MESSAGE_BYTES)
                library.vsnprintf(text, _MESSAGE_BYTES, text_format, arguments)
                messages.append(ffi.string(text).decode("utf-8", "replace"))
            return 0

        try:
            callback = ffi.callback("libbpf_print_fn_t", keep)
        except MemoryError:
            # systemd's MemoryDenyWriteExecute and the like: no Python function can be passed to C. Errors
            # then have their number and the verifier's log, without libbpf's own text.
            callback = ffi.NULL
        library.libbpf_set_print(callback)
        _spare_memory(library)
        _libraries[name] = (library, callback)  # the callback lives for as long as the library calls it
    return _libraries[name][0]


def _spare_memory(library: Any) -> None:
    """Have malloc return to the kernel what libbpf allocates for BTF: some 10 MiB for each load.

    From the first large block that is freed on, glibc keeps such blocks, in a heap for each thread, and
    malloc_trim can't take pages out of a process that has locked its memory (MADV_DONTNEED is refused). So
    large blocks stay mappings of their own, which are unmapped when they are freed, and there is one heap.
    """
    try:
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_ARENA_MAX, 1)
    except AttributeError:  # a C library other than glibc
        return


class BpfMap:
    """A map of a loaded object, keys and values as packed bytes. Its descriptor belongs to the object."""

    __slots__ = ("_library", "fd", "max_entries", "name")

    def __init__(self, library: Any, name: str, fd: int, max_entries: int) -> None:
        self._library = library
        self.name = name
        self.fd = fd
        self.max_entries = max_entries

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value. Raises OSError with the map's name: E2BIG where the map is full."""
        self._check(self._library.bpf_map_update_elem(self.fd, key, value, 0))

    def get(self, key: bytes, size: int) -> bytes | None:
        """Return the value, `size` bytes as the map was declared; None where there is none."""
        value = ffi.new("char[]", size)
        result = self._library.bpf_map_lookup_elem(self.fd, key, value)
        if result == -errno.ENOENT:
            return None
        self._check(result)
        return bytes(ffi.buffer(value))

    def delete(self, key: bytes) -> bool:
        """Remove a value; return whether there was one."""
        result = self._library.bpf_map_delete_elem(self.fd, key)
        if result == -errno.ENOENT:
            return False
        self._check(result)
        return True

    def _check(self, result: int) -> None:
        if result < 0:
            raise OSError(-result, os.strerror(-result), f"eBPF map {self.name}")


def open_pinned(path: Path, *, library: str = LIBRARY) -> int:
    """Return the descriptor of a pinned map or program, for the caller to close. Raises BpfError."""
    fd: int = load_library(library).bpf_obj_get(os.fsencode(path))
    if fd < 0:
        raise BpfError(str(path), f"not opened: {os.strerror(-fd)}")
    return fd


def open_map(name: str, path: Path, *, library: str = LIBRARY) -> BpfMap:
    """Return a pinned map, emptied of what an earlier user has left in it. Its descriptor is the caller's.

    Raises BpfError, OSError.
    """
    loaded = load_library(library)
    fd = open_pinned(path, library=library)
    try:
        info = _map_info(loaded, name, fd)
        found = BpfMap(loaded, name, fd, info.max_entries)
        if info.type == _HASH:
            key = ffi.new("char[]", info.key_size)
            while loaded.bpf_map_get_next_key(fd, ffi.NULL, key) == 0:
                found.delete(bytes(ffi.buffer(key)))
        elif info.type == _ARRAY:
            for place in range(info.max_entries):
                found.put(place.to_bytes(info.key_size, sys.byteorder), bytes(info.value_size))
    except BaseException:
        os.close(fd)
        raise
    return found


def _map_info(loaded: Any, name: str, fd: int) -> Any:
    info = ffi.new("struct map_info *")
    size = ffi.new("unsigned int *", ffi.sizeof("struct map_info"))
    result = loaded.bpf_obj_get_info_by_fd(fd, info, size)
    if result < 0:
        raise OSError(-result, os.strerror(-result), f"eBPF map {name}")
    return info
