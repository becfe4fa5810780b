from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from reactor.cri.client import RuntimeClient
from reactor.cri.messages import (
    POD_UID_LABEL,
    Container,
    ContainerMetadata,
    ContainerState,
    ContainerStatusAnswer,
    Image,
    ImageSpec,
    Sandbox,
    SandboxMetadata,
    SandboxState,
)
from reactor.errors import RuntimeUnavailableError
from reactor.reclaim import reclaims as reclaim
from reactor.reclaim import runtime as runtime_reclaim
from reactor.reclaim.runtime import _image_of, is_named, listed, names_in_use

WEB = Image(id="sha256:web", repo_tags=("shop/web:1",), repo_digests=("shop/web@sha256:d",), size_bytes=7)
OLD = Image(id="sha256:old", size_bytes=3)


@pytest.mark.parametrize("name", ["sha256:web", "shop/web:1", "shop/web@sha256:d"])
def test_an_image_goes_by_any_of_its_names(name: str) -> None:
    assert is_named(WEB, {name})
    assert not is_named(OLD, {name})


def test_the_images_in_use_are_those_of_all_containers_by_every_name() -> None:
    old = Container(id="1", image=ImageSpec(image="shop/web:1"), image_ref="sha256:web")
    new = Container(id="2", image_ref="shop/db@sha256:e", image_id="sha256:db")
    assert {"shop/web:1", "sha256:web", "shop/db@sha256:e", "sha256:db"} == names_in_use([old, new])


def test_an_image_is_in_use_while_a_container_is_of_it() -> None:
    assert listed(WEB, {"shop/web:1"}).in_use
    assert not listed(OLD, {"shop/web:1"}).in_use


def test_a_pause_image_is_pinned_though_the_runtime_does_not_say_so() -> None:
    assert listed(Image(id="p", repo_tags=("registry.example/pause:3.9",)), ()).pinned
    assert not listed(WEB, ()).pinned


def test_a_sandboxs_image_is_found_in_what_the_runtime_says_besides_if_it_is_there() -> None:
    assert _image_of('{"image": "pause:3.9", "pid": 1}') == "pause:3.9"
    for info in ("", "{", "[]", '{"image": 5}', "{}"):
        assert _image_of(info) == ""


NOW_NS = time.time_ns()


def container(
    identity: str, name: str = "a", *, age_seconds: int = 100, state: ContainerState = ContainerState.EXITED
) -> Container:
    return Container(
        id=identity,
        sandbox_id="s",
        metadata=ContainerMetadata(name=name),
        state=state,
        created_at_ns=NOW_NS - age_seconds * 10**9,
    )


def dead(containers: list[Container], kept: int = 0) -> list[str]:
    return [one.id for one in runtime_reclaim._dead_containers(containers, lambda _: kept, NOW_NS)]


def sandbox(
    identity: str, uid: str, age_seconds: int, state: SandboxState = SandboxState.NOT_READY
) -> Sandbox:
    return Sandbox(
        id=identity,
        metadata=SandboxMetadata(uid=uid),
        state=state,
        created_at_ns=NOW_NS - age_seconds * 10**9,
    )


def test_dead_containers_go_the_oldest_first() -> None:
    containers = [
        container("young", "a", age_seconds=1),
        container("old", "b"),
        container("older", age_seconds=300),
    ]
    assert dead(containers) == ["older", "old", "young"]


def test_containers_that_run_or_are_about_to_stay() -> None:
    containers = [
        container("running", state=ContainerState.RUNNING),
        container("unknown", state=ContainerState.UNKNOWN),
        container("starting", state=ContainerState.CREATED, age_seconds=5),
        container("left over", state=ContainerState.CREATED, age_seconds=100),
    ]
    assert dead(containers) == ["left over"]


def test_the_youngest_dead_ones_of_each_container_are_kept_where_that_is_configured() -> None:
    containers = [container(str(age), age_seconds=age) for age in (10, 20, 30)]
    containers.append(container("other", "b", age_seconds=40))
    assert dead(containers, kept=1) == ["30", "20"]
    assert dead(containers, kept=5) == []


