"""Whatever ends the tests, nothing of their machine is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from machine import wait_until

_BUSY = """
import signal
import sys
from pathlib import Path
from machine import Machine
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs with &
with Machine(Path(sys.argv[1])) as machine:
    machine.run(["mkdir", "-p", "/var/lib/volume"])
    machine.run(["mount", "-t", "tmpfs", "none", "/var/lib/volume"])
    print(machine.state, machine.start("sleeper", ["sleep", "1000"]).pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, None])
def test_processes_cgroups_mounts_and_files_go_with_the_tests_however_they_end(
    tmp_path: Path, end: signal.Signals | None
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root; run as root")
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY, tmp_path / "logs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parent,
    ) as tests:
        assert tests.stdin is not None
        assert tests.stdout is not None
        state, pid = tests.stdout.readline().split()
        assert Path("/proc", pid).exists()
        if end is None:
            tests.stdin.close()
        else:
            tests.send_signal(end)
        tests.wait(60)

    def is_all_gone() -> bool:
        cgroups = list(Path("/sys/fs/cgroup").glob(f"*/{Path(state).name.replace('_', '-')}*"))
        return not (cgroups or Path(state).exists() or Path("/proc", pid).exists())

    wait_until(is_all_gone, f"{state}, its cgroups and process {pid} are gone")
    assert state not in Path("/proc/self/mounts").read_text()
