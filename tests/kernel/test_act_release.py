"""The thread that frees the memory of who was killed, against this machine's kernel."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from reactor.act.reap import MemoryRelease
from reactor.kernel import libc
from tests.support.this_machine import open_descriptors
from tests.support.waiting import eventually

SLEEPER = [sys.executable, "-S", "-c", "import signal; signal.pause()"]


def test_what_has_been_killed_is_released_and_the_callers_descriptor_stays() -> None:
    releaser = MemoryRelease()
    releaser.start()
    with subprocess.Popen(SLEEPER) as child:
        pidfd = os.pidfd_open(child.pid)
        before = open_descriptors()
        child.send_signal(signal.SIGKILL)
        releaser.release([pidfd])
        assert -signal.SIGKILL == child.wait(60)
    eventually(lambda: before == open_descriptors(), "no descriptor more than before")
    os.fstat(pidfd)
    os.close(pidfd)
    releaser.close()


def test_who_was_not_killed_lives_on() -> None:
    releaser = MemoryRelease()
    with subprocess.Popen(SLEEPER) as child:
        pidfd = os.pidfd_open(child.pid)
        with pytest.raises(OSError, match="process_mrelease"):
            libc.process_mrelease(pidfd)
        releaser.release([pidfd])
        releaser.close()
        assert child.poll() is None
        os.close(pidfd)
        child.kill()


def test_the_thread_is_started_once_and_ends_with_close() -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "reactor-release"]

    before = threads()
    releaser = MemoryRelease()
    releaser.start()
    releaser.start()
    releaser.release([])
    assert [*before, "reactor-release"] == threads()
    releaser.close()
    releaser.close()
    assert before == threads()