def test_of_pods_that_are_over_none_is_kept() -> None:
    containers = [replace(container(uid, uid), labels={POD_UID_LABEL: uid}) for uid in ("over", "runs")]
    containers_of = runtime_reclaim.ContainerReclaim(_nobody, lambda uid: uid == "runs", Path("/logs"))
    gone = runtime_reclaim._dead_containers(containers, containers_of._kept_of, NOW_NS)
    assert [one.id for one in gone] == ["over"]


def _nobody() -> RuntimeClient:
    raise RuntimeUnavailableError("nowhere", "connect", "there is none")


def test_sandboxes_go_when_they_are_down_and_empty_the_oldest_first() -> None:
    sandboxes = [
        sandbox("down", "u", 10),
        sandbox("older", "v", 20),
        sandbox("full", "w", 30),
        sandbox("up", "x", 40, SandboxState.READY),
    ]
    gone = runtime_reclaim._idle_sandboxes(sandboxes, {"full"}, lambda _: False)
    assert [one.id for one in gone] == ["older", "down"]


def test_the_youngest_sandbox_of_a_pod_that_is_still_to_run_stays() -> None:
    sandboxes = [sandbox("young", "u", 10), sandbox("old", "u", 20), sandbox("gone", "v", 5)]
    gone = runtime_reclaim._idle_sandboxes(sandboxes, (), lambda uid: uid == "u")
    assert [one.id for one in gone] == ["old", "gone"]


def test_a_log_goes_with_what_was_rotated_from_it_and_nothing_else_does(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "pod/a").mkdir(parents=True)
    for name in ("0.log", "0.log.20260101-000000", "0.log.1.gz", "1.log", "00.log"):
        (logs / "pod/a" / name).write_text("said")
    assert runtime_reclaim._remove_log(logs / "pod/a/0.log", logs) is None
    assert {"1.log", "00.log"} == {path.name for path in (logs / "pod/a").iterdir()}
    assert runtime_reclaim._remove_log(logs / "gone/a/0.log", logs) is None


def test_no_log_outside_the_directory_of_logs_goes(tmp_path: Path) -> None:
    logs, outside = tmp_path / "logs", tmp_path / "outside"
    logs.mkdir()
    outside.mkdir()
    (outside / "0.log").write_text("kept")
    os.symlink(outside, logs / "pod")
    for path in (outside / "0.log", logs / "pod/0.log", logs / "../outside/0.log"):
        assert "log not removed" in (runtime_reclaim._remove_log(path, logs) or "")
    assert (outside / "0.log").exists()


class Runtime:
    """A runtime with one dead container, which tells where its layers lie once that is removed."""

    def __init__(self, layers: Path) -> None:
        self.layers: tuple[str, ...] = ()
        self._layers = layers

    async def containers(self) -> list[Container]:
        return [container("dead")]

    async def container_status(self, _: str) -> ContainerStatusAnswer:
        return ContainerStatusAnswer()

    async def remove_container(self, _: str) -> None:
        self.layers = (str(self._layers),)

    async def sandboxes(self) -> list[Sandbox]:
        return []


@pytest.fixture
def fast_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(rate=50)


async def test_where_layers_lie_that_is_reported_meanwhile_is_not_taken_for_space_that_is_back(
    tmp_path: Path, fast_clock: trio.testing.MockClock
) -> None:
    runtime = Runtime(tmp_path)
    removal = runtime_reclaim.ContainerReclaim(
        lambda: cast(RuntimeClient, runtime), lambda _: False, tmp_path, lambda: runtime.layers
    )
    began = trio.current_time()
    report = await removal.run([])
    assert report is not None
    assert report.did[0] == "removed 1 dead containers"
    waited_seconds = trio.current_time() - began
    assert waited_seconds >= 4.9  # as long as it waits where no space comes back


def test_many_problems_are_reported_as_few() -> None:
    assert reclaim.shortened(["a"]) == ("a",)
    assert reclaim.shortened(list("abcde")) == ("a", "b", "c", "and 2 more like these")
