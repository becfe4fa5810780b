"""The guard's end of the pair: a steward that dies, hangs, floods or never comes costs it nothing."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.errors import ReactorError
from reactor.guard.filesystem_facts import empty
from reactor.guard.node import Node
from reactor.guard.outbox import ClusterReports, RecordQueue
from reactor.guard.pod_facts import PodFacts
from reactor.guard.single_instance import AnotherDaemonError, listen
from reactor.guard.steward_link import COMMAND, StewardError, StewardLink, _Session
from reactor.guard.usage_facts import StorageCounts, UsageFacts
from reactor.link.frames import FrameKind
from reactor.link.listings import pieces, spec_record
from reactor.link.requests import (
    MOST_USAGES,
    QUESTIONS,
    Piece,
    PlaceUsage,
    ReclaimOver,
    Request,
    RequestKind,
    Section,
    Space,
    UsageKind,
    Usages,
    write_request,
)
from reactor.model.pods import Pod, PodSource, QosClass, StorageKind, StoragePlace, Volume
from reactor.model.settings import JournalSettings, KubernetesSettings, ReclaimSettings, Settings
from reactor.model.signals import Filesystem, Layout, Reclaim
from reactor.model.thresholds import Observed
from reactor.supervisor import Supervisor
from reactor.tell.status_socket import ask
from tests.support.json_lines import json_lines
from tests.support.processes import descendants, descendants_called, is_running
from tests.support.this_machine import open_descriptors
from tests.support.waiting import eventually, until

STATUS = {
    "status": {
        "node_cgroup": None,
        "runtime": None,
        "problems": {},
        "parts": [],
        "sources": [],
        "signals": [],
        "oom_kills": {"counted": {}},
    },
    "held": None,
}


def fake(script: str) -> tuple[str, ...]:
    """Return the command of a steward that runs this, with its end of the pair as `guard`."""
    head = "import os, signal, socket, sys, time; guard = socket.socket(fileno=os.dup(0)); "
    return (sys.executable, "-S", "-c", head + script)


class Guard:
    """A guard's link to a steward, the records that it hands over and the failures of its answers."""

    def __init__(self, directory, command=COMMAND, silent_seconds: float = 30.0) -> None:
        self.records = RecordQueue("now/1")
        self.failures: list[Exception] = []
        self.journal = directory / "journal.jsonl"
        self.asked: list[Request] = []
        self.fails_with: Exception | None = None
        self.supervisor = Supervisor()
        self.settings = Settings(
            journal=JournalSettings(path=str(self.journal)),
            metrics_address=None,
            state_path=str(directory / "state.json"),
            podman=False,
        )
        self.link = StewardLink(
            self.records,
            dict.fromkeys(QUESTIONS, self._answer),
            self.settings,
            self.failures.append,
            command=command,
            silent_seconds=silent_seconds,
        )

    async def _answer(self, request: Request):
        self.asked.append(request)
        if self.fails_with is not None:
            raise self.fails_with
        return STATUS

    def lines(self) -> list[dict]:
        return json_lines(self.journal)

    @asynccontextmanager
    async def kept(self):
        """Keep a steward inside the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.supervisor.keep, "steward", self.link.run)
            yield
            await self.link.finish()
            nursery.cancel_scope.cancel()


class News:
    """Keeps what the guard is told of the disks."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def space(self, space: Space) -> None:
        self.heard.append(space)

    def wake(self) -> None:
        self.heard.append("wake")

    def filling(self) -> None:
        self.heard.append("filling")

    def adopt_layout(self, layout: Layout) -> None:
        self.heard.append(layout)


async def test_lines_are_written_once_each_though_stewards_are_killed_again_and_again(tmp_path):
    guard = Guard(tmp_path)
    async with guard.kept():
        for number in range(30):
            guard.records.write(lambda number=number: {"kind": "x", "n": number})
            if number % 10 == 9:
                await until(lambda: guard.link.pid is not None)
                os.kill(guard.link.pid, signal.SIGKILL)
            await trio.sleep(0.02)
        await until(lambda: len(guard.records) == 0)

    assert [line["seq"] for line in guard.lines()] == list(range(1, 31))
    assert (guard.records.written, guard.records.lost) == (30, 0)
    assert guard.link.starts >= 2
    assert guard.link.document()["restarts"] == guard.link.starts - 1


