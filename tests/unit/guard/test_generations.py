"""Pods come under new names and are evicted: what is kept of them is a history with a limit, and no more."""

from __future__ import annotations

import trio.testing

from reactor.model.signals import Signal
from tests.support.builders import MIB, make_observation
from tests.support.generations import generations

_HALF = 300  # generations after which the histories are full: at most 256 are kept of anything


async def test_evicted_pods_of_other_names_leave_no_more_than_so_many_before_them(make_view, make_pod):
    loop, _, make_pass = make_view()
    loop.kills.reaped.set()

    with generations(_HALF) as found:
        for generation in found:
            name = f"pod-{generation}-{'x' * 200}"
            loop.have(make_pod(name), *(make_pod(f"{name}-{number}", priority=9) for number in range(3)))
            loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(99 * MIB)}
            make_pass()
            assert [name] == loop.kills.killed
            await trio.testing.wait_all_tasks_blocked()
            loop.now_seconds += 0.5
            loop.have()
            loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(400 * MIB)}
            make_pass()
            loop.now_seconds += 0.5
            for noted in (loop.kills.killed, loop.armed, loop.gone, loop.ordered):
                noted.clear()

    assert found.filling > 0
    assert found.more < _HALF
