"""The one runner of reclaims: measured, bounded, of each kind one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from reactor.model.signals import Reclaim, Signal
from reactor.reclaim.runner import ReclaimJob, ReclaimRunner, Taken

MIB = 1 << 20


class Memory:
    """What is available, of which each piece brings so much; `meanwhile` goes first."""

    def __init__(self, *pieces_mib: int) -> None:
        self.pieces_mib = pieces_mib
        self.available_bytes: int | None = 60 * MIB
        self.meanwhile: Callable[[], object] = lambda: None
        self.began = 0

    def takes(self, taken: Taken) -> Iterator[None]:
        for piece_mib in self.pieces_mib:
            self.began += 1
            self.meanwhile()
            if self.available_bytes is not None:
                self.available_bytes += piece_mib * MIB
            taken.add("from /pods", piece_mib * MIB)
            yield

    def job(self, *, most_seconds: float = 5.0, kind: Reclaim = Reclaim.MEMORY) -> ReclaimJob:
        return ReclaimJob(
            kind=kind,
            signal=Signal.MEMORY_AVAILABLE,
            wanted_bytes=40 * MIB,
            most_seconds=most_seconds,
            available_bytes=lambda: self.available_bytes,
            takes=self.takes,
        )


@pytest.fixture
def let() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_a_reclaim_is_measured_by_what_is_available_afterwards() -> None:
    reclaimed = await ReclaimRunner().run(Memory(100, 40).job())
    assert (Reclaim.MEMORY, 40 * MIB, 140 * MIB) == (reclaimed.kind, reclaimed.wanted, reclaimed.freed)
    assert (("140Mi from /pods",), ()) == (reclaimed.did, reclaimed.problems)


async def test_what_is_not_observed_is_reclaimed_all_the_same_and_not_measured() -> None:
    memory = Memory(100)
    memory.available_bytes = None
    reclaimed = await ReclaimRunner().run(memory.job())
    assert (None, ("100Mi from /pods",)) == (reclaimed.freed, reclaimed.did)


async def test_a_reclaim_that_hangs_is_left_to_its_thread_and_none_of_its_kind_is_begun_beside_it(
    let: threading.Event,
) -> None:
    hanging, other = Memory(100), Memory(10)
    hanging.available_bytes = None
    hanging.meanwhile = lambda: let.wait(20)
    runner = ReclaimRunner()
    first = await runner.run(hanging.job(most_seconds=0.5))
    second = await runner.run(hanging.job(most_seconds=0.5))
    assert ("not done within 0.5 s",) == first.problems
    assert ("an earlier reclaim is still under way",) == second.problems
    assert None is first.freed
    assert 1 == hanging.began
    assert ("10Mi from /pods",) == (await runner.run(other.job(kind=Reclaim.RULE))).did


async def test_no_piece_is_begun_when_the_time_is_up(let: threading.Event) -> None:
    memory = Memory(10, 10, 10)
    memory.meanwhile = lambda: memory.began == 2 and let.wait(20)
    reclaimed = await ReclaimRunner().run(memory.job(most_seconds=0.3))
    let.set()
    assert (("10Mi from /pods",), ("not done within 0.3 s",)) == (reclaimed.did, reclaimed.problems)
    assert 2 == memory.began


async def test_no_piece_is_begun_when_it_may_not_go_on() -> None:
    memory = Memory(10, 10, 10)
    reclaimed = await ReclaimRunner().run(memory.job(), lambda: memory.began < 2)
    assert (("20Mi from /pods",), ()) == (reclaimed.did, reclaimed.problems)
