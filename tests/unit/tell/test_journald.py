"""Entries for systemd's journal, at a socket in its place."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from reactor.model.settings import EventKind, NotificationSettings
from reactor.tell.channels import MESSAGE_IDS, Journald, NotSentError, Outbox
from reactor.tell.events import Event, Events
from tests.support.waiting import until

CATALOG = Path(__file__).parents[3] / "deploy/reactor.catalog"


def event(kind: str = "oom-kill", **fields: object) -> Event:
    [made] = Events("node-1").take({"kind": kind, "message": "it has killed", **fields})
    return made


def eviction(outcome: str = "killed") -> Event:
    told = {"pod": "n/a", "uid": "u", "signal": "memory.available", "outcome": outcome, "killed_ns": 5}
    threshold = {"threshold": "memory.available<64Mi", "available": 5, "capacity": 10}
    [made] = Events("node-1").take({"kind": "decision", "id": 3, "threshold": threshold, "evictions": [told]})
    return made


def fields(entry: bytes) -> dict[str, str]:
    """Return an entry's fields, as the protocol has them read."""
    found = {}
    while entry:
        name, separator, rest = re.fullmatch(rb"([A-Z0-9_]+)([=\n])(.*)", entry, re.DOTALL).groups()
        if separator == b"=":
            value, _, entry = rest.partition(b"\n")
        else:
            (length,) = struct.unpack_from("<Q", rest)
            value, entry = rest[8 : 8 + length], rest[8 + length + 1 :]
        found[name.decode()] = value.decode()
    return found


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "socket"))
        yield made


def journald(journal: socket.socket, **settings: bool) -> Journald:
    wanted = NotificationSettings(**settings)
    return Journald(lambda: wanted, socket_path=journal.getsockname())


async def test_an_eviction_is_an_entry_with_a_message_id_and_fields_of_its_own(
    journal: socket.socket,
) -> None:
    sent = eviction()
    await journald(journal).send(sent)

    assert {
        "MESSAGE": sent.text,
        "MESSAGE_ID": MESSAGE_IDS[EventKind.EVICTION],
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "reactor",
        "REACTOR_EVENT": "eviction",
        "REACTOR_NODE": "node-1",
        "REACTOR_POD": "n/a",
        "REACTOR_UID": "u",
        "REACTOR_SIGNAL": "memory.available",
        "REACTOR_OUTCOME": "killed",
        "REACTOR_THRESHOLD": "memory.available<64Mi",
        "REACTOR_DECISION": "3",
        "REACTOR_KILLED_NS": "5",
    } == fields(journal.recv(1 << 20))


async def test_an_eviction_that_failed_and_a_node_that_ran_out_are_errors(journal: socket.socket) -> None:
    grave = (eviction("failed"), event(scope="node"), event("no-victim"))
    for one in (*grave, event(scope="own-limit"), event("source-lost")):
        await journald(journal).send(one)
    entries = [fields(journal.recv(1 << 20)) for _ in range(5)]

    assert ["3", "3", "3", "4", "4"] == [entry["PRIORITY"] for entry in entries]
    assert {*MESSAGE_IDS.values()} == {entry["MESSAGE_ID"] for entry in entries}


async def test_what_is_written_into_a_value_or_a_key_makes_no_other_field(journal: socket.socket) -> None:
    hostile = "x\nPRIORITY=0\n_PID=1\n"
    await journald(journal).send(event(pod=hostile, **{"a=b\nPRIORITY": "0", "a b": 1, "ok": True}))
    entry = fields(journal.recv(1 << 20))

    assert ("4", "x\\x0aPRIORITY=0\\x0a_PID=1\\x0a") == (entry["PRIORITY"], entry["REACTOR_POD"])
    assert {name for name in entry if not name.startswith("REACTOR_")} == {
        *("MESSAGE", "MESSAGE_ID", "PRIORITY", "SYSLOG_IDENTIFIER")
    }


def test_where_there_is_no_journal_or_it_is_not_wanted_no_event_is_taken(journal: socket.socket) -> None:
    assert journald(journal).takes(event())
    assert not journald(journal, journald=False).takes(event())
    Path(journal.getsockname()).unlink()
    assert not journald(journal).takes(event())


async def test_a_journal_that_takes_nothing_is_waited_for_and_given_up(
    journal: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    del autojump_clock
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)  # noqa: FBT003 - its one argument
        filler.connect(journal.getsockname())
        with suppress(BlockingIOError):
            while True:
                filler.send(b"x")
    with pytest.raises(NotSentError, match="has taken nothing for 10 s"):
        await journald(journal).send(event())


async def test_a_journal_that_has_gone_is_said_and_thousands_of_events_are_bounded(
    journal: socket.socket,
) -> None:
    outbox = Outbox(journald(journal))
    for _ in range(3000):
        outbox.put(event(scope="node"))
    assert (256, 3000 - 256) == (outbox.waiting, outbox.dropped)
    journal.close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        await until(lambda: outbox.failed == 256, "each has failed")
        nursery.cancel_scope.cancel()
    assert "Connection refused" in str(outbox.problem)


def test_the_catalog_explains_each_message_id_by_fields_that_its_entries_have() -> None:
    text = CATALOG.read_text(encoding="utf-8")
    explained = dict(re.findall(r"^-- ([0-9a-f]{32})\n(.*?)(?=^-- |\Z)", text, re.MULTILINE | re.DOTALL))
    assert {*MESSAGE_IDS.values()} == {*explained}
    for kind, always in {
        EventKind.EVICTION: {"REACTOR_POD", "REACTOR_SIGNAL", "REACTOR_OUTCOME"},
        EventKind.OOM_KILL: {"REACTOR_SCOPE"},
        EventKind.SOURCE_LOST: {"REACTOR_SOURCE", "REACTOR_HEALTH", "REACTOR_DETAIL"},
        EventKind.NO_VICTIM: {"REACTOR_SIGNAL", "REACTOR_THRESHOLD", "REACTOR_MESSAGE"},
    }.items():
        entry = explained[MESSAGE_IDS[kind]]
        assert {*re.findall(r"@([A-Z_]+)@", entry)} == always
        assert re.match(r"Subject: .+\nDefined-By: reactor\n", entry)