class Cgroups:
    """Keeps what was asked of the cgroups, and of which process."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def make(self) -> None:
        self.asked.append("make")

    def adopt(self, pid: int) -> None:
        self.asked.append(pid)

    def document(self):
        return {"limited_by": "cgroup"}


async def test_each_steward_is_put_into_its_cgroup_as_soon_as_it_is_started(tmp_path):
    guard, pids = Guard(tmp_path), []
    guard.link.cgroups = cgroups = Cgroups()
    async with guard.kept():
        for _ in range(2):
            await until(lambda: guard.link.pid not in {None, *pids})
            pids.append(guard.link.pid)
            os.kill(guard.link.pid, signal.SIGKILL)

    expected = [one for pid in pids for one in ("make", pid)]
    assert cgroups.asked[: len(expected)] == expected
    assert guard.link.document()["memory"] == {"limited_by": "cgroup"}


async def test_what_was_written_but_not_said_to_be_is_not_written_again(tmp_path):
    first = Guard(tmp_path)
    async with first.kept():
        first.records.write(lambda: {"kind": "x"})
        await until(lambda: len(first.records) == 0)
    again = Guard(tmp_path)
    again.records.write(lambda: {"kind": "x"})  # as it is sent again to the next steward
    again.records.write(lambda: {"kind": "y"})
    async with again.kept():
        await until(lambda: len(again.records) == 0)

    assert [(line["seq"], line["kind"]) for line in again.lines()] == [(1, "x"), (2, "y")]
    assert again.records.written == 2


async def test_what_the_guard_said_last_is_written_where_it_crashes(tmp_path):
    guard = Guard(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.supervisor.keep, "steward", guard.link.run)
        guard.records.write(lambda: {"kind": "first"})
        await until(lambda: len(guard.records) == 0)  # the steward has started
        guard.records.write(lambda: {"kind": "last"})
        # Sent, and maybe said to be written already.
        await until(
            lambda: not guard.records._waiting and (guard.records._sent or guard.records.written == 2)
        )
        await trio.testing.wait_all_tasks_blocked()
        guard.link._end_seconds = 0.0  # the steward is left to itself, as where the kernel closes the pair
        nursery.cancel_scope.cancel()
    await until(lambda: [line["kind"] for line in guard.lines()] == ["first", "last"])


async def test_steward_that_has_written_all_ends_without_what_the_interpreter_does_at_its_end(
    tmp_path, monkeypatch
):
    """For which the next guard of the node would wait."""
    cleared = tmp_path / "cleared"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        "import atexit, pathlib, sys\n"
        f"if 'reactor.steward' in sys.orig_argv: atexit.register(pathlib.Path({str(cleared)!r}).touch)\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")  # which is handed on to it
    guard = Guard(tmp_path)

    async with guard.kept():
        guard.records.write(lambda: {"n": 1})
        await until(guard.lines)

    assert [1] == [line["n"] for line in guard.lines()]
    assert not cleared.exists()


def _status(path: Path) -> dict[str, Any]:
    return ask(path, {"command": "status"}, patience_seconds=90.0)  # of a busy machine


async def test_questions_wait_while_there_is_no_steward_and_are_answered_by_the_next(tmp_path):
    guard = Guard(tmp_path)
    path = tmp_path / "s.sock"
    with listen(path) as guard.link.listener:
        async with guard.kept():
            assert (await trio.to_thread.run_sync(_status, path))["parts"]
            assert not _inherited(guard.link.pid)
            os.kill(guard.link.pid, signal.SIGKILL)
            document = await trio.to_thread.run_sync(_status, path)
            assert document["decisions"] == []
    assert [RequestKind.STATUS] * 2 == [request.kind for request in guard.asked]


def _inherited(pid: int) -> list[str]:
    """Return the descriptors but for the standard ones that a child of this process would have."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append((number, Path(f"/proc/{pid}/fdinfo/{number}").read_text()))
    return [
        number
        for number, text in found
        if int(number) > 2 and not int(text.split("flags:")[1].split()[0], 8) & os.O_CLOEXEC
    ]


