"""The watch over filesystems of plain values, on trio's clock."""

from __future__ import annotations

import threading

import pytest
import trio

from reactor.disks.filesystems import Look, Survey
from reactor.disks.watch import FilesystemWatch
from reactor.kernel.filesystem import FilesystemSpace, Mount
from reactor.model.settings import EvictionSettings, Settings
from reactor.model.signals import Filesystem, Layout, Signal
from reactor.observe.latest import Observed
from reactor.sources.wakes import SourceBoard
from tests.support.builders import make_threshold
from tests.support.waiting import until

GIB = 1 << 30


def space(available_gib: float, *, read_only: bool = False, identity: int = 1) -> FilesystemSpace:
    return FilesystemSpace(
        capacity_bytes=1000 * GIB,
        available_bytes=int(available_gib * GIB),
        free_bytes=int(available_gib * GIB),
        inodes=None,
        inodes_free=None,
        read_only=read_only,
        identity=identity,
    )


class FakeFilesystems:
    """Shows `spaces` by path (an exception is raised, an event waited for) and `layout`."""

    def __init__(self) -> None:
        self.paths = {
            Filesystem.NODEFS: "/node",
            Filesystem.IMAGEFS: "/images",
            Filesystem.CONTAINERFS: "/images",
        }
        self.spaces = {"/node": space(500), "/images": space(500)}
        self.layout = Layout.DEDICATED
        self.device = "8:2"
        self.looks = []

    def look(self, path: str) -> Look:
        self.looks.append(path)
        shown = self.spaces[path]
        if isinstance(shown, threading.Event):
            shown.wait()
            raise OSError(5, "Input/output error", path)
        if isinstance(shown, Exception):
            raise shown
        return Look(space=shown, real_path=path)

    def survey(self, real_paths) -> Survey:
        mounts = {
            filesystem: Mount(mount_point=path, device=self.device, kind="ext4", source="/dev/x")
            for filesystem, path in real_paths.items()
        }
        return Survey(mounts=mounts, layout=self.layout)


class World:
    """Filesystems under watch, and what the watch tells of them."""

    def __init__(self, thresholds, *, layout_is_configured: bool = False, timeout_seconds: float = 5) -> None:
        by_layout = {each: EvictionSettings(thresholds=thresholds, layout=each) for each in Layout}
        self.filesystems, self.observed = FakeFilesystems(), Observed(stale_seconds=35)
        self.wakes, self.board = 0, SourceBoard()
        self.layouts = []
        self.near = 0
        self.watch = FilesystemWatch(
            self.filesystems,
            Settings(
                eviction=by_layout[Layout.DEDICATED], by_layout={} if layout_is_configured else by_layout
            ),
            self,
            timeout_seconds=timeout_seconds,
        )

    def take(self, asked, seen, now_seconds) -> None:
        self.observed.take(asked, seen, now_seconds)

    def wake(self) -> None:
        self.wakes += 1

    def filling(self) -> None:
        self.near += 1

    def lies_as(self, layout: Layout) -> None:
        self.layouts.append(layout)

    def seen(self) -> dict[str, float]:
        import time  # noqa: PLC0415

        return {signal: one.available / GIB for signal, one in self.observed.at(time.monotonic()).items()}


@pytest.fixture
def make_world():
    def make(**kwargs):
        return World((make_threshold(GIB, Signal.NODEFS_AVAILABLE),), **kwargs)

    return make


async def test_look_observes_each_path_once_for_all_that_lies_there(make_world):
    world = make_world()
    world.filesystems.spaces["/images"] = space(200)
    await world.watch.look()
    assert ["/images", "/node"] == sorted(world.filesystems.looks)
    assert {"nodefs.available": 500, "imagefs.available": 200, "containerfs.available": 200} == world.seen()


async def test_one_that_hangs_makes_no_other_stale_and_is_said(make_world):
    world, hung = make_world(timeout_seconds=1.0), threading.Event()
    await world.watch.look()
    world.filesystems.spaces["/images"] = hung
    try:
        for available in (400, 300):
            world.filesystems.spaces["/node"] = space(available)
            await world.watch.look()
        assert 300 == world.seen()["nodefs.available"]
        assert 500 == world.seen()["imagefs.available"]  # as last seen, until it is stale
        assert {"imagefs, containerfs /images": "no answer within 1 s"} == world.watch.problems
        assert 2 == world.filesystems.looks.count("/images")  # no second thread waits for it
    finally:
        hung.set()


