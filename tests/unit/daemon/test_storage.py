"""The watch over pods' storage: real directories, real threads."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
import trio

from reactor.daemon.storage import StorageWatch
from reactor.model.pods import StorageKind, StoragePlace, Volume


@pytest.fixture
def known(make_loop):
    return make_loop().known


@pytest.fixture
def make_writer(make_pod, tmp_path: Path):
    def make(name: str):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "file").write_bytes(b"x" * 100_000)
        place = StoragePlace(kind=StorageKind.VOLUME, name="scratch", path=str(directory))
        return dataclasses.replace(make_pod(name), volumes=(Volume(name="scratch"),), storage=(place,))

    return make


async def test_look_that_is_due_finds_what_pods_take(nursery, known, make_writer):
    known.pods = (make_writer("a"), make_writer("b"))
    watch = StorageWatch(known)
    await nursery.start(watch.run)
    watch.due()
    for _ in range(500):
        if len(known.storage.usages(known.pods)) == 2:
            break
        await trio.sleep(0.01)
    assert all(one.ephemeral_storage_bytes >= 100_000 for one in known.storage.usages(known.pods).values())


async def test_urgent_look_is_over_when_what_was_written_before_it_is_known(
    nursery, known, make_writer, tmp_path
):
    known.pods = (make_writer("a"),)
    watch = StorageWatch(known)
    await nursery.start(watch.run)
    watch.due()
    (tmp_path / "a" / "more").write_bytes(b"x" * 1_000_000)
    await watch.look(20)
    assert known.storage.usages(known.pods)["uid-a"].ephemeral_storage_bytes > 1_000_000


async def test_node_without_any_storage_is_waited_for_not_at_all(known, make_pod):
    known.pods = (make_pod("a"),)
    with trio.fail_after(5):
        await StorageWatch(known).look(1000)  # nobody runs it


async def test_place_that_hangs_is_left_alone_and_the_others_are_looked_at(
    nursery, known, make_writer, monkeypatch, tmp_path
):
    known.pods = (make_writer("a"), make_writer("hung"))
    released, shown = threading.Event(), None

    def hang(path: str):
        if path.endswith("hung"):
            released.wait()
        return shown

    monkeypatch.setattr("reactor.observe.disk_usage._shown", hang)
    watch = StorageWatch(known, hanging_seconds=0.2)
    await nursery.start(watch.run)
    try:
        watch.due()
        for _ in range(1000):
            if watch.problems:
                break
            await trio.sleep(0.01)
        assert f"storage {tmp_path}/hung" in watch.problems
        (tmp_path / "a" / "more").write_bytes(b"x" * 1_000_000)
        shown = (1, 2, 3)
        await watch.look(20)
        assert known.storage.usages(known.pods)["uid-a"].ephemeral_storage_bytes > 1_000_000
    finally:
        released.set()
    for _ in range(1000):
        if not watch.problems:
            break
        await trio.sleep(0.01)
    assert watch.problems == {}


async def test_look_that_took_long_is_followed_by_a_rest_unless_it_is_urgent(
    nursery, known, make_writer, monkeypatch
):
    known.pods = (make_writer("a"),)
    looks = []

    def slow(pods, pace, held) -> None:
        looks.append(pods)
        pace.worked_seconds = 1.0

    monkeypatch.setattr(known.storage, "look", slow)
    watch = StorageWatch(known)
    await nursery.start(watch.run)
    for _ in range(10):
        watch.due()
        await trio.sleep(0.1)
    assert len(looks) == 1
    await watch.look(20)
    assert len(looks) == 3
