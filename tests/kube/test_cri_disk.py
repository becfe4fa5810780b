"""A full image filesystem on a node with a runtime and nobody else: neither kubelet nor API server.

containerd's directory is a small ext4 of its own, so the layout is found to be a dedicated one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import images
import pytest
from machine import LostError, Program
from sandboxes import RunningPod, Runtime, image_named, until

from reactor.cri.messages import ContainerState

pytestmark = pytest.mark.trio
MIB = 1 << 20
DISK_MIB = 256
WRITTEN_MIB = 150
_CONTAINERD = "/var/lib/containerd"


class DiskRuntime(Runtime):
    """A machine whose containerd has a filesystem of its own."""

    def prepare(self) -> None:
        image = self.machine.state / "disk"
        with image.open("wb") as file:
            file.truncate(DISK_MIB * MIB)
        for command in (
            ["mkfs.ext4", "-q", "-F", "-m", "0", str(image)],
            ["mkdir", "-p", _CONTAINERD],
            ["mount", "-o", "loop", str(image), _CONTAINERD],
        ):
            done = self.machine.run(command)
            if done.returncode:
                raise LostError(f"{command}: {done.stderr}")


@pytest.fixture(scope="module")
def runtime_type() -> type[Runtime]:
    return DiskRuntime


class Daemon:
    """`reactor run` in the machine, with a cluster configured that isn't there."""

    def __init__(self, runtime: Runtime, directory: Path) -> None:
        self.runtime = runtime
        self.directory = directory
        self.program: Program | None = None

    def start(self, *, minimum_image_age: str = "1h", is_soft: bool = False) -> None:
        soft = {
            "evictionSoft": {"imagefs.available": "60%"},
            "evictionSoftGracePeriod": {"imagefs.available": "1s"},
            "evictionMaxPodGracePeriod": 30,
        }
        configuration = {
            **(soft if is_soft else {"evictionHard": {"imagefs.available": "60%"}}),
            "imageMinimumGCAge": minimum_image_age,
            "reactor": {
                "nodeCgroup": self.runtime.machine.node_cgroup,
                "kubernetes": {"nodeName": "nowhere", "kubeconfig": str(self.directory / "none")},
                "runtime": {"keepDeadContainers": 0},  # no kubelet that could start them again
                "metrics": "off",
                "housekeepingInterval": "1s",
                "socket": str(self.directory / "reactor.sock"),
                "stateFile": str(self.directory / "state.json"),
                "journal": {"path": str(self.directory / "journal.jsonl")},
            },
        }
        path = self.directory / "reactor.json"
        path.write_text(json.dumps(configuration))
        command = [sys.executable, "-P", "-m", "reactor", "run", "--config", str(path)]
        self.program = self.runtime.machine.start("reactor", command)

    def decisions(self) -> list[dict[str, Any]]:
        path = self.directory / "journal.jsonl"
        written = path.read_text() if path.exists() else ""
        lines = written[: written.rfind("\n") + 1].splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == "decision"]

    def freed_by(self, kind: str) -> int:
        found = [one for line in self.decisions() for one in line["reclaimed"] if one["kind"] == kind]
        return max((one["freed"] or 0 for one in found), default=0)

    def log(self) -> str:
        return "" if self.program is None else self.program.log()

    def outcomes(self) -> list[str]:
        return [one["outcome"] for line in self.decisions() for one in line["evictions"]]

    def evicted(self) -> list[str]:
        return [one["pod"].rpartition("/")[2] for line in self.decisions() for one in line["evictions"]]


@pytest.fixture
def daemon(runtime: Runtime, tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(runtime, tmp_path)
    yield made
    if made.program is not None:
        made.program.stop()


def writer(mib: int, then: str) -> list[str]:
    return ["/bin/sh", "-c", f"dd if=/dev/zero of=/written bs=1048576 count={mib}; sync; {then}"]


async def is_full(runtime: Runtime) -> bool:
    done: subprocess.CompletedProcess[str] = runtime.machine.run(
        ["stat", "-f", "-c", "%a %b", f"{_CONTAINERD}/."]
    )
    available, total = map(int, done.stdout.split())
    return available * 100 < total * 50


async def states(runtime: Runtime, pod: RunningPod) -> list[ContainerState]:
    return [one.state for one in await runtime.client().containers(pod.uid)]


async def test_what_dead_containers_hold_is_reclaimed_and_no_pod_is_evicted(
    runtime: Runtime, daemon: Daemon
) -> None:
    dead = await runtime.run_pod({"a": writer(WRITTEN_MIB, "true")})
    innocent = await runtime.run_pod({"a": writer(10, "sleep 600")}, qos="besteffort")
    await until(partial(is_full, runtime))
    daemon.start()

    async def is_given_back() -> bool:
        return daemon.freed_by("containers") > 100 * MIB

    await until(is_given_back)
    assert daemon.evicted() == []
    assert await states(runtime, dead) == []
    assert await states(runtime, innocent) == [ContainerState.RUNNING]


async def test_unused_images_are_enough_and_no_pod_is_evicted(runtime: Runtime, daemon: Daemon) -> None:
    runtime.node.import_image(images.large_archive(runtime.node.directory, 35))
    large = await image_named(runtime.client(), images.LARGE)
    assert large is not None
    daemon.start(minimum_image_age="1ms")

    async def is_seen() -> bool:
        seen = daemon.directory / "images.json"
        return seen.exists() and large.id in seen.read_text()

    async def is_given_back() -> bool:
        return daemon.freed_by("images") > 30 * MIB

    await until(is_seen)
    innocent = await runtime.run_pod({"a": writer(60, "sleep 600")}, qos="besteffort")
    await until(is_given_back)
    assert daemon.evicted() == []
    assert await image_named(runtime.client(), images.LARGE) is None
    assert await image_named(runtime.client(), images.LOAD) is not None
    assert await states(runtime, innocent) == [ContainerState.RUNNING]


async def test_who_fills_the_disk_is_evicted_and_what_it_leaves_is_given_back(
    runtime: Runtime, daemon: Daemon
) -> None:
    hog = await runtime.run_pod({"a": writer(WRITTEN_MIB, "sleep 600")})
    innocent = await runtime.run_pod({"a": writer(10, "sleep 600")}, qos="besteffort")
    await until(partial(is_full, runtime))
    daemon.start()

    async def is_evicted() -> bool:
        return bool(daemon.evicted())

    async def is_given_back() -> bool:
        return not await is_full(runtime)

    await until(is_evicted)
    await until(is_given_back)
    assert daemon.evicted() == [hog.name]
    assert await states(runtime, innocent) == [ContainerState.RUNNING]


async def test_who_fills_the_disk_slowly_is_stopped_by_the_runtime_within_its_grace_period(
    runtime: Runtime, daemon: Daemon
) -> None:
    hog = await runtime.run_pod({"a": writer(WRITTEN_MIB, "trap 'exit 0' TERM; while :; do sleep 0.1; done")})
    await until(partial(is_full, runtime))
    daemon.start(is_soft=True)

    async def is_over() -> bool:
        return bool(set(daemon.outcomes()) - {"ordered"})

    await until(is_over)
    assert (daemon.evicted(), daemon.outcomes()) == ([hog.name], ["terminated"])
    assert "sending SIGTERM to its processes instead" not in daemon.log()
