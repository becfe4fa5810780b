"""Lines on their way to the steward: none is lost uncounted, none is written twice, nothing waits for it."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from reactor.forms import FormError
from reactor.guard.outbox import RecordQueue


async def _sent(records: RecordQueue) -> list[dict]:
    """Return what there is to send now."""
    found = []
    with trio.move_on_after(0.01):
        while True:
            message = await records.next()
            found.append(json.loads(message.content))
    return found


async def test_line_has_its_place_and_its_ranking_whole(autojump_clock):
    records = RecordQueue("now/1")
    records.write(lambda: {"kind": "decision", "ranking": []}, lambda: [[{"n": 1}, {"n": 2}], [], [{"n": 3}]])
    records.write(lambda: {"kind": "decision", "ranking": []}, list)
    records.write(lambda: {"kind": "outcome"})

    assert await _sent(records) == [
        {"kind": "decision", "start": "now/1", "seq": 1, "ranking": [{"n": 1}, {"n": 2}, {"n": 3}]},
        {"kind": "decision", "start": "now/1", "seq": 2, "ranking": []},
        {"kind": "outcome", "start": "now/1", "seq": 3},
    ]


async def test_line_is_kept_until_it_is_taken_and_sent_to_the_next_steward(autojump_clock):
    records = RecordQueue("now/1")
    for number in range(3):
        records.write(lambda number=number: {"n": number})
    assert [line["n"] for line in await _sent(records)] == [0, 1, 2]

    records.taken(1, 0)
    records.restart()

    assert [line["n"] for line in await _sent(records)] == [1, 2]
    records.taken(3, 1)
    assert (records.written, records.lost, len(records)) == (2, 1, 0)
    with trio.fail_after(1):
        await records.wait_empty()


async def test_steward_that_takes_nothing_costs_a_bounded_queue_and_what_is_lost_is_counted(
    autojump_clock, caplog
):
    records = RecordQueue("now/1")
    for number in range(1000):
        records.write(lambda number=number: {"n": number})
    first = await _sent(records)
    for number in range(1000, 2000):
        records.write(lambda number=number: {"n": number})

    assert len(first) == 64
    assert len(records) == 64 + 256
    assert records.lost == 2000 - len(records)
    assert "does not take them" in records.problem
    assert 1 == caplog.text.count("lines are being lost")
    records.taken(64, 0)
    assert records.problem is None
    assert [line["seq"] for line in await _sent(records)] == list(range(65, 129))


async def test_long_lines_are_kept_up_to_a_bound_and_one_goes_in_any_case(autojump_clock):
    records = RecordQueue("now/1")
    for _ in range(4):
        records.write(lambda: {"filler": "x" * (1 << 20)})

    assert [line["seq"] for line in await _sent(records)] == [1]
    records.taken(1, 0)
    assert [line["seq"] for line in await _sent(records)] == [2]


async def test_line_that_can_not_be_made_is_lost_and_the_next_is_sent(autojump_clock, caplog):
    records = RecordQueue("now/1")
    records.write(lambda: {"n": 1 // 0})
    records.write(lambda: {"n": 2})

    assert [line["seq"] for line in await _sent(records)] == [2]
    assert records.lost == 1
    assert "a line was lost" in caplog.text


async def test_where_many_wait_the_others_hold_no_pods_but_the_head_of_their_ranking(autojump_clock):
    class Pods:
        """What a decision is made from."""

        def document(self):
            return {"kind": "decision", "ranking": []}

        def ranking(self):
            return [[{"n": 1}] * 32, [{"n": 2}] * 32]

    records, held = RecordQueue("now/1"), []
    for _ in range(100):
        pods = Pods()
        held.append(weakref.ref(pods))
        records.write(pods.document, pods.ranking)
    records.write(lambda: {"n": 1 // 0}, None)
    del pods
    gc.collect()

    assert sum(one() is not None for one in held) == 32
    lines = await _sent(records)
    assert [len(line["ranking"]) for line in lines] == [64] * 32 + [32] * 32
    assert ["ranking_is_cut" in line for line in lines] == [False] * 32 + [True] * 32
    assert records.lost == 1


async def test_loop_goes_first_while_a_long_ranking_is_encoded(nursery):
    records, turns = RecordQueue("now/1"), []

    def ranking():
        for _ in range(5):
            turns.append("some")
            yield [{}] * 32

    async def loop() -> None:
        for _ in range(20):
            turns.append("loop")
            await trio.lowlevel.checkpoint()

    records.write(dict, ranking)
    nursery.start_soon(loop)
    await records.next()

    assert "some some some" not in " ".join(turns)


@given(answers=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=20))
def test_whatever_is_said_to_be_taken_counts_each_line_once_or_is_refused(answers):
    async def main() -> None:
        records = RecordQueue("now/1")
        for number in range(8):
            records.write(lambda number=number: {"n": number})
        for _ in range(5):
            await records.next()
        for up_to, lost in answers:
            before = (records.written, records.lost)
            try:
                records.taken(up_to, lost)
            except FormError:
                assert before == (records.written, records.lost)
            else:
                assert records.written + records.lost == up_to
        assert len(records) + records.written + records.lost == 8

    trio.run(main)


async def test_what_was_not_sent_yet_can_not_have_been_taken():
    records = RecordQueue("now/1")
    records.write(dict)
    with pytest.raises(FormError, match="accepted"):
        records.taken(1, 0)
