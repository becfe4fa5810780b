import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.cli import main
from reactor.tune.history import history_in, history_of
from reactor.tune.report import history_lines
from tests.support.executed_lines import executed_lines

MIB = 1 << 20
Line = Callable[..., bytes]
HARD: dict[str, Any] = {
    "threshold": "memory.available<100Mi",
    "signal": "memory.available",
    "value": 100 * MIB,
    "available": 99 * MIB,
    "grace_period_seconds": 0.0,
}
SOFT = {**HARD, "threshold": "memory.available<500Mi", "value": 500 * MIB, "grace_period_seconds": 30.0}
SHORT = "MemoryPressure"
LATER = "2100-11-21T03:04:05Z"
RANKING = [
    {"uid": "a", "usage": 300 * MIB},
    {"uid": "b", "usage": 700 * MIB},
    {"uid": "c", "usage": None},
]
KILLED = {"uid": "a", "grace_period_seconds": 0, "outcome": "killed", "freed_ns": 50_000_000}


def evicted(**changes: Any) -> dict[str, Any]:
    timing = {"woke_ns": 1_000_000, "decided_ns": 2_000_000, "killed_ns": 3_000_000, "freed_ns": 43_000_000}
    return {
        "threshold": HARD,
        "ranking": RANKING,
        "evictions": [KILLED],
        "timing": timing,
        **changes,
    }


def test_an_eviction_reports_its_latencies_its_victim_and_the_rate_since_the_first_threshold(
    line: Line,
) -> None:
    found = history_of([line(10, 600, SHORT), line(12, 100, SHORT, **evicted())])
    (crossing,) = found.crossings
    assert (0.002, 0.04) == (crossing.killed_seconds, crossing.freed_seconds)
    assert (300 * MIB, 250 * MIB) == (crossing.victim_bytes, crossing.rate_bytes)
    assert (2, 700 * MIB, 100 * MIB) == (
        found.decisions,
        found.largest_pod_bytes,
        found.lowest_available_bytes,
    )


def test_an_evictions_line_comes_later_than_its_time_and_is_put_where_it_belongs(line: Line) -> None:
    found = history_of([line(10, 600, SHORT), line(13, 110, SHORT), line(12, 100, SHORT, **evicted())])
    assert (250.0 * MIB,) == found.rates_bytes


def test_without_a_threshold_before_it_or_one_long_before_an_eviction_tells_no_rate(line: Line) -> None:
    at_once = [line(10, 100, SHORT, **evicted())]
    long_before = [line(2000, 600, SHORT), line(3000, 100, SHORT, **evicted())]
    second = [
        line(4000, 600, SHORT),
        line(4001, 590, SHORT, **evicted()),
        line(4002, 100, SHORT, **evicted()),
    ]
    for lines, known in ((at_once, 0), (long_before, 0), (second, 1)):
        assert known == len(history_of(lines).rates_bytes)
    assert history_of(at_once).fastest_bytes is None


def test_evictions_of_a_dry_run_are_counted_as_such(line: Line) -> None:
    dry = line(12, 100, SHORT, **evicted(dry_run=True))
    found = history_of([dry, line(400, 100, SHORT, **evicted(dry_run=False))])
    assert (2, 1) == (len(found.crossings), found.dry_runs)
    assert "2 evictions for memory, 1 of them in a dry run, the rate" in next(iter(history_lines(found)))


def test_a_shortage_that_passed_by_itself_is_a_spell_without_its_transition_period(line: Line) -> None:
    passed = [line(10, 400, SHORT), line(11, 350, SHORT), line(44, 600)]
    ended = [line(50, 400, SHORT), line(51, 90, SHORT, **evicted()), line(99, 900)]
    assert (4.0,) == history_of([*passed, *ended], transition_seconds=30).spells_seconds
    assert () == history_of(passed, transition_seconds=300).spells_seconds


