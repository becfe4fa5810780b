"""The reclaim that a rule asks for: of one cgroup, how far it goes, when it stops, what is said of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
import trio

from reactor.kernel.cgroup import CgroupVersion
from reactor.model.rules import Firing, Rule, RuleAction
from reactor.model.signals import Reclaim, RuleSignal
from reactor.model.thresholds import ThresholdValue
from reactor.reclaim.memory import PIECE_BYTES, MemoryReclaim
from reactor.reclaim.runner import Reclaimed, ReclaimRunner

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker

MIB = 1 << 20
PIECE_MIB = PIECE_BYTES // MIB
CGROUP = "/node/hog"


def amount(mib: int) -> ThresholdValue:
    return ThresholdValue(text=f"{mib}Mi", amount=Fraction(mib * MIB))


def firing(**others: Any) -> Firing:
    rule = Rule(
        name="r",
        cgroups=(CGROUP,),
        conditions=(),
        for_seconds=0.0,
        action=RuleAction.RECLAIM,
        **{"amount": amount(40), "reclaim_seconds": 600.0, **others},
    )
    return Firing(rule=rule, cgroup=CGROUP, since_seconds=0.0, at_seconds=1.0, inputs=())


class Taking(MemoryReclaim):
    """Gives what is asked for up to `gives_mib`, of what the cgroup holds; `meanwhile` goes first."""

    def __init__(self, fake: FakeTree, *, holds_mib: int = 200, gives_mib: int = 10_000) -> None:
        super().__init__(fake.tree, counts_cache=False)
        self.fake, self.holds_mib, self.gives_mib = fake, holds_mib, gives_mib
        self.asked_mib: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.has_swap_first = False
        fake.add(CGROUP, usage_bytes=holds_mib * MIB)

    def take(self, cgroup: str, wanted_bytes: int, *, to_swap: bool) -> int:
        assert CGROUP == cgroup
        self.has_swap_first |= to_swap
        self.asked_mib.append(wanted_bytes // MIB)
        self.meanwhile()
        freed_mib = min(wanted_bytes // MIB, self.gives_mib)
        self.gives_mib -= freed_mib
        self.holds_mib -= freed_mib
        self.fake.counters(CGROUP, usage_bytes=self.holds_mib * MIB, inactive_file_bytes=0)
        return freed_mib * MIB


async def run(taking: Taking, firing: Firing, may_go_on: Callable[[], bool]) -> Reclaimed:
    return await ReclaimRunner().run(taking.by_rule(firing), may_go_on)


@pytest.fixture
def fake_v2(make_tree: FakeTreeMaker) -> FakeTree:
    fake = make_tree(CgroupVersion.V2)
    (fake.tree.memory_root / "memory.reclaim").touch()
    return fake


@pytest.fixture
def let() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_it_reclaims_so_much_in_pieces_and_says_how_much_less_the_cgroup_holds(
    fake_v2: FakeTree,
) -> None:
    taking = Taking(fake_v2)
    reclaimed = await run(taking, firing(), lambda: True)
    assert [PIECE_MIB, PIECE_MIB, 40 - 2 * PIECE_MIB] == taking.asked_mib
    assert not taking.has_swap_first
    assert (Reclaim.RULE, RuleSignal.RULE) == (reclaimed.kind, reclaimed.signal)
    assert (40 * MIB, 40 * MIB) == (reclaimed.wanted, reclaimed.freed)
    assert ("40Mi from /node/hog",) == reclaimed.did
    assert () == reclaimed.problems


async def test_a_share_is_of_what_the_cgroup_holds_and_no_less_than_a_mebibyte(fake_v2: FakeTree) -> None:
    tenth = ThresholdValue(text="10%", percent=Fraction(10))
    for holds_mib, wanted_mib in ((200, 20), (2, 1)):
        taking = Taking(fake_v2, holds_mib=holds_mib)
        reclaimed = await run(taking, firing(amount=tenth), lambda: True)
        assert reclaimed.wanted is not None
        assert wanted_mib == reclaimed.wanted // MIB


async def test_it_ends_where_the_kernel_finds_no_more(fake_v2: FakeTree) -> None:
    taking = Taking(fake_v2, gives_mib=PIECE_MIB + 3)
    reclaimed = await run(taking, firing(), lambda: True)
    assert (PIECE_MIB + 3) * MIB == reclaimed.freed
    assert (f"{PIECE_MIB + 3}Mi from /node/hog",) == reclaimed.did


async def test_it_stops_between_two_pieces_where_memory_of_the_node_is_short(fake_v2: FakeTree) -> None:
    taking = Taking(fake_v2)
    reclaimed = await run(taking, firing(), lambda: not taking.asked_mib)
    assert [PIECE_MIB] == taking.asked_mib
    assert "memory of the node is short" in reclaimed.problems[0]


async def test_what_others_take_back_meanwhile_shows_in_what_was_freed(fake_v2: FakeTree) -> None:
    taking = Taking(fake_v2)

    def grow() -> None:
        taking.holds_mib += PIECE_MIB

    taking.meanwhile = grow
    reclaimed = await run(taking, firing(), lambda: True)
    assert ("40Mi from /node/hog",) == reclaimed.did
    assert (40 - 3 * PIECE_MIB) * MIB == reclaimed.freed


async def test_a_piece_that_hangs_is_left_to_its_thread_and_the_next_reclaim_says_so(
    fake_v2: FakeTree, let: threading.Event
) -> None:
    taking = Taking(fake_v2)
    began = threading.Event()

    def hang() -> None:
        began.set()
        let.wait()

    taking.meanwhile = hang
    runner = ReclaimRunner()
    first = await runner.run(taking.by_rule(firing(reclaim_seconds=0.05)))
    assert ("not done within 0.05 s",) == first.problems
    await trio.to_thread.run_sync(began.wait)
    second = await runner.run(taking.by_rule(firing()))
    assert ("an earlier reclaim is still under way",) == second.problems
    assert [PIECE_MIB] == taking.asked_mib


async def test_a_cgroup_that_is_gone_and_one_that_refuses_are_problems(fake_v2: FakeTree) -> None:
    taking = Taking(fake_v2)

    def refuse() -> None:
        raise OSError(5, "refused", "/node/hog/memory.reclaim")

    taking.meanwhile = refuse
    runner = ReclaimRunner()
    assert "refused" in (await runner.run(taking.by_rule(firing()))).problems[0]

    (fake_v2.directory(CGROUP) / "memory.current").unlink()
    reclaimed = await runner.run(taking.by_rule(firing()))
    assert ("the memory of /node/hog can't be read",) == reclaimed.problems
    assert None is reclaimed.freed


async def test_without_memory_reclaim_nothing_is_reclaimed_and_the_record_says_why(
    make_tree: FakeTreeMaker,
) -> None:
    for version, why in ((CgroupVersion.V1, "cgroup v1"), (CgroupVersion.V2, "Linux 5.19")):
        fake = make_tree(version)
        taking = Taking(fake)
        reclaimed = await run(taking, firing(), lambda: True)
        assert why in reclaimed.problems[0]
        assert [] == taking.asked_mib
