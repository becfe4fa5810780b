"""What each process of the daemon may do: the guard all that it needs, the others as little as that takes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from reactor.kernel.capabilities import capability_names
from reactor.steward.storage import COMMAND
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import descendants_called
from tests.support.waiting import eventually

STEWARDS = {"CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_NET_BIND_SERVICE"}
FIELDS = ("CapInh", "CapPrm", "CapEff", "CapAmb")


def rights(pid: int, field: str = "CapEff") -> frozenset[str]:
    """Return the capabilities of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":\t")
        if name == field:
            return capability_names(int(value, 16))
    raise AssertionError(field)


def has_no_new_privileges(pid: int) -> bool:
    return "\nNoNewPrivs:\t1\n" in Path(f"/proc/{pid}/status").read_text()


@pytest.fixture
def own() -> frozenset[str]:
    """Return what the tests, and so the guard, may do."""
    found = rights(os.getpid())
    if not {"CAP_KILL", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE"} <= found:
        pytest.skip("run as root with CAP_KILL, CAP_SYS_ADMIN, CAP_SYS_PTRACE: there is nothing to give up")
    return found


def the(daemon: RunningDaemon, module: str) -> int:
    """Return the process that runs a module, once it has few rights."""
    assert daemon.process is not None
    guard = daemon.process.pid
    eventually(lambda: descendants_called(guard, module), f"{module} runs")
    (pid,) = descendants_called(guard, module)
    return pid


def test_steward_has_given_up_what_it_does_not_need_and_can_not_get_it_back(
    node: VirtualNode, daemon: RunningDaemon, own: frozenset[str]
) -> None:
    del node
    daemon.configure({"evictionHard": {"memory.available": "64Mi"}})
    daemon.start()
    daemon.status()  # it serves
    assert daemon.process is not None
    steward = the(daemon, "reactor.steward")

    assert dict.fromkeys(("CapPrm", "CapEff"), own & STEWARDS) | {
        "CapInh": frozenset(),
        "CapAmb": frozenset(),
    } == {field: rights(steward, field) for field in FIELDS}
    assert has_no_new_privileges(steward)
    if "CAP_SETPCAP" in own:
        assert rights(steward, "CapBnd") <= STEWARDS
    assert own == rights(daemon.process.pid)
    assert [] == descendants_called(daemon.process.pid, "reactor.privileged")  # nothing for it to do


def test_walker_may_read_and_nothing_else(own: frozenset[str]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, subprocess.Popen((*COMMAND, str(os.getpid()), "1"), stdin=theirs) as walker:
        eventually(lambda: rights(walker.pid) <= {"CAP_DAC_READ_SEARCH"}, "it has given up what it had")

        assert own & {"CAP_DAC_READ_SEARCH"} == rights(walker.pid) == rights(walker.pid, "CapPrm")
        assert has_no_new_privileges(walker.pid)
        theirs.close()
        ours.close()


def test_commands_have_the_rights_of_the_daemon_and_change_at_a_reload(
    node: VirtualNode, daemon: RunningDaemon, own: frozenset[str], tmp_path: Path
) -> None:
    del node
    configuration = {"evictionHard": {"memory.available": "64Mi", "nodefs.available": "99.99%"}}

    def commands(path: Path) -> dict[str, object]:
        script = f"grep -E 'CapEff|NoNewPrivs' /proc/self/status > {path}.new && mv {path}.new {path}"
        return {
            "housekeepingInterval": "200ms",
            "reclaim": {"nodefs": ["/bin/sh", "-c", script]},
            "reclaimPause": "1s",
            "pods": {"never": ["*"]},
        }

    for path in (tmp_path / "first", tmp_path / "second"):
        daemon.configure(configuration, commands(path))
        if daemon.process is None:
            daemon.start()
        else:
            daemon.signal(signal.SIGHUP)
        eventually(path.exists, "the command has run")
        found = dict(line.split(":\t") for line in path.read_text().splitlines())
        assert own == capability_names(int(found["CapEff"], 16))
        assert found["NoNewPrivs"] == "0"
    assert daemon.process is not None
    assert 1 == len(descendants_called(daemon.process.pid, "reactor.privileged"))
