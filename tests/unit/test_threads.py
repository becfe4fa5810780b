import os
import select
import socket
import subprocess
import sys

import pytest
import trio

from reactor.threads import MOST_THREADS, NameLookups, close_behind, in_thread, limit_threads

NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV

# A stack that is larger than the address space is refused as a thread is when there is no process id left.
# In a process of its own: Trio's idle threads would do for the next call.
NO_THREADS = """
import threading, trio
from reactor.threads import in_thread

async def main():
    threading.stack_size(1 << 47)
    try:
        await trio.to_thread.run_sync(int)
    except RuntimeError as error:
        print(error)
    with trio.move_on_after(0.3) as scope:
        await in_thread(print, "never")
    print(scope.cancelled_caught)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, print, "late")
        await trio.sleep(0.3)
        print("now")
        threading.stack_size(0)

trio.run(main)
"""

# The same for a connection to a host by its name.
NO_THREADS_TO_CONNECT = """
import threading, trio
from reactor.threads import NameLookups

async def main():
    trio.socket.set_custom_hostname_resolver(NameLookups())
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    threading.stack_size(1 << 47)

    async def connect():
        async with await trio.open_tcp_stream("localhost", port):
            print("late")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect)
        await trio.sleep(0.3)
        print("now")
        threading.stack_size(0)
    await listener.aclose()

trio.run(main)
"""


def test_host_is_looked_up_once_a_thread_can_be_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_THREADS_TO_CONNECT], capture_output=True, text=True, check=False, timeout=60
    )
    assert ("now\nlate\n", "") == (done.stdout, done.stderr)


async def test_names_are_looked_up_as_the_systems_own() -> None:
    names = NameLookups()
    assert await names.getnameinfo(("127.0.0.1", 80), NUMERIC) == ("127.0.0.1", "80")
    (found,) = await names.getaddrinfo(b"127.0.0.1", 80, type=socket.SOCK_STREAM)
    assert found[4] == ("127.0.0.1", 80)
    with pytest.raises(socket.gaierror):
        await names.getaddrinfo(b"nowhere.invalid", 80, flags=socket.AI_NUMERICHOST)


def test_call_waits_until_a_thread_can_be_started_and_may_be_cancelled_meanwhile() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_THREADS], capture_output=True, text=True, check=False, timeout=60
    )
    assert ("can't start new thread\nTrue\nnow\nlate\n", "") == (done.stdout, done.stderr)


async def test_what_the_call_returns_and_raises_reaches_who_made_it() -> None:
    def fails() -> None:
        raise RuntimeError("its own")

    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(RuntimeError, match="its own"):
        await in_thread(fails)


async def test_one_that_is_abandoned_is_not_waited_for() -> None:
    release = trio.Event()

    def waits() -> None:
        trio.from_thread.run(release.wait)

    with trio.move_on_after(0.05) as scope:
        await in_thread(waits, abandon_on_cancel=True)
    assert scope.cancelled_caught
    release.set()


async def test_no_more_worker_threads_run_at_a_time_than_the_unit_leaves_room_for():
    limit_threads()
    limiter = trio.to_thread.current_default_thread_limiter()
    running = []

    async with trio.open_nursery() as nursery:
        for _ in range(3 * MOST_THREADS):
            nursery.start_soon(in_thread, lambda: running.append(limiter.borrowed_tokens))

    assert len(running) == 3 * MOST_THREADS
    assert max(running) <= MOST_THREADS


async def test_descriptor_is_closed_behind_also_by_who_is_cancelled() -> None:
    reader, writer = os.pipe()
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep(1)
        finally:
            close_behind(writer)
            assert not select.select([reader], [], [], 0)[0]  # nobody has waited for it
    await trio.lowlevel.wait_readable(reader)
    assert os.read(reader, 1) == b""
    os.close(reader)


async def test_descriptor_that_is_not_open_ends_nothing() -> None:
    close_behind(1 << 30)
    reader, writer = os.pipe()
    close_behind(writer)
    await trio.lowlevel.wait_readable(reader)
    await in_thread(os.close, reader)
