import struct
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.proc_events import (
    MAXIMUM_SAMPLE,
    NO_SAMPLE,
    Acknowledgement,
    Fork,
    decode_events,
    fork_sample_program,
    request,
)


def event(what: int, body: bytes, *, ack: int = 0) -> bytes:
    """Return a message as the kernel sends it: nlmsghdr, cn_msg, proc_event."""
    content = struct.pack("=IIQ", what, 0, 1) + body
    connector = struct.pack("=IIIIHH", 1, 1, 0, ack, len(content), 0)
    return struct.pack("=IHHII", 16 + len(connector) + len(content), 3, 0, 0, 0) + connector + content


FORK = event(1, struct.pack("=IIII", 7, 7, 8, 9))
CUT_NAME = event(0x200, struct.pack("=II", 7, 7) + b"caf\xc3".ljust(16, b"\0"))


def test_a_fork_tells_parent_and_child() -> None:
    assert (Fork(parent_pid=7, child_pid=8),) == decode_events(FORK)


@pytest.mark.parametrize("error_number", [0, 1])
def test_an_acknowledgement_reports_its_token_and_errno(error_number: int) -> None:
    raw = event(0, struct.pack("=I", error_number).ljust(24, b"\0"), ack=42)
    assert (Acknowledgement(token=41, error_number=error_number),) == decode_events(raw)


def test_other_events_are_left_out() -> None:
    assert () == decode_events(event(0x80000000, bytes(24)))


def test_a_name_cut_amid_a_character_is_an_error_of_the_interface_and_no_crash() -> None:
    with pytest.raises(KernelInterfaceError, match="process connector"):
        decode_events(CUT_NAME)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused(raw: bytes) -> None:
    with suppress(KernelInterfaceError):
        decode_events(raw)


@given(st.integers(0, len(FORK) - 1), st.binary(min_size=1, max_size=8))
def test_a_damaged_fork_is_decoded_or_refused(at: int, damage: bytes) -> None:
    with suppress(KernelInterfaceError):
        decode_events(FORK[:at] + damage + FORK[at + len(damage) :])


def test_a_request_is_laid_out_as_the_connector_reads_it() -> None:
    header = (40, 3, 0, 0, 0)
    connector = (1, 1, 0, 5, 4, 0)
    assert struct.pack("=IHHIIIIIIHHI", *header, *connector, 1) == request(listen=True, token=5)
    assert struct.pack("=IHHIIIIIIHHI", *header, *connector, 2) == request(listen=False, token=5)


def run_filter(program: bytes, packet: bytes, random: int) -> int:
    """Return what a classic BPF program answers: just the instructions that this one uses."""
    instructions = list(struct.iter_unpack("=HBBI", program))
    position, accumulator = 0, 0
    while True:
        code, jump_true, jump_false, operand = instructions[position]
        position += 1
        match code:
            case 0x20:
                ancillary = operand == 0xFFFFF000 + 56
                accumulator = random if ancillary else struct.unpack_from(">I", packet, operand)[0]
            case 0x54:
                accumulator &= operand
            case 0x15:
                position += jump_true if accumulator == operand else jump_false
            case 0x06:
                return operand
            case _:
                raise AssertionError(code)


def test_the_filter_keeps_one_fork_in_n_and_every_acknowledgement_and_nothing_else() -> None:
    program = fork_sample_program(8, with_answers=True)
    kept = [random for random in range(32) if run_filter(program, FORK, random)]
    assert [0, 8, 16, 24] == kept
    assert all(run_filter(program, event(0, bytes(24)), random) for random in range(32))
    assert not any(run_filter(program, CUT_NAME, random) for random in range(32))


def test_without_answers_what_the_kernel_says_to_other_listeners_wakes_nobody() -> None:
    for one_in in (8, NO_SAMPLE):
        program = fork_sample_program(one_in, with_answers=False)
        assert not any(run_filter(program, event(0, bytes(24)), random) for random in range(32))
    assert run_filter(fork_sample_program(8, with_answers=False), FORK, 16)


@pytest.mark.parametrize("one_in", [0, -1, 3, 2 * MAXIMUM_SAMPLE])
def test_a_sample_that_is_no_power_of_two_is_refused(one_in: int) -> None:
    with pytest.raises(ValueError, match="a power of two from 1 to 4096"):
        fork_sample_program(one_in, with_answers=True)


def test_decoding_leaves_the_rest_of_pyroute2_out_of_memory_and_importable() -> None:
    script = """
import sys
from reactor.kernel.proc_events import decode_events
assert not any(name.startswith("pyroute2") for name in sys.modules)
decode_events(b"")
assert not {"asyncio", "multiprocessing", "ssl", "pyroute2.iproute"} & sys.modules.keys()
import pyroute2
from pyroute2.netlink.connector.cn_proc import ProcEventSocket
assert pyroute2.IPRoute and issubclass(ProcEventSocket, pyroute2.netlink.nlsocket.NetlinkSocket)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
