"""The steward's part with the disks: real filesystems, and a runtime that tells late where its own lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from reactor.doctor.kubernetes import podman_features
from reactor.link.frames import FrameKind, Message
from reactor.link.orders import Orders
from reactor.link.requests import Request, RequestKind, Space
from reactor.model.settings import KubernetesSettings, Settings
from reactor.model.signals import Filesystem, Reclaim
from reactor.reclaim.reclaims import NodeReclaim
from reactor.steward.disks import Disks, Podman
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
    nursery.start_soon(disks.do, Message(FrameKind.OBSERVE, 1, b""))
    await trio.testing.wait_all_tasks_blocked()
    runtime.path = str(tmp_path)
    disks.renew()
    runtime.was_asked.set()
    looked = Request(kind=RequestKind.OBSERVED, number=1)
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
        await disks.do(Message(FrameKind.OBSERVE, number, b""))
    assert {Filesystem.NODEFS} == spaces()
    assert "has not answered yet" in disks.problems["imagefs"]
    assert "containerfs" in disks.problems

    runtime.not_told = frozenset()
    disks.renew()
    await disks.do(Message(FrameKind.OBSERVE, 4, b""))
    assert set(Filesystem) == spaces()
    assert {"imagefs", "containerfs"}.isdisjoint(disks.problems)
    nursery.cancel_scope.cancel()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_path=str(tmp_path / "state.json"), podman_socket=str(tmp_path / "none.sock"))


async def test_a_podman_that_does_not_answer_is_a_problem_until_it_is_switched_off(
    settings: Settings, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    podman = Podman(settings, Supervisor())
    podman.reclaims(settings)
    nursery.start_soon(podman.run)
    await trio.sleep(1000)
    assert "none.sock" in podman.problems["podman"]
    assert podman.description is None

    assert {} == podman.reclaims(replace(settings, podman=False))
    await trio.sleep(1000)
    assert {} == podman.problems


def test_its_images_can_be_given_back_unless_that_is_switched_off(settings: Settings) -> None:
    podman = Podman(settings, Supervisor())
    assert {Reclaim.IMAGES} == podman.reclaims(settings).keys()
    assert {} == podman.reclaims(replace(settings, podman=False))


def test_doctor_says_what_is_missing_and_how_it_is_had(settings: Settings) -> None:
    (found,) = podman_features(settings)
    assert not found.available
    assert "none.sock" in found.detail
    assert "reactor.podman.socket" in found.remedy
    (found,) = podman_features(replace(settings, podman=False))
    assert "switched off" in found.detail


def test_doctor_has_nothing_to_say_of_it_on_a_kubernetes_node(settings: Settings) -> None:
    assert () == podman_features(replace(settings, kubernetes=KubernetesSettings()))