@pytest.mark.parametrize(
    ("failure", "said", "counted"),
    [
        (ReactorError("the daemon is starting: ask again"), "the daemon is starting: ask again", 0),
        (ZeroDivisionError("oops"), "internal error; see the log", 1),
    ],
)
async def test_answer_that_fails_is_reported_and_ends_nothing(tmp_path, failure, said, counted):
    guard = Guard(tmp_path)
    guard.fails_with = failure
    path = tmp_path / "s.sock"
    with listen(path) as guard.link.listener:
        async with guard.kept():
            answer = await trio.to_thread.run_sync(_status, path)
    assert answer == {"error": said}
    assert len(guard.failures) == counted


async def test_answer_that_is_too_long_is_an_error(tmp_path):
    guard = Guard(tmp_path)

    async def too_long(_):
        return {"x": "y" * (17 << 20)}

    guard.link._answers = {**guard.link._answers, RequestKind.STATUS: too_long}
    path = tmp_path / "s.sock"
    with listen(path) as guard.link.listener:
        async with guard.kept():
            answer = await trio.to_thread.run_sync(_status, path)
    assert answer == {"error": "internal error; see the log"}


async def test_steward_that_floods_the_pair_with_anything_is_read_at_a_bounded_pace(tmp_path):
    flood = "[guard.send(os.urandom(i % 40 + 1)) for i in range(1 << 30)]"
    guard, turns = Guard(tmp_path, fake(flood)), 0
    began = trio.current_time()
    async with guard.kept():
        await until(lambda: guard.link.refused)
        until_seconds = trio.current_time() + 1.5
        while turns <= 100 or trio.current_time() < until_seconds:  # its other tasks have their turns
            await trio.lowlevel.checkpoint()
            turns += 1
        refused, took_seconds = guard.link.refused, trio.current_time() - began
        guard.link._records._waiting.clear()

    assert refused <= 64 + took_seconds * 100 + 20
    assert guard.link.starts == 1
    assert "requests refused" in guard.link.problem


async def test_steward_that_asks_without_end_is_answered_at_a_bounded_pace(tmp_path):
    question = write_request(Request(kind=RequestKind.STATUS, number=1))
    flood = f"q = {question!r}; guard.setblocking(True)\nimport threading\n"
    flood += "threading.Thread(target=lambda: [guard.recv(1 << 16) for _ in iter(int, 1)]).start()\n"
    flood += "while True: guard.send(q)"
    guard = Guard(tmp_path, fake(flood))
    began = trio.current_time()
    async with guard.kept():
        await until(lambda: "at a time" in (guard.link.problem or ""))
        await trio.sleep(1.0)
        asked, took_seconds = len(guard.asked), trio.current_time() - began

    assert asked <= 8 + 20 * (took_seconds + 1)
    assert guard.link.starts == 1


@pytest.mark.slow
async def test_steward_that_is_stopped_is_replaced_and_gets_what_the_one_before_did_not_take(tmp_path):
    first, began = Guard(tmp_path / "first"), trio.current_time()
    async with first.kept():
        first.records.write(lambda: {"kind": "x"})
        await until(first.lines)
    # For longer than a start takes on a machine that is as busy as this one now.
    guard = Guard(tmp_path, silent_seconds=3 * (trio.current_time() - began))
    async with guard.kept():
        await until(lambda: guard.link.pid is not None)
        guard.records.write(lambda: {"kind": "before"})
        await until(guard.lines)
        os.kill(guard.link.pid, signal.SIGSTOP)
        guard.records.write(lambda: {"kind": "meanwhile"})
        await until(lambda: len(guard.lines()) == 2, seconds=120.0)

    assert [line["kind"] for line in guard.lines()] == ["before", "meanwhile"]
    assert guard.link.starts >= 2


async def test_steward_that_takes_longer_to_start_than_one_may_be_silent_is_heard_of_in_the_end(tmp_path):
    question = write_request(Request(kind=RequestKind.STATUS, number=1))
    guard = Guard(tmp_path, fake(f"time.sleep(2); guard.send({question!r}); time.sleep(1000)"), 0.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.supervisor.keep, "steward", guard.link.run)
        await until(lambda: guard.asked)
        nursery.cancel_scope.cancel()
    assert guard.link.starts >= 2


