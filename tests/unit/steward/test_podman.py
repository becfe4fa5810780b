from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.doctor.kubernetes import podman_features
from reactor.model.settings import KubernetesSettings, Settings
from reactor.model.signals import Reclaim
from reactor.steward.podman import Podman
from reactor.supervisor import Supervisor


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
