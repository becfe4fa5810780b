"""When it may be measured what a daemon takes."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.support.at_rest import is_busy

ARMED: Final = {"name": "ebpf", "health": "armed", "detail": "memory.available<100Mi"}
NO_WARRANTS: Final = {"mode": "off", "state": "off", "detail": "not started"}


def status(**changed: Any) -> dict[str, Any]:
    return {"in_flight": [], "sources": [ARMED], "kernel_kill": NO_WARRANTS, **changed}


@pytest.mark.parametrize(
    "rests",
    [
        {},
        {"sources": [{"name": "ebpf", "health": "failed", "detail": "no libbpf"}]},
        {"sources": [ARMED, {"name": "memory-high", "health": "off", "detail": "ebpf is armed"}]},
        {"kernel_kill": {"mode": "hard", "state": "armed", "detail": "1 of 1 pods known to the kernel"}},
        {"kernel_kill": {"mode": "hard", "state": "failed", "detail": "the kernel kills on v2 alone"}},
    ],
)
def test_daemon_that_has_armed_what_it_can_rests(rests: dict[str, Any]) -> None:
    assert not is_busy(status(**rests))


@pytest.mark.parametrize(
    "is_at_it",
    [
        {"in_flight": [{"pod": "hog"}]},
        {"sources": [ARMED, {"name": "ebpf-oom", "health": "off", "detail": "not armed yet"}]},
        {"sources": [{"name": "ebpf", "health": "off", "detail": "not armed yet; psi stands in"}]},
        {"kernel_kill": {"mode": "hard", "state": "off", "detail": "not asked for"}},
    ],
)
def test_daemon_with_a_victim_in_hand_or_programs_to_load_does_not(is_at_it: dict[str, Any]) -> None:
    assert is_busy(status(**is_at_it))