async def test_one_that_disappears_is_unknown_at_once_and_said(make_world):
    world = make_world()
    await world.watch.look()
    world.filesystems.spaces["/images"] = FileNotFoundError(2, "No such file or directory", "/images")
    await world.watch.look()
    assert {"nodefs.available": 500} == world.seen()
    assert "/images" in world.watch.problems["imagefs, containerfs /images"]


async def test_read_only_one_is_unknown_and_said_and_well_when_it_is_writable_again(make_world):
    world = make_world()
    world.filesystems.spaces["/node"] = space(0, read_only=True)
    await world.watch.look()
    assert "nodefs.available" not in world.seen()
    assert "read-only" in world.watch.problems["nodefs /node"]
    world.filesystems.spaces["/node"] = space(7)
    await world.watch.look()
    assert 7 == world.seen()["nodefs.available"]
    assert {} == world.watch.problems


async def wakes_within(world: World, seconds: float) -> int:
    before = world.wakes
    await trio.sleep(seconds)
    return world.wakes - before


async def test_crossing_wakes_the_loop_once_and_so_does_its_end(nursery, make_world):
    world = make_world()
    world.filesystems.spaces["/node"] = space(1.1)
    await world.watch.look()
    await nursery.start(world.watch.run)
    world.filesystems.spaces["/node"] = space(0.9)
    await until(lambda: world.wakes == 1, "it is told")
    assert 0 == await wakes_within(world, 1.0)
    assert pytest.approx(0.9) == world.seen()["nodefs.available"]
    world.filesystems.spaces["/node"] = space(2)
    await until(lambda: world.wakes == 2, "its end is told")
    assert 0 == await wakes_within(world, 1.0)
    assert 2 == world.seen()["nodefs.available"]


async def test_filling_one_is_told_before_its_threshold_and_one_at_rest_is_not(nursery, make_world):
    world = make_world()
    world.filesystems.spaces["/node"] = space(1.5)
    await world.watch.look()
    await nursery.start(world.watch.run)
    await trio.sleep(0.7)
    assert 0 == world.near
    world.filesystems.spaces["/node"] = space(1.4)
    await until(lambda: world.near > 0, "it is told that it fills")


async def test_what_changes_nothing_is_not_acted_on_again(nursery, make_world):
    world = make_world()
    world.filesystems.spaces["/node"] = space(1.2)
    await world.watch.look()
    await nursery.start(world.watch.run)
    world.filesystems.spaces["/node"] = space(1.1)
    await until(lambda: world.filesystems.looks.count("/node") > 2, "it is observed again")
    assert 0 == world.wakes
    assert pytest.approx(1.2) == world.seen()["nodefs.available"]


async def test_other_layout_by_the_devices_is_told_and_the_same_is_not(make_world, caplog):
    world = make_world()
    await world.watch.look()
    assert [] == world.layouts
    world.filesystems.layout, world.filesystems.device = Layout.SINGLE, "8:1"
    await world.watch.look()
    assert [Layout.SINGLE] == world.layouts
    assert {} == world.watch.problems
    assert any("now lies on /images (ext4 8:1)" in one.getMessage() for one in caplog.records)


async def test_configured_layout_that_the_devices_belie_is_a_problem_and_stays(make_world):
    world = make_world(layout_is_configured=True)
    world.filesystems.layout = Layout.SPLIT
    await world.watch.look()
    assert [] == world.layouts
    assert {"layout": "configured is dedicated, but the paths lie as split"} == world.watch.problems


async def test_document_shows_how_they_lie_and_fill(make_world):
    world = make_world()
    await world.watch.look()
    world.filesystems.spaces["/node"] = space(400)
    await world.watch.look()
    document = world.watch.document()
    assert ("dedicated", "dedicated") == (document["layout"], document["layout_by_devices"])
    node = next(one for one in document["filesystems"] if one["filesystem"] == "nodefs")
    assert ("/node", "8:2", "ext4") == (node["path"], node["device"], node["kind"])
    assert node["fills_by_bytes_per_second"] > 0
    assert node["seconds_to_threshold"] is not None
    threshold = make_threshold(GIB, Signal.NODEFS_AVAILABLE)
    assert world.watch.seconds_to(threshold) == pytest.approx(node["seconds_to_threshold"], abs=0.001)


async def test_another_filesystem_at_the_same_path_has_no_rate_from_the_one_before(make_world):
    world = make_world()
    await world.watch.look()
    world.filesystems.spaces["/node"] = space(400, identity=2)
    await world.watch.look()
    node = world.watch.document()["filesystems"][0]
    assert (0, None) == (node["fills_by_bytes_per_second"], node["seconds_to_threshold"])
