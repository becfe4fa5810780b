import subprocess
import sys

import pytest


def test_a_real_time_loop_has_its_child_reaped_at_ordinary_priority() -> None:
    code = (
        "import os, trio\n"
        "from reactor.child_process import ChildProcess\n"
        "os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(50))\n"
        "really_wait = os.waitpid\n"
        "def wait(pid, options):\n"
        "    print(os.sched_getscheduler(0))\n"
        "    return really_wait(pid, options)\n"
        "os.waitpid = wait\n"
        "async def start_and_end():\n"
        "    child = await ChildProcess.start(('/bin/cat',))\n"
        "    print(await child.end(60.0))\n"
        "trio.run(start_and_end)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "PermissionError" in done.stderr:
        pytest.skip("needs CAP_SYS_NICE and real-time runtime: run as root outside a cpu cgroup without it")
    assert ["0", "ended with status 0"] == done.stdout.splitlines()
