"""What the runtime gives back before anybody is evicted, on containerd itself."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import images
import pytest
from sandboxes import RunningPod, Runtime, image_named, until

from reactor.cri.client import RuntimeClient
from reactor.cri.messages import ContainerState
from reactor.model.settings import ImageGcSettings
from reactor.model.signals import Filesystem
from reactor.model.thresholds import Observation
from reactor.reclaim.images import Collected, ImageHistory, ImageReclaim
from reactor.reclaim.runtime import ContainerReclaim, RuntimeImages

pytestmark = pytest.mark.trio
ALL = tuple(Filesystem)
_RECLAIM = """
import trio
from pathlib import Path
from reactor.reclaim.runtime import ContainerReclaim
from reactor.cri.client import RuntimeClient
client = RuntimeClient("/run/containerd/containerd.sock")
print(trio.run(ContainerReclaim(lambda: client, lambda uid: False, Path("/var/log/pods")).run, ()))
"""


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


async def all_exited(client: RuntimeClient, pod: RunningPod) -> bool:
    return {one.state for one in await client.containers(pod.uid)} == {ContainerState.EXITED}


async def test_dead_containers_go_with_their_logs_and_living_ones_stay(runtime: Runtime) -> None:
    client = runtime.client()
    dead = await runtime.run_pod({"a": ["/bin/sh", "-c", "echo said"], "b": ["/bin/true"]})
    alive = await runtime.run_pod({"a": ["/bin/sh", "-c", "echo said; sleep 600"]})
    logs = [runtime.machine.path(f"/var/log/pods/test_{pod.name}_{pod.uid}/a/0.log") for pod in (dead, alive)]

    async def have_said() -> bool:
        return [1, 1] == [len(lines(log)) for log in logs]

    await until(partial(all_exited, client, dead))
    await until(have_said)
    # Within the machine, since the runtime names logs as they are there.
    done = runtime.machine.run([sys.executable, "-c", _RECLAIM])
    assert "removed 2 dead containers" in done.stdout, done.stderr
    assert await client.containers(dead.uid) == ()
    assert [one.state for one in await client.containers(alive.uid)] == [ContainerState.RUNNING]
    assert [0, 1] == [len(lines(log)) for log in logs]


async def test_a_sandbox_that_is_down_goes_unless_its_pod_is_still_to_run(runtime: Runtime) -> None:
    client = runtime.client()
    pod = await runtime.run_pod({"a": ["idle"]})
    await client.stop_sandbox(pod.sandbox_id)
    await until(partial(all_exited, client, pod))
    still_to_run = ContainerReclaim(runtime.client, lambda _: True, Path("/var/log/pods"))
    await still_to_run.run(ALL)
    assert [one.id for one in await client.sandboxes()] == [pod.sandbox_id]
    assert len(await client.containers(pod.uid)) == 1
    report = await ContainerReclaim(runtime.client, lambda _: False, Path("/var/log/pods")).run(ALL)
    assert report is not None
    assert report.did[1] == "removed 1 sandboxes"
    assert await client.sandboxes() == ()
    assert await still_to_run.run(ALL) is None


async def test_unused_images_go_and_those_in_use_and_of_pause_containers_stay(
    runtime: Runtime, tmp_path: Path
) -> None:
    client = runtime.client()
    history = ImageHistory(tmp_path / "images.json")
    at_once = ImageGcSettings(minimum_age_seconds=0.0)
    pod = await runtime.run_pod({"a": ["idle"]})
    reclaim = ImageReclaim(RuntimeImages(runtime.client), history, at_once)
    used = {image.id for image in await reclaim.refresh() if image.in_use}
    assert {(await image_named(client, name)).id for name in (images.LOAD, images.PAUSE)} == used  # type: ignore[union-attr]
    assert await reclaim.run(ALL) is None

    await client.stop_sandbox(pod.sandbox_id)
    await until(partial(all_exited, client, pod))
    assert await reclaim.run(ALL) is None  # a dead container counts as well
    await client.remove_container(pod.containers["a"])
    report = await reclaim.run(ALL)
    assert report is not None
    assert report.did[0].startswith("removed 1 of 1 unused images")
    assert report.problems == ()
    assert await image_named(client, images.LOAD) is None
    assert await image_named(client, images.PAUSE) is not None


async def test_an_image_that_has_just_come_is_about_to_be_used(runtime: Runtime, tmp_path: Path) -> None:
    history = ImageHistory(tmp_path / "images.json")
    reclaim = ImageReclaim(RuntimeImages(runtime.client), history, ImageGcSettings(minimum_age_seconds=120.0))
    assert await reclaim.run(ALL) is None
    assert await image_named(runtime.client(), images.LOAD) is not None


async def test_collection_goes_by_the_watermarks(runtime: Runtime, tmp_path: Path) -> None:
    settings = ImageGcSettings(minimum_age_seconds=0.0, high_threshold_percent=80, low_threshold_percent=70)
    reclaim = ImageReclaim(RuntimeImages(runtime.client), ImageHistory(tmp_path / "images.json"), settings)
    await reclaim.refresh()
    for enough in (Observation(available=21, capacity=100), None):
        assert await reclaim.collect(enough) == Collected(wanted_bytes=0, freed_bytes=0, report=None)
    collected = await reclaim.collect(Observation(available=19, capacity=100))
    assert collected.wanted_bytes == 11
    assert collected.freed_bytes > 11
    assert await image_named(runtime.client(), images.LOAD) is None


async def test_an_image_that_is_gone_meanwhile_is_no_problem(runtime: Runtime, tmp_path: Path) -> None:
    reclaim = ImageReclaim(
        RuntimeImages(runtime.client),
        ImageHistory(tmp_path / "images.json"),
        ImageGcSettings(minimum_age_seconds=0.0),
    )
    found = await reclaim.refresh()
    done = runtime.node.ctr("images", "rm", images.LOAD)
    assert isinstance(done, subprocess.CompletedProcess)
    _, problems = await reclaim._remove([one for one in found if not one.pinned])
    assert problems == []
