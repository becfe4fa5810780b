import os
import subprocess
import sys
import threading

import pytest

from reactor.kernel.scheduling import follow_main_thread, following


def test_beside_a_normal_main_thread_a_worker_stays_normal() -> None:
    seen = []
    worker = threading.Thread(target=lambda: seen.append((follow_main_thread(), os.sched_getscheduler(0))))
    worker.start()
    worker.join()
    assert [(None, os.sched_getscheduler(0))] == seen  # whose may be SCHED_IDLE: not real-time is normal


def test_a_call_that_follows_takes_its_arguments_and_gives_its_result() -> None:
    assert 3 == following(lambda one, *, other: one + other)(1, other=2)


def test_beside_a_real_time_main_thread_a_worker_is_real_time_below_it() -> None:
    code = (
        "import os, threading\n"
        "from reactor.kernel.scheduling import following\n"
        "os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(50))\n"
        "def show(): print(os.sched_getscheduler(0) & os.SCHED_FIFO, os.sched_getparam(0).sched_priority)\n"
        "for call in (show, following(show)):\n"
        "    worker = threading.Thread(target=call)\n"
        "    worker.start()\n"
        "    worker.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "PermissionError" in done.stderr:
        pytest.skip("needs CAP_SYS_NICE and real-time runtime: run as root outside a cpu cgroup without it")
    assert ["0 0", "1 1"] == done.stdout.splitlines()