async def test_steward_that_never_reads_costs_a_bounded_queue(tmp_path):
    guard = Guard(tmp_path, fake("time.sleep(1000)"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.supervisor.keep, "steward", guard.link.run)
        await until(lambda: guard.link.pid is not None)
        for _ in range(200):
            for _ in range(10):
                guard.records.write(lambda: {"filler": "x" * 10_000})
            await trio.lowlevel.checkpoint()
        await trio.sleep(0.2)
        assert len(guard.records) <= 64 + 256
        assert guard.records.lost == 2000 - len(guard.records)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "command", [("/nonexistent/steward",), (sys.executable, "-S", "-c", "raise SystemExit(3)")]
)
async def test_steward_that_can_not_be_started_or_ends_at_once_is_tried_again_and_is_a_problem(
    tmp_path, command
):
    guard = Guard(tmp_path, command)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.supervisor.keep, "steward", guard.link.run)
        await until(lambda: guard.supervisor.states and guard.supervisor.states[0].restarts >= 3)
        nursery.cancel_scope.cancel()

    (part,) = guard.supervisor.states
    assert "nonexistent" in part.last_error or "ended with status 3" in part.last_error


async def test_other_commands_are_run_by_another_steward_and_the_change_is_no_failure(tmp_path):
    guard, news = Guard(tmp_path), News()
    first, second = tmp_path / "first", tmp_path / "second"

    def order(*command: str) -> None:
        settings = ReclaimSettings(commands={Filesystem.NODEFS: (command,)})
        guard.link.order(replace(guard.settings, reclaim=settings), news)

    order("/bin/touch", str(first))
    async with guard.kept():
        await until(lambda: guard.link.pid is not None)
        await reclaim(guard)
        before = guard.link.pid
        guard.records.write(lambda: {"kind": "x"})
        order("/bin/touch", str(second))
        await until(lambda: guard.link.pid not in {None, before}, "another steward")
        await reclaim(guard)
        second_pid = guard.link.pid
        guard.link.order(replace(guard.link._orders.settings, metrics_address=None), news)
        await reclaim(guard)
        assert second_pid == guard.link.pid

    assert first.exists()
    assert second.exists()
    (part,) = guard.supervisor.states
    assert part.restarts == 0
    assert guard.link.starts == 2
    assert ["x"] == [line["kind"] for line in guard.lines()]


