"""A generation that no source wakes: at the start and at each reload, and near a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from reactor.act.kill import KillPath
from reactor.brake.brake import Brake
from reactor.guard import last_stretch
from reactor.guard.evictor import Evictor
from reactor.guard.generation import Generation
from reactor.guard.observed import Observed
from reactor.guard.passes import NodeView
from reactor.guard.record import PassRecord
from reactor.guard.record_queue import RecordQueue
from reactor.guard.steward_link import StewardLink
from reactor.kernel.cgroup import CgroupVersion
from reactor.model.pods import Pod
from reactor.model.settings import EvictionSettings, Settings, SourceSettings
from reactor.model.signals import Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.supervisor import Supervisor
from tests.support.builders import make_pod, make_threshold

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree

MIB = 1 << 20
HARD = make_threshold(100 * MIB)
# Nothing can be armed: what a generation waits for at first never comes.
SETTINGS = Settings(
    eviction=EvictionSettings(thresholds=(HARD,)),
    node_cgroup="/node",
    pod_parents=("/node",),
    sources=SourceSettings(ebpf=False, memcg=False, memory_high=False, psi=False, processes=False),
    dry_run=True,
)


async def guard(fake: FakeTree, *, from_bytes: int, arming_seconds: float) -> list[PassRecord]:
    """Return the passes over a node of 512 MiB that none of its sources watches, until it has crossed.

    It uses `from_bytes` at first, and nearly all once the generation has nothing more to do.
    """
    fake.add("/node", usage_bytes=from_bytes)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    fake.add("/node/hog", usage_bytes=100 * MIB)
    if fake.tree.version is CgroupVersion.V2:
        fake.file("/node", "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
    kills, supervisor = KillPath(fake.tree, SETTINGS.pod_parents), Supervisor()
    records: list[PassRecord] = []
    async with trio.open_nursery() as nursery:
        evictor = Evictor(kills, nursery, lambda _: False, deadline_seconds=10.0, dry_run=True)
        generation = Generation(
            SETTINGS,
            fake.tree,
            known=NodeView(observed=Observed(stale_seconds=35.0)),
            evictor=evictor,
            brake=Brake(fake.tree),
            supervisor=supervisor,
            steward=StewardLink(RecordQueue("now/1"), {}, SETTINGS, lambda _: None),
            arming_seconds=arming_seconds,
        )

        async def cross_once_it_is_quiet() -> None:
            seen = -1
            while seen < len(records):
                seen = len(records)
                await trio.sleep(0.1)
            fake.counters("/node", usage_bytes=500 * MIB, inactive_file_bytes=0)
            while not any(record.decision.evictions for record in records):  # noqa: ASYNC110 - a plain list
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

        nursery.start_soon(cross_once_it_is_quiet)
        await nursery.start(generation.run, records.append)
        await trio.sleep_forever()
    generation.close()
    kills.close()
    return records


async def test_memory_is_looked_at_while_its_sources_are_being_armed(fake: FakeTree) -> None:
    records = await guard(fake, from_bytes=100 * MIB, arming_seconds=60.0)
    (crossed,) = [record for record in records if record.decision.evictions]
    assert [wake.source for wake in crossed.wakes] == ["arming"]
    assert [eviction.pod.name for eviction in crossed.decision.evictions] == ["hog"]


async def test_memory_that_is_near_its_threshold_is_looked_at_where_no_source_tells(fake: FakeTree) -> None:
    records = await guard(fake, from_bytes=400 * MIB, arming_seconds=0.0)
    (crossed,) = [record for record in records if record.decision.evictions]
    assert [wake.source for wake in crossed.wakes] == ["glance"]
    assert [eviction.pod.name for eviction in crossed.decision.evictions] == ["hog"]


class GrowingPod:
    """A list of one pod; once it `grows`, the second glance at it finds the node's threshold crossed."""

    problems: Mapping[str, str] = {}

    def __init__(self, fake: FakeTree) -> None:
        self.grows = False
        self._fake = fake
        self._glances = 0

    async def listed(self) -> tuple[Pod, ...]:
        return (make_pod("hog"),)

    def glance(self) -> tuple[Pod, ...]:
        self._glances += self.grows
        if self._glances == 2:
            self._fake.counters("/node", usage_bytes=500 * MIB, inactive_file_bytes=0)
        return (make_pod("hog"),)


async def test_a_crossing_right_after_an_early_wake_is_attended_to_before_any_event(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_stretch, "_REST_SECONDS", 0.0)  # it may have stayed a moment ago
    fake.add("/node", usage_bytes=409 * MIB)
    fake.tree.set_memory_limit("/node", 512 * MIB)
    fake.add("/node/hog", usage_bytes=100 * MIB)
    kills, pods = KillPath(fake.tree, SETTINGS.pod_parents), GrowingPod(fake)
    records: list[PassRecord] = []
    async with trio.open_nursery() as nursery:
        generation = Generation(
            SETTINGS,
            fake.tree,
            known=NodeView(observed=Observed(stale_seconds=35.0)),
            evictor=Evictor(kills, nursery, lambda _: False, deadline_seconds=10.0, dry_run=True),
            brake=Brake(fake.tree),
            supervisor=Supervisor(),
            steward=StewardLink(RecordQueue("now/1"), {}, SETTINGS, lambda _: None),
            pods=pods,
            arming_seconds=0.0,
        )
        await nursery.start(generation.run, records.append)
        await trio.testing.wait_all_tasks_blocked()
        records.clear()
        pods.grows = True
        for bound in ("_MOST_SECONDS", "_STILL_SECONDS"):  # a busy machine takes longer for a rehearsal
            monkeypatch.setattr(last_stretch, bound, 30.0)

        generation.wakes.notify(Wake(source="early", kind=WakeKind.MEMORY, at_ns=1))

        early, crossed = records
        assert ((), ["hog"]) == (
            early.decision.evictions,
            [eviction.pod.name for eviction in crossed.decision.evictions],
        )
        (wake,) = crossed.wakes
        assert ("early", Signal.MEMORY_AVAILABLE) == (wake.source, wake.signal)
        assert wake.at_ns > 1
        nursery.cancel_scope.cancel()
    generation.close()
    kills.close()
