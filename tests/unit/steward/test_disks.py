"""The steward's part with the disks: real filesystems, and a runtime that tells late where its own lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import trio
import trio.testing

from reactor.link.frames import FrameKind, Message
from reactor.link.orders import Orders
from reactor.link.requests import Request, RequestKind, Space
from reactor.model.settings import Settings
from reactor.model.signals import Filesystem, Reclaim
from reactor.reclaim.reclaims import NodeReclaim
from reactor.steward.disks import Disks
from reactor.steward.guard import Guard, Said
from reactor.steward.kubernetes import Kubernetes
from reactor.supervisor import Supervisor
from tests.support.waiting import until


class Heard:
    """What the guard was told."""

    def __init__(self) -> None:
        self.said: list[Said] = []

    def tell(self, said: Said) -> None:
        self.said.append(said)

    async def say(self, said: Said) -> None:
        self.said.append(said)


class Runtime:
    """Stands for the cluster's part: images lie at `path` as far as is known, rightly once `was_asked`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.was_asked = trio.Event()
        self.not_told: frozenset[Filesystem] = frozenset()

    def unplaced(self, _: Settings) -> frozenset[Filesystem]:
        return self.not_told

    def placed(self, settings: Settings) -> Settings:
        return replace(settings, filesystems={Filesystem.NODEFS: self.path, Filesystem.IMAGEFS: self.path})

    def reclaims(self, _: Settings) -> Mapping[Reclaim, NodeReclaim]:
        return {}

    async def wait_placed(self) -> None:
        await self.was_asked.wait()


async def test_filesystem_is_observed_only_when_the_runtime_was_asked_where_its_images_lie(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    heard, runtime = Heard(), Runtime("/dev")
    orders = Orders(start="now", number=1, settings=Settings())
    disks = Disks(cast(Guard, heard), Supervisor(), orders, cast(Kubernetes, runtime))
    nursery.start_soon(disks.run)
    nursery.start_soon(disks.do, Message(FrameKind.LOOK, 1, b""))
    await trio.testing.wait_all_tasks_blocked()
    runtime.path = str(tmp_path)
    disks.renew()
    runtime.was_asked.set()
    looked = Request(kind=RequestKind.LOOKED, number=1)
    await until(lambda: looked in heard.said)
    await until(lambda: any(isinstance(one, Space) for one in heard.said))
    capacities = {one.capacity_bytes for one in heard.said if isinstance(one, Space)}
    found = os.statvfs(tmp_path)
    assert {found.f_blocks * found.f_frsize} == capacities
    nursery.cancel_scope.cancel()


async def test_where_the_runtime_is_down_from_the_start_its_filesystems_are_not_observed_until_it_answers(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    """Before, images were taken to lie with the pods' files, by whose space pods were evicted for imagefs."""
    heard, runtime = Heard(), Runtime(str(tmp_path))
    runtime.not_told = frozenset({Filesystem.IMAGEFS, Filesystem.CONTAINERFS})
    runtime.was_asked.set()
    orders = Orders(start="now", number=1, settings=Settings())
    disks = Disks(cast(Guard, heard), Supervisor(), orders, cast(Kubernetes, runtime))
    nursery.start_soon(disks.run)

    def spaces() -> set[Filesystem]:
        return {each for one in heard.said if isinstance(one, Space) for each in one.filesystems}

    for number in (1, 2, 3):
        await disks.do(Message(FrameKind.LOOK, number, b""))
    assert {Filesystem.NODEFS} == spaces()
    assert "has not answered yet" in disks.problems["imagefs"]
    assert "containerfs" in disks.problems

    runtime.not_told = frozenset()
    disks.renew()
    await disks.do(Message(FrameKind.LOOK, 4, b""))
    assert set(Filesystem) == spaces()
    assert {"imagefs", "containerfs"}.isdisjoint(disks.problems)
    nursery.cancel_scope.cancel()
