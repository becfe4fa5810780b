"""The watch over filesystems of plain values, on trio's clock."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from reactor.disks.watch import FilesystemObserver, FilesystemWatch, Filling, Reading, Survey
from reactor.kernel.filesystem import FilesystemSpace, Mount
from reactor.model.settings import EvictionSettings, Settings
from reactor.model.signals import Filesystem, Layout, Signal
from reactor.model.thresholds import Observed
from reactor.observe.filesystems import observations
from reactor.sources.catalogue import SourceBoard
from tests.support.builders import make_observation, make_threshold
from tests.support.waiting import until

GIB = 1 << 30
LONGEST_SECONDS = 10.0

MOUNTS = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:2 / /images rw - xfs /dev/sdb rw\n"
SPACE = FilesystemSpace(
    capacity_bytes=100,
    available_bytes=10,
    free_bytes=15,
    inodes=50,
    inodes_free=5,
    read_only=False,
    identity=1,
)


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
        self.mounts_change = True
        self.surveys = 0

    def read(self, path: str) -> Reading:
        self.looks.append(path)
        shown = self.spaces[path]
        if isinstance(shown, threading.Event):
            shown.wait()
            raise OSError(5, "Input/output error", path)
        if isinstance(shown, Exception):
            raise shown
        return Reading(space=shown, real_path=path)

    def changes(self) -> int:
        return len(self.looks) if self.mounts_change else 0

    def survey(self, real_paths) -> Survey:
        self.surveys += 1
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

    def adopt_layout(self, layout: Layout) -> None:
        self.layouts.append(layout)

    def seen(self) -> dict[str, float]:
        return {signal: one.available / GIB for signal, one in self.observed.at(time.monotonic()).items()}


@pytest.fixture
def make_world():
    def make(**kwargs):
        return World((make_threshold(GIB, Signal.NODEFS_AVAILABLE),), **kwargs)

    return make


async def test_look_observes_each_path_once_for_all_that_lies_there(make_world):
    world = make_world()
    world.filesystems.spaces["/images"] = space(200)
    await world.watch.refresh()
    assert ["/images", "/node"] == sorted(world.filesystems.looks)
    assert {"nodefs.available": 500, "imagefs.available": 200, "containerfs.available": 200} == world.seen()


async def test_the_mount_table_is_read_where_it_or_a_path_has_changed_and_not_else(make_world):
    world = make_world()
    world.filesystems.mounts_change = False
    for _ in range(3):
        await world.watch.refresh()
    assert 1 == world.filesystems.surveys
    assert Layout.DEDICATED == world.watch.document()["layout_by_devices"]
    world.filesystems.spaces["/images"] = FileNotFoundError(2, "No such file or directory", "/images")
    for _ in range(3):
        await world.watch.refresh()
    assert 2 == world.filesystems.surveys
    world.filesystems.mounts_change = True
    for _ in range(3):
        await world.watch.refresh()
    assert 5 == world.filesystems.surveys


async def test_a_mount_table_that_could_not_be_read_is_read_again(make_world, monkeypatch):
    world = make_world()
    world.filesystems.mounts_change = False
    monkeypatch.setattr(world.filesystems, "survey", _refused)
    await world.watch.refresh()
    assert "mountinfo" in world.watch.problems["layout"]
    monkeypatch.undo()
    await world.watch.refresh()
    assert (1, {}) == (world.filesystems.surveys, world.watch.problems)


def _refused(real_paths) -> Survey:
    raise OSError(5, "Input/output error", "mountinfo")


async def test_what_housekeeping_reads_as_often_is_read_a_second_time_only_where_it_is_late(
    make_world, mock_clock
):
    world = make_world()
    looks = world.filesystems.looks
    await world.watch.refresh()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.watch.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(4):
            mock_clock.jump(LONGEST_SECONDS)
            await trio.testing.wait_all_tasks_blocked()
            await world.watch.refresh()
        assert [5, 5] == [looks.count(path) for path in ("/node", "/images")]
        mock_clock.jump(1.06 * LONGEST_SECONDS)
        for _ in range(1000):
            if len(looks) < 12:
                await trio.to_thread.run_sync(time.sleep, 0.01)
        nursery.cancel_scope.cancel()
    assert [6, 6] == [looks.count(path) for path in ("/node", "/images")]


async def test_one_that_hangs_makes_no_other_stale_and_is_said(make_world):
    world, hung = make_world(timeout_seconds=1.0), threading.Event()
    await world.watch.refresh()
    world.filesystems.spaces["/images"] = hung
    try:
        for available in (400, 300):
            world.filesystems.spaces["/node"] = space(available)
            await world.watch.refresh()
        assert 300 == world.seen()["nodefs.available"]
        assert 500 == world.seen()["imagefs.available"]  # as last seen, until it is stale
        assert {"imagefs, containerfs /images": "no answer within 1 s"} == world.watch.problems
        assert 2 == world.filesystems.looks.count("/images")  # no second thread waits for it
    finally:
        hung.set()


async def test_one_that_disappears_is_unknown_at_once_and_said(make_world):
    world = make_world()
    await world.watch.refresh()
    world.filesystems.spaces["/images"] = FileNotFoundError(2, "No such file or directory", "/images")
    await world.watch.refresh()
    assert {"nodefs.available": 500} == world.seen()
    assert "/images" in world.watch.problems["imagefs, containerfs /images"]


async def test_read_only_one_is_unknown_and_said_and_well_when_it_is_writable_again(make_world):
    world = make_world()
    world.filesystems.spaces["/node"] = space(0, read_only=True)
    await world.watch.refresh()
    assert "nodefs.available" not in world.seen()
    assert "read-only" in world.watch.problems["nodefs /node"]
    world.filesystems.spaces["/node"] = space(7)
    await world.watch.refresh()
    assert 7 == world.seen()["nodefs.available"]
    assert {} == world.watch.problems


async def wakes_within(world: World, seconds: float) -> int:
    before = world.wakes
    await trio.sleep(seconds)
    return world.wakes - before


async def test_crossing_wakes_the_loop_once_and_so_does_its_end(nursery, make_world):
    world = make_world()
    world.filesystems.spaces["/node"] = space(1.1)
    await world.watch.refresh()
    await nursery.start(world.watch.run)
    world.filesystems.spaces["/node"] = space(0.9)
    await until(lambda: world.wakes == 1, "it is told")
    assert 0 == await wakes_within(world, 1.0)
    assert pytest.approx(0.9) == world.seen()["nodefs.available"]
    world.filesystems.spaces["/node"] = space(2)
    await until(lambda: world.wakes == 2, "its end is told")
    assert 0 == await wakes_within(world, 1.0)
    assert 2 == world.seen()["nodefs.available"]


async def test_filling_one_is_reported_before_its_threshold_and_one_at_rest_is_not(nursery, make_world):
    world = make_world()
    world.filesystems.spaces["/node"] = space(1.5)
    await world.watch.refresh()
    await nursery.start(world.watch.run)
    await trio.sleep(0.7)
    assert 0 == world.near
    world.filesystems.spaces["/node"] = space(1.4)
    await until(lambda: world.near > 0, "it is told that it fills")


async def test_what_changes_nothing_is_not_acted_on_again(nursery, make_world):
    world = make_world()
    world.filesystems.spaces["/node"] = space(1.2)
    await world.watch.refresh()
    await nursery.start(world.watch.run)
    world.filesystems.spaces["/node"] = space(1.1)
    await until(lambda: world.filesystems.looks.count("/node") > 2, "it is observed again")
    assert 0 == world.wakes
    assert pytest.approx(1.2) == world.seen()["nodefs.available"]


async def test_other_layout_by_the_devices_is_reported_and_the_same_is_not(make_world, caplog):
    world = make_world()
    await world.watch.refresh()
    assert [] == world.layouts
    world.filesystems.layout, world.filesystems.device = Layout.SINGLE, "8:1"
    await world.watch.refresh()
    assert [Layout.SINGLE] == world.layouts
    assert {} == world.watch.problems
    assert any("now lies on /images (ext4 8:1)" in one.getMessage() for one in caplog.records)


async def test_configured_layout_that_the_devices_belie_is_a_problem_and_stays(make_world):
    world = make_world(layout_is_configured=True)
    world.filesystems.layout = Layout.SPLIT
    await world.watch.refresh()
    assert [] == world.layouts
    assert {"layout": "configured is dedicated, but the paths lie as split"} == world.watch.problems


async def test_document_shows_how_they_lie_and_fill(make_world):
    world = make_world()
    await world.watch.refresh()
    world.filesystems.spaces["/node"] = space(400)
    await world.watch.refresh()
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
    await world.watch.refresh()
    world.filesystems.spaces["/node"] = space(400, identity=2)
    await world.watch.refresh()
    node = world.watch.document()["filesystems"][0]
    assert (0, None) == (node["fills_by_bytes_per_second"], node["seconds_to_threshold"])


@pytest.fixture
def hard():
    return make_threshold(GIB, Signal.NODEFS_AVAILABLE)


@pytest.fixture
def fill(hard):
    """Return a Filling that has been shown these GiB as available, one after the other."""

    def make(*available_gib: float, every_seconds: float = 1.0) -> Filling:
        filling = Filling([hard])
        for number, gib in enumerate(available_gib):
            seen = {hard.signal: make_observation(int(gib * GIB), 1000 * GIB)}
            filling.take(seen, 100 + number * every_seconds)
        return filling

    return make


def test_time_to_the_threshold_is_the_margin_at_the_present_rate(fill, hard):
    filling = fill(11, 9)
    assert 2 * GIB == filling.rate(hard.signal)
    assert 4 == filling.seconds_to(hard)


def test_disk_at_rest_and_one_that_empties_reach_no_threshold(fill, hard):
    assert fill(9, 9).seconds_to(hard) is None
    assert fill(9, 11).seconds_to(hard) is None
    assert fill(9).seconds_to(hard) is None


def test_pause_in_the_writing_is_no_end_of_it_at_once(fill, hard):
    assert GIB == fill(11, 9, 9).rate(hard.signal)


def test_empty_disk_at_rest_is_observed_seldom_and_a_full_one_twice_a_second(fill):
    assert LONGEST_SECONDS == fill(500, 500).pause_seconds(LONGEST_SECONDS)
    assert 0.5 == fill(1.1, 1.1).pause_seconds(LONGEST_SECONDS)


def test_filling_disk_is_observed_before_half_of_the_time_left_is_over(fill):
    assert 0.4 == pytest.approx(fill(2.8, 1.8).pause_seconds(LONGEST_SECONDS))
    assert 0.05 == fill(2.001, 1.001).pause_seconds(LONGEST_SECONDS)


def test_threshold_above_the_capacity_has_no_disk_looked_at_more_often():
    absurd = make_threshold(10 * GIB, Signal.NODEFS_AVAILABLE)
    filling = Filling([absurd])
    for number, available in enumerate((5 * GIB, 4 * GIB)):
        filling.take({absurd.signal: make_observation(available, 10 * GIB)}, 100.0 + number)
    assert filling.seconds_to(absurd) is None
    assert LONGEST_SECONDS == filling.pause_seconds(LONGEST_SECONDS)


def test_end_of_a_threshold_that_is_met_is_looked_for_every_second(fill):
    assert 1 == fill(0.9, 0.5).pause_seconds(LONGEST_SECONDS)


def test_other_size_is_no_rate(fill, hard):
    filling = fill(11, 9)
    filling.take({hard.signal: make_observation(2 * GIB, 500 * GIB)}, 103)
    assert 0 == filling.rate(hard.signal)


@pytest.mark.parametrize("gib_per_second", [0.1, 1.0, 4.0])
def test_crossing_is_seen_within_a_second_however_long_the_disk_was_at_rest(fill, hard, gib_per_second):
    """The disk is looked at when its Filling says so, and nothing else is known of it."""
    for start_gib in (1.01, 2.0, 7.7, 30.0, 90.0):
        filling, now, available = fill(start_gib, start_gib), 101.0, start_gib
        while available >= 1:
            pause = filling.pause_seconds(LONGEST_SECONDS)
            now, available = now + pause, available - pause * gib_per_second
            filling.take({hard.signal: make_observation(int(available * GIB), 1000 * GIB)}, now)
        assert (1 - available) / gib_per_second < 1


@given(st.lists(st.tuples(st.integers(0, 1 << 50), st.floats(0, 1e9)), max_size=20))
def test_pause_is_always_between_the_bounds(looks):
    threshold = make_threshold(GIB, Signal.NODEFS_AVAILABLE)
    filling = Filling([threshold, dataclasses.replace(threshold, signal=Signal.NODEFS_INODES_FREE)])
    for available, at in looks:
        filling.take({threshold.signal: make_observation(available, 1 << 50)}, at)
        assert 0.05 <= filling.pause_seconds(LONGEST_SECONDS) <= LONGEST_SECONDS


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(MOUNTS)
    return tmp_path


def observer(proc: Path, layout: Layout | None = None, **paths: str) -> FilesystemObserver:
    """Return an observer; without a layout the devices tell it."""
    settings = Settings(
        filesystems={Filesystem(name): path for name, path in paths.items()},
        eviction=EvictionSettings(layout=layout or Layout.SINGLE),
        by_layout={} if layout else {each: EvictionSettings(layout=each) for each in Layout},
    )
    return FilesystemObserver(settings, proc=proc)


@pytest.mark.parametrize(
    ("paths", "layout"),
    [
        ({"nodefs": "/"}, Layout.SINGLE),
        ({"nodefs": "/", "imagefs": "/var/lib/images"}, Layout.SINGLE),
        ({"nodefs": "/", "imagefs": "/images"}, Layout.DEDICATED),
        ({"nodefs": "/", "imagefs": "/images", "containerfs": "/var"}, Layout.SPLIT),
    ],
)
def test_devices_tell_the_layout(proc: Path, paths: Mapping[str, str], layout: Layout) -> None:
    found = observer(proc, **paths)
    assert layout == found.survey(found.paths).layout


def test_layout_is_another_once_the_images_filesystem_is_mounted(proc: Path) -> None:
    found = observer(proc, nodefs="/", imagefs="/images")
    (proc / "self/mountinfo").write_text(MOUNTS.splitlines()[0] + "\n")
    assert Layout.SINGLE == found.survey(found.paths).layout
    (proc / "self/mountinfo").write_text(MOUNTS)
    assert Layout.DEDICATED == found.survey(found.paths).layout


@pytest.mark.parametrize(
    ("layout", "containerfs"),
    [(Layout.DEDICATED, "/images"), (Layout.SPLIT, "/"), (Layout.SINGLE, "/"), (None, "/images")],
)
def test_writable_layers_lie_where_the_configured_layout_says_else_with_the_images(
    proc: Path, layout: Layout | None, containerfs: str
) -> None:
    found = observer(proc, layout, nodefs="/", imagefs="/images")
    assert containerfs == found.paths[Filesystem.CONTAINERFS]


def test_mount_of_each_filesystem_is_found(proc: Path) -> None:
    found = observer(proc, nodefs="/", imagefs="/images")
    mounts = found.survey(found.paths).mounts
    assert ("8:1", "8:2") == (mounts[Filesystem.NODEFS].device, mounts[Filesystem.IMAGEFS].device)


def test_survey_without_a_path_knows_no_layout_but_the_other_mounts(proc: Path) -> None:
    survey = observer(proc).survey({Filesystem.NODEFS: "/"})
    assert (None, {Filesystem.NODEFS}) == (survey.layout, set(survey.mounts))


def test_look_reports_the_path_without_symlinks(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    reading = FilesystemObserver.read(str(link))
    assert os.path.realpath(tmp_path) == reading.real_path
    assert os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize == reading.space.capacity_bytes


def test_missing_filesystem_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        FilesystemObserver.read("/nowhere")


def test_bytes_and_inodes_are_signals_of_their_own() -> None:
    seen = observations(Filesystem.IMAGEFS, SPACE)
    assert {Signal.IMAGEFS_AVAILABLE: 10, Signal.IMAGEFS_INODES_FREE: 5} == {
        signal: one.available for signal, one in seen.items()
    }


def test_filesystem_that_counts_no_inodes_has_no_inode_signal() -> None:
    assert {Signal.NODEFS_AVAILABLE} == set(
        observations(Filesystem.NODEFS, dataclasses.replace(SPACE, inodes=None, inodes_free=None))
    )


def test_read_only_filesystem_shows_nothing() -> None:
    assert {} == observations(Filesystem.NODEFS, dataclasses.replace(SPACE, read_only=True))