async def test_steward_that_was_killed_says_by_what_and_leaves_no_process_and_no_descriptor(tmp_path):
    guard = Guard(tmp_path, fake("os.kill(os.getpid(), signal.SIGKILL)"))
    before, others = open_descriptors(), descendants(os.getpid())

    with pytest.raises(StewardError, match="killed by signal 9"):
        await guard.link.run()

    assert before == open_descriptors()
    assert set(descendants(os.getpid())) <= set(others)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    datagrams=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                lambda form, kind, tail: bytes((2, form, kind)) + tail,
                st.integers(0, 6),
                st.integers(0, 19),
                st.one_of(*(st.binary(min_size=size, max_size=size) for size in (11, 18, 23, 44))),
            ),
            st.builds(
                lambda kind, number, lost: write_request(Request(kind=kind, number=number, lost=lost)),
                st.sampled_from(RequestKind),
                st.integers(0, 6),
                st.integers(0, 6),
            ),
            st.builds(
                lambda order, age, available: write_request(
                    Space(
                        order=order,
                        filesystems=(Filesystem.NODEFS,),
                        at_ns=max(0, time.monotonic_ns() - age),
                        available_bytes=available,
                        capacity_bytes=10,
                    )
                ),
                st.integers(0, 2),
                st.integers(-(10**9), 10**11),
                st.integers(0, 20),
            ),
            st.builds(
                lambda number, lines: write_request(ReclaimOver(number=number, did=tuple(lines))),
                st.integers(0, 6),
                st.lists(st.text(max_size=300), max_size=20),
            ),
            st.builds(
                lambda number, index, total, content: write_request(
                    Piece(
                        section=Section.SPECS,
                        number=number,
                        index=index,
                        total_bytes=total,
                        is_last=total == len(content),
                        content=content,
                    )
                ),
                st.integers(0, 3),
                st.integers(0, 2),
                st.integers(0, 60),
                st.binary(max_size=60),
            ),
            st.builds(
                lambda age, places: write_request(
                    Usages(at_ns=max(0, time.monotonic_ns() - age), places=tuple(places))
                ),
                st.integers(-(10**9), 10**11),
                st.lists(
                    st.builds(
                        PlaceUsage,
                        st.integers(0, 5),
                        st.sampled_from(UsageKind),
                        st.integers(0, 1 << 62),
                        st.integers(0, 1 << 62),
                    ),
                    min_size=1,
                    max_size=MOST_USAGES,
                ),
            ),
            st.binary(max_size=20).map(lambda some: some * 500),
        ),
        max_size=10,
    )
)
def test_whatever_the_steward_sends_raises_nothing_and_loses_no_line_uncounted(tmp_path, datagrams):
    async def main() -> None:
        guard, news, reports = Guard(tmp_path), News(), ClusterReports()
        pods = PodFacts(replace(guard.settings, kubernetes=KubernetesSettings()))
        guard.link.order(guard.settings, news)
        guard.link.attend_cluster(pods, reports)
        for uid in ("a", "b"):
            reports.evicted(uid, {"state": "over"})
        await reports.next()
        storage = guard.link.storage = UsageFacts()
        counted = [replace(_bare(number), storage=(_somewhere(number),)) for number in range(3)]
        storage.assign(counted)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            session = _Session(trio.socket.from_stdlib_socket(ours.dup()))
            for _ in range(4):
                guard.records.write(dict)
            for _ in range(3):
                await guard.records.next()
            for raw in datagrams:
                guard.link._obey(raw, session)
            session.connection.close()
        records = guard.records
        assert len(records) + records.written + records.lost == 4
        assert guard.link.refused + len(news.heard) <= len(datagrams)
        assert len(reports) >= 1  # what was not sent yet is not taken for safe
        assert pods.specs == {}
        assert storage.usages([*counted, replace(_bare(9), storage=(_somewhere(9),))]).keys() <= {
            pod.uid for pod in counted
        }

    trio.run(main)


async def test_observation_that_is_too_old_of_the_future_or_of_orders_never_given_is_refused(tmp_path):
    guard, news = Guard(tmp_path), News()
    guard.link.order(guard.settings, news)
    now_ns = time.monotonic_ns()
    for order, at_ns, is_taken in (
        (1, now_ns, True),
        (0, now_ns, False),
        (2, now_ns, False),
        (1, now_ns - 61 * 10**9, False),
        (1, now_ns + 10**12, False),
    ):
        space = Space(order=order, filesystems=(Filesystem.NODEFS,), at_ns=max(0, at_ns))
        before = len(news.heard)
        guard.link._obey(write_request(space), _Session(None))
        assert (len(news.heard) > before) is is_taken

    assert guard.link.refused == 3  # what was seen by earlier orders is only late


async def test_layouts_are_adopted_at_a_bounded_rate(tmp_path, autojump_clock):
    guard, news = Guard(tmp_path), News()
    guard.link.order(guard.settings, news)
    told = write_request(Request(kind=RequestKind.LAYOUT, number=1, places=2))
    for _ in range(10):
        guard.link._obey(told, _Session(None))
    assert (news.heard, guard.link.refused) == ([Layout.DEDICATED] * 3, 7)

    await trio.sleep(61)
    guard.link._obey(told, _Session(None))
    assert len(news.heard) == 4


