from __future__ import annotations

from pathlib import Path

import pytest
import trio

from reactor.cluster import runtime
from reactor.cluster.runtime import Alarms, ImageWatch, NodeRuntime, RuntimeWatch, inventory_of
from reactor.cri.client import RuntimeClient
from reactor.cri.messages import (
    Container,
    ContainerMetadata,
    ContainerState,
    FilesystemIdentifier,
    FilesystemUsage,
    ImageFilesystems,
    Sandbox,
    SandboxMetadata,
    SandboxState,
    Version,
)
from reactor.errors import RuntimeUnavailableError
from reactor.model.pods import PodSource, RuntimePod
from reactor.model.settings import ImageGcSettings, KubernetesSettings, Role, Settings
from reactor.model.signals import Filesystem, Signal
from reactor.model.thresholds import Observation
from reactor.reclaim.images import Collected, ImageHistory, ImageReclaim
from reactor.reclaim.runtime import RuntimeImages


def images(tmp_path: Path) -> ImageReclaim:
    client = RuntimeClient(str(tmp_path / "none.sock"))
    return ImageReclaim(
        RuntimeImages(lambda: client), ImageHistory(tmp_path / "images.json"), ImageGcSettings()
    )


async def test_a_runtime_that_is_not_there_is_a_problem_and_asked_again(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    for collects in (False, True):
        watch = ImageWatch(dict, collects=collects)
        watch.use(images(tmp_path))
        nursery.start_soon(watch.run)
        await trio.sleep(200)
        assert "none.sock" in (watch.problem or "")


def test_images_are_collected_where_reactor_evicts_alone_and_in_no_dry_run_also_after_a_reload(
    tmp_path: Path,
) -> None:
    def settings(role: Role, *, dry_run: bool) -> Settings:
        return Settings(
            kubernetes=KubernetesSettings(node_name="one", role=role),
            state_path=str(tmp_path / "state.json"),
            dry_run=dry_run,
        )

    for role in Role:
        for was_dry in (False, True):
            runtime = NodeRuntime(
                settings(role, dry_run=was_dry),
                runs=lambda _: True,
                observed=dict,
                on_change=list[None]().clear,
                on_filesystems=list[None]().clear,
                alarms=Alarms(),
            )
            for is_dry in (was_dry, not was_dry, was_dry):
                runtime.reclaims(settings(role, dry_run=is_dry))
                assert (role is Role.SOLE and not is_dry) == runtime._images.collects


async def test_a_collection_that_fails_again_and_again_is_reported(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    failures: list[str] = []
    watch = ImageWatch(dict, collects=True, alarms=Alarms(failed=failures.append), interval_seconds=60)
    watch.use(images(tmp_path))
    nursery.start_soon(watch.run)
    await trio.sleep(59)
    assert failures == []
    await trio.sleep(60)
    assert len(failures) == 1
    assert "none.sock" in failures[0]


class Images:
    """Images of which too few can go."""

    async def collect(self, _: object) -> Collected:
        return Collected(wanted_bytes=100, freed_bytes=30, report=None)


async def test_a_collection_that_frees_too_little_is_reported_in_upstreams_words(
    nursery: trio.Nursery,
) -> None:
    shortages: list[str] = []
    watch = ImageWatch(dict, collects=True, alarms=Alarms(not_enough=shortages.append))
    watch.use(Images())  # type: ignore[arg-type]
    nursery.start_soon(watch.run)
    await trio.testing.wait_all_tasks_blocked()
    [message] = shortages
    assert message.startswith(
        "Failed to garbage collect required amount of images. Attempted to free 100 bytes"
    )
    assert message.endswith("but only found 30 bytes eligible to free.")


async def test_before_there_is_a_configuration_nothing_is_observed(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    watch = ImageWatch(dict, collects=False)
    nursery.start_soon(watch.run)
    await trio.sleep(200)
    assert watch.problem is None


async def test_as_soon_as_there_is_one_the_first_look_is_made(nursery: trio.Nursery) -> None:
    shortages: list[str] = []
    watch = ImageWatch(dict, collects=True, alarms=Alarms(not_enough=shortages.append))
    nursery.start_soon(watch.run)
    await trio.testing.wait_all_tasks_blocked()
    watch.use(Images())  # type: ignore[arg-type]
    await trio.testing.wait_all_tasks_blocked()
    assert len(shortages) == 1


async def test_an_image_filesystem_without_capacity_is_reported_in_upstreams_words(
    nursery: trio.Nursery,
) -> None:
    told: list[str] = []
    observed = {Signal.IMAGEFS_AVAILABLE: Observation(available=0, capacity=0)}
    watch = ImageWatch(lambda: observed, collects=True, alarms=Alarms(invalid_capacity=told.append))
    watch.use(NoImages())  # type: ignore[arg-type]
    nursery.start_soon(watch.run)
    await trio.testing.wait_all_tasks_blocked()
    assert told == ["invalid capacity 0 on image filesystem"]
    assert watch.problem == "invalid capacity 0 on image filesystem"


class NoImages:
    async def collect(self, _: object) -> Collected:
        return Collected(wanted_bytes=0, freed_bytes=0, report=None)


def usage(path: Path | str) -> FilesystemUsage:
    return FilesystemUsage(filesystem=FilesystemIdentifier(mountpoint=str(path)))


def test_the_runtimes_filesystems_are_taken_where_they_are_seen(tmp_path: Path) -> None:
    images, layers = tmp_path / "images", tmp_path / "layers"
    images.mkdir()
    told = ImageFilesystems(
        image_filesystems=(FilesystemUsage(), usage("/not/seen/here"), usage(images)),
        container_filesystems=(usage(layers),),
    )
    assert {Filesystem.IMAGEFS: str(images)} == runtime._paths(told)
    layers.mkdir()
    assert {
        Filesystem.IMAGEFS: str(images),
        Filesystem.CONTAINERFS: str(layers),
    } == runtime._paths(told)
    assert runtime._paths(ImageFilesystems()) == {}


async def test_a_runtime_that_was_never_there_is_a_problem_that_names_its_endpoint(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    watch = RuntimeWatch(endpoint=str(tmp_path / "none.sock"), interval_seconds=10)
    await nursery.start(watch.run)
    assert "none.sock" in (watch.state.problem or "")
    assert (watch.inventory, watch.state.description) == ({}, None)
    await trio.sleep(300)
    assert watch.state.problem is not None


class _Answering:
    """A runtime that answers, and names no filesystem that is seen from here."""

    api_version, endpoint = "v1", "/run/none.sock"

    async def version(self) -> Version:
        return Version(runtime_name="test", runtime_version="1")

    async def sandboxes(self) -> tuple[Sandbox, ...]:
        return ()

    async def containers(self) -> tuple[Container, ...]:
        return ()

    async def image_filesystems(self) -> ImageFilesystems:
        return ImageFilesystems(image_filesystems=(usage("/not/seen/here"),))


async def test_the_first_answer_tells_where_filesystems_lie_though_they_are_not_seen_from_here(
    tmp_path: Path,
) -> None:
    calls: list[bool] = []
    watch = RuntimeWatch(endpoint=str(tmp_path / "none.sock"), interval_seconds=10)
    watch.on_filesystems = lambda: calls.append(watch.has_answered)
    assert not await watch.ask()
    assert ([], False) == (calls, watch.has_answered)
    watch._client = _Answering()  # type: ignore[assignment] - as far as it is asked
    assert await watch.ask()
    assert await watch.ask()
    assert [True] == calls


def test_without_any_known_socket_the_key_that_would_name_one_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "find_endpoint", lambda: None)
    with pytest.raises(RuntimeUnavailableError, match=r"reactor\.runtime\.endpoint"):
        _ = RuntimeWatch(endpoint=None, interval_seconds=10).client


def _sandbox(identity: str, uid: str, **fields: object) -> Sandbox:
    metadata = SandboxMetadata(name=f"name-{uid}", namespace="shop", uid=uid)
    return Sandbox(id=identity, metadata=metadata, **fields)  # type: ignore[arg-type]


def _container(identity: str, sandbox: str, state: ContainerState = ContainerState.RUNNING) -> Container:
    return Container(
        id=identity, sandbox_id=sandbox, metadata=ContainerMetadata(name=f"c-{identity}"), state=state
    )


def test_a_pod_has_the_running_containers_of_its_sandbox() -> None:
    containers = [_container("1", "s"), _container("2", "other"), _container("3", "s", ContainerState.EXITED)]
    expected = RuntimePod(name="name-u", namespace="shop", sandboxes=("s",), containers={"1": "c-1"})
    assert {"u": expected} == inventory_of([_sandbox("s", "u")], containers)


def test_a_sandbox_that_is_down_is_no_pod() -> None:
    down = _sandbox("s", "u", state=SandboxState.NOT_READY)
    assert inventory_of([down, Sandbox(id="without-metadata")], []) == {}


def test_a_pod_with_two_sandboxes_has_the_containers_of_both() -> None:
    found = inventory_of(
        [_sandbox("s", "u"), _sandbox("t", "u")], [_container("1", "s"), _container("2", "t")]
    )
    assert found["u"].sandboxes == ("s", "t")
    assert set(found["u"].containers) == {"1", "2"}


_UUID = "0e4a3c0a-1111-4222-8333-0123456789ab"


@pytest.mark.parametrize(
    ("uid", "source", "hash_", "is_static"),
    [
        ("by-hand", "file", "by-hand", True),
        ("by-hand", "http", "by-hand", True),
        ("by-hand", "api", "by-hand", False),
        ("by-hand", None, "by-hand", False),
        ("by-hand", "file", "other", False),
        ("by-hand", "file", None, False),
        (_UUID, "file", _UUID, False),
        (_UUID.upper(), "file", _UUID.upper(), False),
    ],
)
def test_annotations_of_a_sandbox_tell_a_static_pod_only_by_a_uid_that_the_api_server_never_makes(
    uid: str, source: str | None, hash_: str | None, *, is_static: bool
) -> None:
    told = {"kubernetes.io/config.source": source, "kubernetes.io/config.hash": hash_}
    annotations = {key: value for key, value in told.items() if value is not None}
    found = inventory_of([_sandbox("s", uid, annotations=annotations)], [])
    assert is_static is (found[uid].source is not PodSource.API)