def test_pressure_on_a_disk_is_no_spell_and_no_crossing(line: Line) -> None:
    disk = {**HARD, "signal": "nodefs.available", "threshold": "nodefs.available<10%"}
    short = "DiskPressure"
    found = history_of([line(10, 400, short, **evicted(threshold=disk)), line(500, 400)])
    assert ((), (), None) == (found.crossings, found.spells_seconds, found.largest_pod_bytes)


def test_soft_evictions_tell_how_long_pods_take_to_end(line: Line) -> None:
    gently = {**KILLED, "grace_period_seconds": 30, "outcome": "terminated", "freed_ns": 4_002_000_000}
    late = {**gently, "uid": "b", "outcome": "ordered"}
    decision = line(7, 400, **evicted(threshold=SOFT, evictions=[gently, late]))
    killed = (
        json.dumps({"kind": "outcome", "decision": 7, "time": LATER, **late, "outcome": "killed"}).encode()
        + b"\n"
    )
    found = history_of([decision, killed])
    assert ((4.0,), 1) == (found.terminated_seconds, found.killed_after_grace)
    assert found.crossings[0].killed_seconds is None  # its pod's time to end is no reaction of ours


def test_kills_of_the_kernel_count_where_the_node_ran_out_and_not_at_a_pods_own_limit() -> None:
    at = {"time": "2026-11-21T03:04:05Z"}
    kills = [{"kind": "oom-kill", "scope": scope, "kills": 2, **at} for scope in ("node", "own-limit")]
    assert 2 == history_of(json.dumps(one).encode() for one in kills).missed


@given(
    st.lists(
        st.one_of(
            st.binary(),
            st.sampled_from([b"{}", b"[" * 100_000]),
            st.just(b'{"kind":"decision","time":"2026-11-21T03:04:05Z"}'),
        ),
        max_size=20,
    )
)
def test_what_is_no_line_of_a_journal_is_counted_and_does_no_harm(lines: list[bytes]) -> None:
    found = history_of(lines)
    assert (len(lines), 0) == (found.unread, found.decisions)


def test_a_journal_is_read_with_the_files_it_was_rotated_into_oldest_first(
    tmp_path: Path, line: Line
) -> None:
    path = tmp_path / "journal.jsonl"
    for number, name in enumerate(("journal.jsonl.2", "journal.jsonl.1", "journal.jsonl")):
        (tmp_path / name).write_bytes(line(10 + number, 600 - 100 * number))
    path.write_bytes(path.read_bytes() + line(20, 10)[:40])  # cut off by a crash
    found = history_in([path], 300)
    assert (3, 0, 400 * MIB) == (found.decisions, found.unread, found.lowest_available_bytes)
    assert [found.first, found.last] == sorted([found.first or "", found.last or ""])


def test_a_journal_that_is_not_there_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        history_in([tmp_path / "nowhere.jsonl"], 300)


@pytest.mark.parametrize("content", [b"", b"no journal\n", b'{"time": "2026-01-01T00:00:00Z"}\n'])
def test_files_without_a_line_of_a_journal_are_an_error_that_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    assert 1 == main(["tune", "--journal", str(path)])
    assert f"{path}: no line of a journal can be read" in capsys.readouterr().err


def test_a_directory_has_many_nodes_whose_histories_are_added_and_not_mixed(
    tmp_path: Path, line: Line, capsys: pytest.CaptureFixture[str]
) -> None:
    node = [line(10, 600, SHORT), line(12, 100, SHORT, **evicted())]
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(node))
    (tmp_path / "c.jsonl.gz").write_bytes(b"no gzip")
    found = history_in([tmp_path], 300)
    assert (4, 2, (250.0 * MIB, 250.0 * MIB)) == (found.decisions, len(found.crossings), found.rates_bytes)
    assert f"{tmp_path}/c.jsonl.gz: " in capsys.readouterr().err


def test_a_line_of_no_journal_is_counted_without_being_parsed() -> None:
    lines = [b"x\n", b"\n", b"{}\n", b"[1]\n"] * 100
    assert 0 == executed_lines(lambda: history_of(lines), json.decoder.__file__)
    assert 400 == history_of(lines).unread
