"""The process events connector: the kernel reports every fork, threads included, over netlink.

Needs CAP_NET_ADMIN in the initial user and pid namespaces; elsewhere the kernel answers nothing at all.
A socket may carry a classic BPF filter, which the kernel runs before it queues anything: here one that
keeps a random sample of the forks, because reading every one of 20,000 a second costs a whole CPU.
Sources: drivers/connector/cn_proc.c, include/uapi/linux/cn_proc.h, Documentation/networking/filter.rst.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
import struct
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from reactor.errors import KernelInterfaceError
from reactor.kernel import _libc_ffi
from reactor.processes import bare_package, replaced

MAXIMUM_SAMPLE: Final = 1 << 12
NO_SAMPLE: Final = 1 << 31  # one in so many forks is none
_NETLINK_CONNECTOR: Final = 11
_CN_IDX_PROC: Final = 1
_CN_VAL_PROC: Final = 1
_NLMSG_DONE: Final = 3
_LISTEN: Final = 1
_IGNORE: Final = 2
_EVENT_NONE: Final = 0  # how a request is acknowledged
_EVENT_FORK: Final = 1
_HEADERS: Final = struct.Struct("=IHHII IIIIHH")  # struct nlmsghdr, struct cn_msg
_ACTION: Final = struct.Struct("=I")
_WHAT_OFFSET: Final = 36  # struct proc_event follows the headers and begins with `what`
_ERROR_OFFSET: Final = 52  # its `ack.err`, behind `what`, `cpu` and `timestamp_ns`

# Classic BPF, include/uapi/linux/bpf_common.h and filter.h.
_LOAD_WORD: Final = 0x20
_AND: Final = 0x54
_JUMP_IF_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_RANDOM: Final = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
_INSTRUCTION: Final = struct.Struct("=HBBI")
_SO_ATTACH_FILTER: Final = 26

_ffi: Final[Any] = _libc_ffi.ffi


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A process or thread was made."""

    parent_pid: int
    child_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """The kernel's answer to the request with this token: errno, 0 where it was granted."""

    token: int
    error_number: int


def open_socket(*, one_in: int) -> socket.socket:
    """Return a non-blocking socket on the connector, sampling one in so many forks.

    Nothing comes before `request` is sent. Raises OSError: EPROTONOSUPPORT without CONFIG_CONNECTOR,
    EPERM. ENOBUFS on reading means that events were lost, and nothing else.
    """
    events = socket.socket(
        socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, _NETLINK_CONNECTOR
    )
    try:
        sample_forks(
            events, one_in=one_in, with_answers=True
        )  # first, so that nothing unfiltered is ever queued
        events.bind((0, _CN_IDX_PROC))
    except BaseException:
        events.close()
        raise
    return events


def sample_forks(events: socket.socket, *, one_in: int, with_answers: bool = False) -> None:
    """Have the kernel keep one fork in `one_in` (a power of two) from now on, and acknowledgements if wanted.

    It acknowledges a request to all listeners: each that begins or ends anywhere would wake every other one.
    """
    program = fork_sample_program(one_in, with_answers=with_answers)
    instructions = _ffi.from_buffer(program)
    address = int(_ffi.cast("uintptr_t", instructions))
    # struct sock_fprog: a count and a pointer, which the kernel has copied from when this returns.
    fprog = struct.pack("@HP", len(program) // _INSTRUCTION.size, address)
    events.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)


def fork_sample_program(one_in: int, *, with_answers: bool) -> bytes:
    """Return the classic BPF program that passes one in `one_in` forks, acknowledgements if wanted, no more.

    Raises ValueError where `one_in` is not a power of two from 1 to MAXIMUM_SAMPLE, or NO_SAMPLE.
    """
    if (not 1 <= one_in <= MAXIMUM_SAMPLE and one_in != NO_SAMPLE) or one_in & (one_in - 1):
        raise ValueError(f"one_in: got {one_in!r}; accepted: a power of two from 1 to {MAXIMUM_SAMPLE}")
    fork = socket.ntohl(_EVENT_FORK)  # BPF loads words in network order, the connector writes the host's
    return b"".join(
        _INSTRUCTION.pack(*instruction)
        for instruction in (
            (_LOAD_WORD, 0, 0, _WHAT_OFFSET),
            (_JUMP_IF_EQUAL, 1, 0, fork),  # over the next
            (_JUMP_IF_EQUAL, 3 if with_answers else 4, 4, _EVENT_NONE),
            (_LOAD_WORD, 0, 0, _RANDOM),
            (_AND, 0, 0, one_in - 1),
            (_JUMP_IF_EQUAL, 0, 1, 0),
            (_RETURN, 0, 0, 0xFFFFFFFF),
            (_RETURN, 0, 0, 0),
        )
    )


def request(*, listen: bool, token: int) -> bytes:
    """Return the message that asks for events, or for no more of them.

    A listener that leaves without asking for no more keeps the kernel sending for no listener (before 6.6).
    """
    headers = _HEADERS.pack(
        _HEADERS.size + _ACTION.size, _NLMSG_DONE, 0, 0, 0,
        _CN_IDX_PROC, _CN_VAL_PROC, 0, token, _ACTION.size, 0,
    )  # fmt: skip
    return headers + _ACTION.pack(_LISTEN if listen else _IGNORE)


def decode_events(raw: bytes) -> tuple[Fork | Acknowledgement, ...]:
    """Return the forks and acknowledgements in what was read from the socket; other events are left out.

    Raises KernelInterfaceError for anything that pyroute2's marshal does not take, which includes the event
    of a process that named itself with half a UTF-8 character.
    """
    try:
        return tuple(_known_events(raw))
    except Exception as error:
        raise KernelInterfaceError("process connector", raw[:64], "whole process events") from error


def _known_events(raw: bytes) -> Iterator[Fork | Acknowledgement]:
    for event in _marshal().parse(raw):
        what = event.get("what")
        if what == _EVENT_FORK:
            yield Fork(parent_pid=event["parent_pid"], child_pid=event["child_pid"])
        elif what == _EVENT_NONE:
            start = event.offset + _ERROR_OFFSET
            yield Acknowledgement(
                token=event["ack"] - 1, error_number=int.from_bytes(raw[start : start + 4], sys.byteorder)
            )


@cache
def _marshal() -> Any:
    """Return pyroute2's marshal of process events, without all else of pyroute2.

    The package's `__init__` imports all of it, 12 MiB of memory, and the sockets that stand beside the
    marshal bring asyncio, multiprocessing and TLS, 3 more. What is imported in their absence does not stay
    in sys.modules: an import of pyroute2 itself gets it whole.
    """
    package = "pyroute2"
    if package in sys.modules:
        return importlib.import_module("pyroute2.netlink.connector.cn_proc").ProcEventMarshal()
    with replaced({package: bare_package(package)}, package=package):
        marshal = importlib.import_module("pyroute2.netlink.marshal").Marshal
        sockets = types.ModuleType("pyroute2.netlink.nlsocket")
        vars(sockets).update(Marshal=marshal, NetlinkSocket=object)
        sys.modules[sockets.__name__] = sockets
        return importlib.import_module("pyroute2.netlink.connector.cn_proc").ProcEventMarshal()
