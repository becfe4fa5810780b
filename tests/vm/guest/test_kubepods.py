"""A kubelet's tree as its systemd driver and CRI-O lay it out, with nobody who could tell what is in it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guarded import HERE, MEMORY, MIB, RUNTIME, SLICE, V2, Service, eventually

KUBEPODS = "guarded-kubepods"  # the kubelet's, with `cgroupRoot: /guarded`


class CrioPod:
    """A pod of one container: that, its pause container and the two's monitors, each in a scope."""

    def __init__(self, pause: Path, qos_class: str, *load: str) -> None:
        self.uid = str(uuid.uuid4())
        self.slice = f"{KUBEPODS}-{qos_class}-pod{self.uid.replace('-', '_')}.slice"
        self.cgroup = MEMORY / SLICE / f"{KUBEPODS}.slice" / f"{KUBEPODS}-{qos_class}.slice" / self.slice
        self._clients: list[subprocess.Popen[bytes]] = []
        sandbox, container = (uuid.uuid4().hex + uuid.uuid4().hex for _ in range(2))
        sleeper = "/usr/bin/sleep"
        self.monitors = [self._scope(f"crio-conmon-{each}", sleeper, "1000") for each in (sandbox, container)]
        self.pause = self._scope(f"crio-{sandbox}", str(pause), "1000")
        self.container = self._scope(f"crio-{container}", sys.executable, "-S", str(HERE / "load.py"), *load)

    def _scope(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in a scope of the pod's slice; systemd-run becomes the command itself."""
        words = ["systemd-run", "--quiet", "--scope", f"--unit={name}", f"--slice={self.slice}", *command]
        client = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        self._clients.append(client)
        eventually((self.cgroup / f"{name}.scope").exists, f"{name}.scope")
        return client

    def usage_bytes(self) -> int:
        return int((self.cgroup / ("memory.current" if V2 else "memory.usage_in_bytes")).read_text())

    def end(self) -> None:
        for client in self._clients:
            client.kill()
            client.wait()


@pytest.fixture
def start_pod(tmp_path: Path) -> Iterator[Callable[..., CrioPod]]:
    pause = tmp_path / "pause"
    shutil.copy("/usr/bin/sleep", pause)  # a process is called after its file
    with contextlib.ExitStack() as stack:

        def start(qos_class: str, *load: str) -> CrioPod:
            pod = CrioPod(pause, qos_class, *load)
            stack.callback(pod.end)
            return pod

        yield start


def test_the_hog_is_ended_its_pause_container_and_monitors_live_and_so_do_the_others(
    service: Service, start_pod: Callable[..., CrioPod]
) -> None:
    nobody = {"nodeName": "nowhere", "kubeconfig": "/nonexistent"}
    service.configure(
        {"cgroupRoot": "/guarded", "evictionHard": {"memory.available": "100Mi"}},
        {"kubernetes": nobody, "runtime": {"endpoint": str(RUNTIME / "nothing.sock")}},
    )
    quiet = start_pod("burstable", "hold", "150")
    eventually(lambda: quiet.usage_bytes() >= 150 * MIB, "the quiet pod's memory")
    service.start()
    service.armed_after("ebpf" if V2 else "memcg-eventfd")
    hog = start_pod("besteffort", "hold", "300")
    decision = service.wait_for_eviction()
    assert [f"kubepods/pod{hog.uid}"] == service.evicted()
    assert ["killed"] == [eviction["outcome"] for eviction in decision["evictions"]]
    assert [1] == [eviction["processes"] for eviction in decision["evictions"]]
    eventually(lambda: hog.container.poll() is not None, "the container's end")
    assert [None] * 3 == [one.poll() for one in (hog.pause, *hog.monitors)]
    assert quiet.container.poll() is None
    assert str(RUNTIME / "nothing.sock") in service.status()["problems"]["runtime"]