async def test_filesystems_are_observed_by_the_steward_and_what_it_frees_is_reported(tmp_path):
    guard, news = Guard(tmp_path), News()
    done = tmp_path / "done"
    commands = {Filesystem.NODEFS: (("/bin/touch", str(done)), ("/bin/false",))}
    guard.link.order(replace(guard.settings, reclaim=ReclaimSettings(commands=commands)), news)
    async with guard.kept():
        await until(lambda: guard.link.pid is not None)
        assert await guard.link.observe(20)
        over = await reclaim(guard)
        nothing = await reclaim(guard, Reclaim.IMAGES)

    assert done.exists()
    assert (over.did, over.problems) == ((f"/bin/touch {done}", "/bin/false"), ("/bin/false: exit status 1",))
    assert nothing.did is None
    seen = next(one for one in news.heard if isinstance(one, Space))
    assert seen.capacity_bytes > seen.available_bytes > 0
    assert guard.link.refused == 0


async def test_emptydirs_are_emptied_by_the_steward_and_by_the_next_where_it_ends_meanwhile(tmp_path):
    guard = Guard(tmp_path)
    volume = tmp_path / "volume\udcff"
    (volume / "deep").mkdir(parents=True)
    (volume / "deep" / "file").write_text("x")
    places = [
        StoragePlace(kind=StorageKind.VOLUME, name=name, path=str(path), ends_with_pod=True)
        for name, path in (("a", volume), ("b", tmp_path / "none"))
    ]
    pod = Pod(
        name="p", namespace="n", uid="u", priority=0, qos_class=QosClass.BEST_EFFORT, storage=tuple(places)
    )
    async with guard.kept():
        await until(lambda: guard.link.pid is not None)
        os.kill(guard.link.pid, signal.SIGKILL)
        with trio.fail_after(90):
            assert () == await empty(guard.link, pod)

    assert [] == os.listdir(volume)


def pod_with(directory: Path) -> Pod:
    """Return a pod with a volume of 100 kB."""
    directory.mkdir()
    (directory / "file").write_bytes(bytes(100_000))
    place = StoragePlace(kind=StorageKind.VOLUME, name="data", path=str(directory))
    return Pod(name="a", namespace="n", uid="a", volumes=(Volume(name="data"),), storage=(place,))


async def test_pods_files_are_counted_by_the_steward_and_by_the_next_where_it_ends(tmp_path):
    guard, pod = Guard(tmp_path), pod_with(tmp_path / "volume")
    storage = guard.link.storage = UsageFacts()
    storage.assign([pod])

    def used_bytes() -> int:
        known = storage.usages([pod]).get("a")
        return 0 if known is None else known.ephemeral_storage_bytes or 0

    async with guard.kept():
        await until(lambda: used_bytes() > 100_000)  # unasked: a steward counts what it is told of
        (tmp_path / "volume" / "more").write_bytes(bytes(1_000_000))
        await guard.link.counted()
        assert used_bytes() > 1_000_000
        (walker,) = descendants_called(guard.link.pid, "walker")
        os.kill(guard.link.pid, signal.SIGKILL)
        (tmp_path / "volume" / "even more").write_bytes(bytes(2_000_000))
        await until(lambda: used_bytes() > 3_000_000)
        await until(lambda: not is_running(walker))
    assert not guard.link.refused


async def test_ranking_waits_for_a_count_no_longer_than_it_may_and_not_at_all_for_pods_without_files(
    tmp_path, autojump_clock
):
    known = Node(observed=Observed(stale_seconds=35.0))
    watch = StorageCounts(known, Guard(tmp_path).link)  # without a steward
    began = trio.current_time()
    await watch.count_now(2.0)
    assert trio.current_time() == began
    known.pods = (pod_with(tmp_path / "volume"),)
    await watch.count_now(2.0)
    assert trio.current_time() == began + 2.0


async def test_count_that_is_asked_for_of_a_steward_that_has_gone_is_an_error_and_no_other_failure(tmp_path):
    guard = Guard(tmp_path, fake("time.sleep(1000)"))
    storage = guard.link.storage = UsageFacts()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.supervisor.keep, "steward", guard.link.run)
        await until(lambda: guard.link.pid is not None)
        nursery.start_soon(_kill_soon, guard.link.pid)
        with pytest.raises(StewardError):
            await _count_for_ever(guard.link, storage)
        nursery.cancel_scope.cancel()


