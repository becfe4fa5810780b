import subprocess
import sys

import pytest
import trio

from reactor.threads import in_thread

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
