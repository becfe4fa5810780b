from __future__ import annotations

import json
from dataclasses import replace

import pytest
import trio
import trio.testing

from reactor.errors import RefusedError
from reactor.guard.record import PassRecord, attempt_document
from reactor.guard.recorder import Recorder, Tally
from reactor.model.quantity import bytes_text
from reactor.model.signals import Resource, Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.steward.answers import RecentRecords
from tests.support.builders import make_claim

MIB = 1 << 20
WAKE = Wake(source="test", kind=WakeKind.MEMORY, at_ns=1)


class FakeJournal:
    """Keeps the documents as lines of JSON, made when they are written."""

    def __init__(self) -> None:
        self.lines = []

    def of(self, kind: str):
        return [line for line in self.lines if line["kind"] == kind]

    def write(self, make, ranking=None) -> bool:
        document = make()
        if ranking is not None:
            document["ranking"] = [place for some in ranking() for place in some]
        self.lines.append(json.loads(json.dumps(document)))
        return True


@pytest.fixture
def journal():
    return FakeJournal()


@pytest.fixture
def make_recorder(journal):
    return lambda **more: Recorder(journal, Tally(), patience_seconds=10.0, **more)


async def test_passes_that_decide_nothing_new_are_not_journaled(nursery, make_loop, journal, make_recorder):
    loop, recorder = make_loop(), make_recorder()
    for _ in range(3):
        recorder.record(loop.passes.make([WAKE]), nursery)

    assert journal.lines == []


async def test_pressure_that_begins_and_ends_is_two_lines(
    nursery, make_loop, observation, journal, make_recorder
):
    loop, recorder = make_loop(), make_recorder()
    for available in (400, 99, 98, 97, 400, 401):
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(available * MIB)}
        loop.now_seconds += 1
        recorder.record(loop.passes.make([WAKE]), nursery)

    assert [line["thresholds_met"] for line in journal.lines] == [[f"memory.available<{100 * MIB}"], []]
    assert [line["conditions"] for line in journal.lines] == [["MemoryPressure"], ["MemoryPressure"]]


async def test_pass_with_nothing_fresh_to_act_on_takes_back_nothing_of_the_one_before(
    nursery, make_loop, make_pod, observation, journal, make_recorder
):
    loop, recorder = make_loop(), make_recorder()
    record = loop.passes.make([WAKE])
    chosen = record.decision._replace(thresholds_met=("t",), deferred_because="another one is in flight")
    idle = chosen._replace(deferred_because=None)
    for decision in (chosen, idle, chosen, idle, idle._replace(thresholds_met=())):
        recorder.record(replace(record, decision=decision), nursery)

    assert [line["deferred_because"] for line in journal.lines] == [chosen.deferred_because, None]


async def test_decision_is_one_line_written_when_its_pod_is_gone(
    nursery, make_loop, make_pod, observation, journal, make_recorder
):
    loop, recorder = make_loop(), make_recorder()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    recorder.record(loop.passes.make([WAKE]), nursery)
    await trio.testing.wait_all_tasks_blocked()
    assert journal.of("decision") == []

    loop.kills.reaped.set()
    await trio.testing.wait_all_tasks_blocked()

    (line,) = journal.of("decision")
    assert line["timing"]["freed_ns"] == line["evictions"][0]["freed_ns"] > line["timing"]["killed_ns"]
    assert line["ranking"][0]["because"].startswith("uses 50Mi, no request")


async def test_the_log_has_amounts_for_people_and_the_journal_exact_ones(
    nursery, make_loop, make_pod, observation, journal, make_recorder, caplog
):
    loop, recorder = make_loop(), make_recorder()
    loop.have(make_pod("hog"))
    seen = observation(99 * MIB + 1)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: seen}
    with caplog.at_level("WARNING"):
        recorder.record(loop.passes.make([WAKE]), nursery)
    loop.kills.reaped.set()
    await trio.testing.wait_all_tasks_blocked()

    assert f" available=99.0Mi capacity={bytes_text(seen.capacity)} " in caplog.text
    (line,) = journal.of("decision")
    assert (line["threshold"]["available"], line["threshold"]["capacity"]) == (99 * MIB + 1, seen.capacity)