async def test_no_count_is_asked_for_while_there_is_no_place_to_be_counted(tmp_path):
    guard = Guard(tmp_path, fake("time.sleep(1000)"))
    storage = guard.link.storage = UsageFacts()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.supervisor.keep, "steward", guard.link.run)
        await until(lambda: guard.link._session is not None)
        session, sent = guard.link._session, []
        send = session.send

        async def noted(message):
            sent.append(message.kind)
            await send(message)

        session.send = noted
        for pods in ([_bare(1)], [replace(_bare(1), storage=(_somewhere(1),))], [_bare(1)], [_bare(1)]):
            storage.assign(pods)
            await guard.link.count(urgent=False)
        nursery.cancel_scope.cancel()
    assert sent == [FrameKind.PLACES, FrameKind.COUNT, FrameKind.PLACES]


async def _count_for_ever(link: StewardLink, storage: UsageFacts) -> None:
    for number in itertools.count():  # soon the pair is full
        storage.assign([replace(_bare(number), storage=(_somewhere(number),))])
        await link.count(urgent=False)


def _bare(number: int) -> Pod:
    return Pod(name=f"p{number}", namespace="n", uid=f"u{number}")


def _somewhere(number: int) -> StoragePlace:
    return StoragePlace(kind=StorageKind.VOLUME, name="data", path=f"/{number}/" + "x" * 4000)


async def test_without_a_steward_nothing_is_observed_or_given_back_and_nothing_is_waited_for(tmp_path):
    guard = Guard(tmp_path)
    with trio.fail_after(90):
        assert not await guard.link.observe(20)
        with pytest.raises(StewardError, match="none at present"):
            await reclaim(guard)


async def test_reclaim_during_which_the_steward_ends_is_an_error(tmp_path):
    guard = Guard(tmp_path, fake("time.sleep(1000)"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.supervisor.keep, "steward", guard.link.run)
        await until(lambda: guard.link._session is not None)
        nursery.start_soon(_kill_soon, guard.link.pid)
        with pytest.raises(StewardError, match="ended meanwhile"):
            await reclaim(guard)
        nursery.cancel_scope.cancel()


async def reclaim(guard: Guard, kind: Reclaim = Reclaim.COMMANDS) -> ReclaimOver:
    return await guard.link.ask(FrameKind.RECLAIM, kind=kind, filesystems=[Filesystem.NODEFS])


async def _kill_soon(pid: int) -> None:
    await trio.sleep(0.2)
    os.kill(pid, signal.SIGKILL)


def test_socket_of_a_guard_that_is_gone_is_replaced_though_its_steward_still_has_it(tmp_path):
    path = tmp_path / "s.sock"
    receive, send = os.pipe()
    guard = os.fork()
    if guard == 0:
        listener = listen(path)
        if os.fork():  # the guard ends, the other one keeps the socket
            os._exit(0)
        os.close(send)
        os.read(receive, 1)
        os._exit(0)
    os.waitpid(guard, 0)
    os.close(receive)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))

    with listen(path) as listener:
        assert listener.getsockname() == str(path)
        with pytest.raises(AnotherDaemonError):
            listen(path)
    os.close(send)


async def test_reports_reach_the_next_steward_where_one_ends_before_they_are_safe(tmp_path):
    """The steward says of every second report that it is safe, and dies."""
    script = (
        "from reactor.link.frames import Assembly\n"
        "from reactor.link.requests import Request, RequestKind, write_request\n"
        "guard.recv(1 << 16)\n"
        "for _ in range(2):\n"
        "    raw = guard.recv(1 << 16)\n"
        "    number = Assembly().take(raw).number\n"
        "    if number % 2: guard.send(write_request(Request(kind=RequestKind.REPORTED, number=number)))\n"
    )
    guard, reports = Guard(tmp_path, fake(script)), ClusterReports()
    guard.link.attend_cluster(PodFacts(guard.settings), reports)
    for uid in ("a", "b", "c"):
        reports.evicted(uid, {"state": "over"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.supervisor.keep, "steward", guard.link.run)
        await until(lambda: len(reports) == 1)  # the second, which no steward says to be safe
        nursery.cancel_scope.cancel()
    assert guard.link.starts >= 2
    assert guard.link.refused == 0


async def test_what_the_steward_has_sent_is_taken_before_the_loop_comes_to_it_and_in_its_turn(tmp_path):
    """One at a time where there is no time for more."""
    go, sent = tmp_path / "go", tmp_path / "sent"
    listings = [(1, ("a",)), (2, ("a", "b")), (3, ("c",))]
    datagrams = [
        write_request(piece)
        for number, uids in listings
        for piece in pieces(Section.SPECS, number, [_spec_record(uid) for uid in uids])
    ]
    script = f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists({str(go)!r}), True)]\n"
    script += f"[guard.send(one) for one in {datagrams!r}]\nopen({str(sent)!r}, 'w')\ntime.sleep(1000)"
    guard = Guard(tmp_path, fake(script))
    pods = PodFacts(replace(guard.settings, kubernetes=KubernetesSettings()))
    guard.link.attend_cluster(pods, ClusterReports())
    assert not guard.link.take_waiting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.supervisor.keep, "steward", guard.link.run)
        await until(lambda: guard.link._session is not None)
        await trio.testing.wait_all_tasks_blocked()
        go.touch()
        eventually(sent.exists, "all is sent, and the loop had no turn since")
        assert {} == pods.specs
        for _, uids in listings[:2]:
            assert guard.link.take_waiting(0.0)
            assert set(uids) == pods.specs.keys()
        await until(lambda: {"c"} == pods.specs.keys())
        assert guard.link.take_waiting(60.0)
        assert (0, 1) == (guard.link.refused, guard.link.starts)
        nursery.cancel_scope.cancel()


def _spec_record(uid: str) -> bytes:
    return spec_record(PodSource.API, Pod(name=uid, namespace="n", uid=uid)) or b""


async def test_what_the_guard_itself_fails_at_is_refused_as_well_since_a_pass_may_take_it(
    tmp_path, monkeypatch, caplog
):
    """A listing of pods takes what the steward has sent, on the way to a kill."""
    guard = Guard(tmp_path)

    def fail(_: Usages) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(guard.link.storage, "take", fail)
    usage = PlaceUsage(place=1, kind=UsageKind.COUNTED)
    for _ in range(2):
        guard.link._obey(write_request(Usages(at_ns=0, places=(usage,))), _Session(None))
    assert guard.link.refused == 2
    assert "a defect" in (guard.link.problem or "")
    (record,) = caplog.records
    assert record.exc_info
    assert ZeroDivisionError is record.exc_info[0]


async def test_pods_of_a_cluster_are_refused_on_a_plain_node(tmp_path):
    guard = Guard(tmp_path)
    piece = Piece(section=Section.SPECS, number=1, index=0, total_bytes=0, is_last=True, content=b"")
    guard.link._obey(write_request(piece), _Session(None))
    assert guard.link.refused == 1


async def test_without_a_runtime_the_guard_asks_the_processes_themselves(tmp_path):
    guard = Guard(tmp_path)
    with pytest.raises(StewardError, match="none at present"):
        await guard.link.ask(FrameKind.STOP, uid="u", grace_seconds=30)
    async with guard.kept():
        await until(lambda: guard.link.pid is not None)
        over = await guard.link.ask(FrameKind.STOP, uid="u", grace_seconds=30)
    assert over.problems == ("no container runtime is known",)


def _environment(pid: int | None) -> str:
    return Path(f"/proc/{pid}/environ").read_bytes().decode()


async def test_steward_has_the_environment_by_which_a_cluster_is_found_but_not_the_service_managers(
    tmp_path, monkeypatch
):
    """In a pod the API server's address is there, the node's name, and what a credentials plugin goes by."""
    found = {"NODE_NAME": "one", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOME": "/root", "AWS_PROFILE": "x"}
    for name, value in {**found, "NOTIFY_SOCKET": "/none", "WATCHDOG_USEC": "1"}.items():
        monkeypatch.setenv(name, value)
    guard = Guard(tmp_path)
    async with guard.kept():
        await until(lambda: guard.link.pid is not None)
        raw = _environment(guard.link.pid)
    environment = dict(one.split("=", 1) for one in raw.split("\0") if one)
    assert found.items() <= environment.items()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & environment.keys()