async def test_pod_that_does_not_go_is_written_after_a_while_and_its_end_is_another_line(
    nursery, make_loop, make_pod, make_threshold, observation, journal, autojump_clock
):
    loop = make_loop(make_threshold(100 * MIB, grace_period_seconds=1), max_pod_grace_period_seconds=30)
    recorder = Recorder(journal, Tally(), patience_seconds=10.0)
    loop.have(make_pod("slow"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.passes.make([WAKE])
    loop.now_seconds += 2
    recorder.record(loop.passes.make([WAKE]), nursery)
    await trio.sleep(11)
    (line,) = journal.of("decision")
    assert (line["evictions"][0]["outcome"], line["timing"]["freed_ns"]) == ("ordered", None)

    loop.kills.reaped.set()
    await trio.sleep(30)

    assert [line["kind"] for line in journal.lines] == ["ordered", "decision", "outcome"]
    assert journal.lines[2]["decision"] == line["id"]
    assert journal.lines[2]["outcome"] == "killed"


class LateJournal(FakeJournal):
    """Makes its lines when they are asked for, as the steward that takes them late."""

    def __init__(self) -> None:
        super().__init__()
        self._queued = []

    def write(self, make, ranking=None) -> bool:
        self._queued.append((make, ranking))
        return True

    def take(self) -> None:
        for make, ranking in self._queued:
            super().write(make, ranking)


async def test_lines_that_are_taken_late_say_what_was_known_when_they_were_written(
    nursery, make_loop, make_pod, make_threshold, observation, autojump_clock
):
    journal = LateJournal()
    loop = make_loop(make_threshold(100 * MIB, grace_period_seconds=1), max_pod_grace_period_seconds=30)
    recorder = Recorder(journal, Tally(), patience_seconds=10.0)
    loop.have(make_pod("slow"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.passes.make([WAKE])
    loop.now_seconds += 2
    recorder.record(loop.passes.make([WAKE]), nursery)
    await trio.sleep(11)
    loop.kills.reaped.set()
    await trio.sleep(30)
    journal.take()

    ordered, decision, outcome = journal.lines
    assert ["ordered"] == [one["outcome"] for one in ordered["ordered"]]
    assert [("ordered", None)] == [(one["outcome"], one["freed_ns"]) for one in decision["evictions"]]
    assert ("outcome", "killed") == (outcome["kind"], outcome["outcome"])


async def test_what_is_known_is_written_at_a_shutdown(
    make_loop, make_pod, observation, journal, make_recorder
):
    loop, recorder = make_loop(), make_recorder()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    async with trio.open_nursery() as inner:
        recorder.record(loop.passes.make([WAKE]), inner)
        await trio.testing.wait_all_tasks_blocked()
        inner.cancel_scope.cancel()

    assert [line["evictions"][0]["outcome"] for line in journal.of("decision")] == ["killed"]


async def test_every_end_is_reported_with_its_pass(nursery, make_loop, make_pod, observation, make_recorder):
    ended = []
    loop = make_loop()
    recorder = make_recorder(on_ended=lambda record, attempt: ended.append((record.id, attempt.outcome)))
    loop.kills.reaped.set()
    loop.have(make_pod("hog"))
    recorder.record(loop.passes.make([WAKE]), nursery)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.now_seconds += 1
    recorder.record(loop.passes.make([WAKE]), nursery)
    await trio.testing.wait_all_tasks_blocked()

    assert ended == [(2, "killed")]


async def test_failed_kill_is_reported_with_its_reason(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("hog"))
    loop.kills.fails_with = OSError(13, "Permission denied", "/cgroup")
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    document = attempt_document(loop.passes.make([WAKE]).attempts[0])

    assert document["outcome"] == "failed"
    assert "Permission denied" in document["problems"][0]


async def test_eviction_is_written_when_it_is_ordered_and_stands_for_a_decision_that_never_was(
    nursery, make_loop, make_pod, observation, journal, make_recorder
):
    loop, recorder = make_loop(), make_recorder()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    recorder.record(loop.passes.make([WAKE]), nursery)

    (line,) = journal.lines
    assert (line["kind"], line["decision"], line["threshold"]["available"]) == ("ordered", 1, 99 * MIB)
    assert [(one["pod"], one["outcome"]) for one in line["ordered"]] == [("cgroup/hog", "killed")]
    assert not {"id", "evictions", "brake"} & line.keys()

    recent = RecentRecords()
    recent.take(line)
    (remembered,) = recent.decisions()
    assert [remembered[key] for key in ("kind", "id", "evictions")] == ["decision", 1, line["ordered"]]


async def test_decision_that_was_written_is_remembered_once(
    nursery, make_loop, make_pod, observation, journal, make_recorder
):
    loop, recorder = make_loop(), make_recorder()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.kills.reaped.set()
    recorder.record(loop.passes.make([WAKE]), nursery)
    await trio.testing.wait_all_tasks_blocked()

    recent = RecentRecords()
    for line in journal.lines:
        recent.take(line)
    (remembered,) = recent.decisions()
    assert remembered["kind"] == "decision"
    assert remembered["evictions"][0]["freed_ns"] is not None


async def test_order_of_a_dry_run_or_one_that_failed_is_not_written_twice(
    nursery, make_loop, make_pod, observation, journal, make_recorder
):
    for loop in (make_loop(dry_run=True), make_loop()):
        loop.kills.fails_with = RefusedError("not this one")
        loop.have(make_pod("hog"))
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
        make_recorder().record(loop.passes.make([WAKE]), nursery)
        await trio.testing.wait_all_tasks_blocked()
    assert [line["kind"] for line in journal.lines] == ["decision", "decision"]


async def test_resumed_eviction_leaves_a_record_and_its_outcome(
    nursery, make_loop, make_pod, journal, autojump_clock
):
    seen = []
    loop = make_loop()
    recorder = Recorder(
        journal, Tally(), patience_seconds=1.0, on_ended=lambda _, attempt: seen.append(attempt)
    )
    flight = make_claim("uid-slow", kill_at_seconds=1030, deadline_seconds=1040)
    attempt = loop.evictor.resume(make_pod("slow"), flight, loop.now_seconds)
    recorder.resume(PassRecord.of_resumed(attempt, 3, loop.now_seconds), nursery)

    (line,) = journal.lines
    assert (line["kind"], line["decision"], line["dry_run"]) == ("resumed", 3, False)
    assert [(one["pod"], one["outcome"]) for one in line["ordered"]] == [("cgroup/slow", "ordered")]
    loop.kills.ends_by_itself = True
    await trio.sleep(40)
    assert [line["kind"] for line in journal.lines] == ["resumed", "outcome"]
    assert (journal.lines[1]["pod"], journal.lines[1]["outcome"]) == ("cgroup/slow", "terminated")
    assert seen == [attempt]
    recent = RecentRecords()
    for line in journal.lines:
        recent.take(line)
    assert [one["outcome"] for one in recent.decisions()[0]["evictions"]] == ["terminated"]


async def test_files_that_are_awaited_after_a_restart_come_to_an_end_too(make_loop, make_pod):
    loop = make_loop()
    flight = make_claim("uid-full", resource=Resource.EPHEMERAL_STORAGE, deadline_seconds=1)
    attempt = loop.evictor.await_files(make_pod("full"), flight)
    with trio.fail_after(90):
        await attempt.ended.wait()
