"""The layouts in bpf/records.h and in Python are one; records are told from what is none."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.bpf.records import (
    COUNTERS_RECORD,
    LEVEL,
    LEVELS_PER_WATCH,
    NODE_COUNTING,
    OOM_CGROUP,
    OOM_HEAD,
    OOM_PATH_LEVELS,
    OOM_RECORD_BYTES,
    UNUSED,
    WARRANT_RECORD,
    WATCH_HEAD,
    WATCH_RECORD,
    CounterAddresses,
    Level,
    NodeCounting,
    OomRecord,
    RecordKind,
    WarrantOutcome,
    WarrantRecord,
    Watched,
    WatchRecord,
    pack_node_counting,
    pack_watch,
    parse_counters,
    parse_record,
)
from reactor.kernel.bpf.warrants import (
    ACTIVE_MOST_AT,
    CLAIM,
    CLAIM_BITS,
    EXPIRES_AT,
    PLACES,
    SPARED,
    WARRANT_ARRIVALS,
    WARRANT_BYTES,
    WARRANT_ORDER,
    WARRANT_RESULT,
    WARRANT_TERMS,
    ClaimState,
    Terms,
    parse_result,
)

BPF = Path(__file__).parents[4] / "bpf"
WARRANT = struct.Struct("=I" + WARRANT_RECORD.head.format[1:])  # its kind, and what is read
STRUCTS = {
    "watch_level": (LEVEL, ("fire", "rearm", "step", "next")),
    "watch_record": (
        WATCH_RECORD.head,
        ("kind", "watched", "at_ns", "id", "value", "fire", "level", "pid", "comm"),
    ),
    "oom_cgroup": (OOM_CGROUP, ("id", "name")),
    "node_counting": (NODE_COUNTING, ("total", "reserved", "low")),
    "counters_record": (COUNTERS_RECORD, ("cgroup", "memory", "tasks", "level")),
    "warrant_record": (
        WARRANT,
        ("kind", "outcome", "at_ns", "generation"),
    ),
    "warrant_order": (WARRANT_ORDER, ("generation", "arrivals", "result")),
}


OOM_FIELDS = ("kind", "pid", "at_ns", "limit_cgroup", "limit_pages", "usage_pages", "victim_pages", "comm")


TERMS = (
    *("victim", "victim_counter", "victim_least", "watched_counter", "level"),
    *("cache_most", "expires_ns", "outside_counter", "active_most"),
    *("spared", "spared_levels", "victim_level"),
)
RESULT = ("outcome", "crossed_ns", "signalled_ns", "value", "inactive", "pid", "error", "comm")


def _offsets(layout: struct.Struct) -> list[int]:
    """Return where each value of a layout begins, and where the last ends."""
    sizes = [struct.calcsize(f"={code}") for code in re.findall(r"\d*[a-zA-Z]", layout.format)]
    return [sum(sizes[:count]) for count in range(len(sizes) + 1)]


@pytest.fixture(scope="session")
def c_layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    lines = [
        f'printf("{name} %zu\\n", sizeof(struct {name}));'
        for name in (*STRUCTS, "counter_watch", "oom_record", "warrant")
    ]
    lines += [
        f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));'
        for name, (_, fields) in STRUCTS.items()
        for field in fields
    ]
    lines.append('printf("watch.levels %zu\\n", offsetof(struct counter_watch, levels));')
    lines += [
        f'printf("oom_record.{field} %zu\\n", offsetof(struct oom_record, {field}));'
        for field in (*OOM_FIELDS, "path")
    ]
    lines += [
        f'printf("warrant.{field} %zu\\n", offsetof(struct warrant, {field}));'
        for field in (*TERMS, *RESULT, "claim", "fire", "arrivals")
    ]
    constants = [f"RECORD_{kind.name}" for kind in RecordKind] + [f"WATCHED_{one.name}" for one in Watched]
    constants += [f"CLAIM_{one.name}" for one in ClaimState]
    constants += [f"WARRANT_{one.name}" for one in WarrantOutcome]
    constants += ["CLAIM_BITS", "WARRANT_PLACES", "WARRANT_SPARED", "LEVELS_PER_WATCH", "OOM_PATH_LEVELS"]
    lines += [f'printf("{name} %d\\n", {name});' for name in constants]
    directory = tmp_path_factory.mktemp("layouts")
    source = directory / "layouts.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <linux/types.h>\n"
        f'#include "{BPF}/records.h"\nint main(void) {{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    subprocess.run([compiler, "-o", directory / "layouts", source], check=True)
    printed = subprocess.run([directory / "layouts"], check=True, capture_output=True, text=True).stdout
    return {name: int(number) for name, number in (line.split() for line in printed.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_has_the_same_layout_in_c_and_in_python(name: str, c_layouts: dict[str, int]) -> None:
    layout, fields = STRUCTS[name]
    *offsets, size = _offsets(layout)
    assert offsets == [c_layouts[f"{name}.{field}"] for field in fields]
    assert size == layout.size == c_layouts[name]


def test_oom_record_has_the_same_layout_in_c_and_in_python(c_layouts: dict[str, int]) -> None:
    places = [c_layouts[f"oom_record.{field}"] for field in (*OOM_FIELDS, "path")]
    assert places == _offsets(OOM_HEAD)
    assert c_layouts["oom_record"] == OOM_RECORD_BYTES
    assert c_layouts["OOM_PATH_LEVELS"] == OOM_PATH_LEVELS


def test_watch_and_constants_are_the_same_in_c_and_in_python(c_layouts: dict[str, int]) -> None:
    assert WATCH_HEAD.size == c_layouts["watch.levels"]
    assert WATCH_HEAD.size + LEVELS_PER_WATCH * LEVEL.size == c_layouts["counter_watch"]
    assert c_layouts["LEVELS_PER_WATCH"] == LEVELS_PER_WATCH
    for kind in RecordKind:
        assert kind == c_layouts[f"RECORD_{kind.name}"]
    for watched in Watched:
        assert watched == c_layouts[f"WATCHED_{watched.name}"]


def test_watch_holds_its_levels_and_marks_the_others_unused() -> None:
    raw = pack_watch(
        7, [Level(fire=100, rearm=90, step=10), Level(fire=200, rearm=190, step=10, reported=205)]
    )
    assert (7, 0, 0) == WATCH_HEAD.unpack_from(raw)
    levels = [LEVEL.unpack_from(raw, WATCH_HEAD.size + LEVEL.size * place) for place in range(4)]
    assert [(100, 90, 10, 100), (200, 190, 10, 215), (UNUSED,) * 4, (UNUSED,) * 4] == levels


def test_watch_refuses_more_levels_than_it_holds() -> None:
    with pytest.raises(ValueError, match="5 levels on one counter; accepted: 4 at the most"):
        pack_watch(7, [Level(fire=1, rearm=0, step=1)] * 5)


def test_crossing_is_read_back() -> None:
    raw = WATCH_RECORD.head.pack(1, 2, 123, 7, 1001, 1000, 3, 42, b"python3")
    expected = WatchRecord(
        kind=RecordKind.CROSSING,
        watched=Watched.NODE_MEMORY,
        at_ns=123,
        watch_id=7,
        value=1001,
        fire=1000,
        level=3,
        pid=42,
        comm="python3",
    )
    assert expected == parse_record(raw)


def oom_record(
    limit_cgroup: int = 0, comm: bytes = b"hog", path: Sequence[tuple[int, str]] = ()
) -> OomRecord:
    head = OOM_HEAD.pack(4, 42, 123, limit_cgroup, 100, 90 if limit_cgroup else 0, 88, comm)
    places = [OOM_CGROUP.pack(place_id, name.encode()) for place_id, name in path]
    record = parse_record((head + b"".join(places)).ljust(OOM_RECORD_BYTES, b"\0"))
    assert isinstance(record, OomRecord)
    return record


@pytest.mark.parametrize(("limit_cgroup", "expected"), [(1520, (1520, 90)), (0, (None, None))])
def test_oom_kill_distinguishes_a_cgroups_limit_from_the_machines(
    limit_cgroup: int, expected: tuple[int | None, int | None]
) -> None:
    record = oom_record(limit_cgroup)
    assert expected == (record.limit_cgroup, record.usage_pages)
    assert (42, 88, "hog") == (record.pid, record.victim_pages, record.comm)


def test_oom_kill_names_the_victims_cgroup_and_the_one_at_its_limit() -> None:
    record = oom_record(path=[(30, "web.service"), (20, "pods.slice"), (1, "")])
    assert record.path == ((30, "web.service"), (20, "pods.slice"), (1, ""))
    assert record.cgroup_path(1) == "/pods.slice/web.service"
    assert record.cgroup_path(1, 20) == "/pods.slice"
    assert record.cgroup_path(1, 1) == "/"
    assert record.cgroup_path(20) == "/web.service"


def test_oom_kill_names_no_cgroup_that_is_not_above_its_victim() -> None:
    record = oom_record(path=[(30, "web.service"), (20, "pods.slice"), (1, "")])
    assert record.cgroup_path(2) is None
    assert record.cgroup_path(20, 1) is None
    assert record.cgroup_path(1, 99) is None
    assert oom_record().cgroup_path(1) is None


def test_name_that_was_cut_within_a_character_is_read() -> None:
    assert oom_record(comm="vergrößern-hintä".encode()[:16]).comm.startswith("vergrößern")


@given(
    st.binary(max_size=200)
    | st.binary(min_size=WATCH_RECORD.head.size, max_size=WATCH_RECORD.head.size)
    | st.binary(max_size=OOM_RECORD_BYTES - 4).map(
        lambda raw: b"\4\0\0\0" + raw.ljust(OOM_RECORD_BYTES - 4, b"\xff")
    )
)
def test_any_bytes_are_a_record_or_refused(raw: bytes) -> None:
    with suppress(KernelInterfaceError):
        parse_record(raw)


def test_counters_of_several_cgroups_are_read() -> None:
    raw = COUNTERS_RECORD.pack(1, 2, 3, 4) + COUNTERS_RECORD.pack(4, 5, 0, 0)
    expected = (
        CounterAddresses(cgroup_id=1, memory=2, tasks=3, level=4),
        CounterAddresses(cgroup_id=4, memory=5, tasks=0),
    )
    assert expected == parse_counters(raw)


def test_counters_that_are_cut_off_are_refused() -> None:
    with pytest.raises(KernelInterfaceError, match="cgroup iterator"):
        parse_counters(bytes(COUNTERS_RECORD.size + 1))


def test_every_struct_of_the_header_is_held_to_python() -> None:
    """A struct that is added to records.h has to be added here too."""
    header = (BPF / "records.h").read_text()
    defined = {line.split()[1] for line in header.splitlines() if line.startswith("struct ") and "{" in line}
    assert {*STRUCTS, "counter_watch", "oom_record", "warrant"} == defined


def test_node_counts_by_its_working_set_where_nothing_else_is_asked_for() -> None:
    assert (0, 0, 0) == NODE_COUNTING.unpack(pack_node_counting(None))
    counting = NodeCounting(total=3, reserved=2, low=1)
    assert (3, 2, 1) == NODE_COUNTING.unpack(pack_node_counting(counting))


def test_warrant_has_the_same_layout_in_c_and_in_python(c_layouts: dict[str, int]) -> None:
    assert c_layouts["warrant"] == WARRANT_BYTES
    assert c_layouts["warrant.claim"] == 0
    numbers, spared, levels = 9 * 8, SPARED * 8, SPARED * 4
    in_terms = [*range(0, numbers, 8), numbers, numbers + spared, numbers + spared + levels]
    assert [c_layouts[f"warrant.{field}"] for field in TERMS] == [CLAIM.size + place for place in in_terms]
    assert c_layouts["warrant.expires_ns"] == EXPIRES_AT
    assert c_layouts["warrant.active_most"] == ACTIVE_MOST_AT
    result_at = CLAIM.size + WARRANT_TERMS.size
    *in_result, end = _offsets(WARRANT_RESULT)
    assert [c_layouts[f"warrant.{field}"] for field in RESULT] == [result_at + place for place in in_result]
    assert c_layouts["warrant.fire"] == result_at + end
    assert c_layouts["warrant.arrivals"] == WARRANT_BYTES - WARRANT_ARRIVALS.size


def test_constants_of_warrants_are_the_same_in_c_and_in_python(c_layouts: dict[str, int]) -> None:
    for state in ClaimState:
        assert state == c_layouts[f"CLAIM_{state.name}"]
    for outcome in WarrantOutcome:
        assert outcome == c_layouts[f"WARRANT_{outcome.name}"]
    assert (CLAIM_BITS, PLACES, SPARED) == tuple(
        c_layouts[name] for name in ("CLAIM_BITS", "WARRANT_PLACES", "WARRANT_SPARED")
    )


def terms_with(spared: tuple[tuple[int, int], ...]) -> Terms:
    return Terms(
        victim=1,
        victim_level=2,
        victim_counter=3,
        victim_least=4,
        watched_counter=5,
        level=6,
        cache_most=8,
        expires_ns=9,
        spared=spared,
    )


def test_terms_name_each_spared_cgroup_with_its_level() -> None:
    terms = terms_with(((10, 3), (11, 4)))
    assert (1, 3, 4, 5, 6, 8, 9, 0, 0, 10, 11, *[0] * 6, 3, 4, *[0] * 6, 2) == WARRANT_TERMS.unpack(
        terms.pack()
    )


def test_terms_refuse_more_spared_cgroups_than_they_hold() -> None:
    terms = terms_with(((10, 3),) * 9)
    with pytest.raises(ValueError, match="9 spared cgroups; accepted: 8 at the most"):
        terms.pack()


def test_record_of_a_warrant_is_read_back() -> None:
    expected = WarrantRecord(outcome=WarrantOutcome.SERVED, at_ns=123, generation=7)
    assert expected == parse_record(WARRANT.pack(5, 1, 123, 7))


def test_result_of_a_warrant_reports_what_it_did_not_come_to() -> None:
    nothing = parse_result(bytes(WARRANT_RESULT.size))
    assert (WarrantOutcome.OPEN, None, None, "") == (
        nothing.outcome,
        nothing.crossed_ns,
        nothing.signalled_ns,
        nothing.comm,
    )
    served = parse_result(WARRANT_RESULT.pack(1, 10, 12, 5, 3, 42, -1, b"hog"))
    assert (WarrantOutcome.SERVED, 10, 12, 5, 3, 42, -1, "hog") == (
        served.outcome,
        served.crossed_ns,
        served.signalled_ns,
        served.value_pages,
        served.inactive_pages,
        served.pid,
        served.error,
        served.comm,
    )


@given(st.binary(min_size=WARRANT_RESULT.size, max_size=WARRANT_RESULT.size))
def test_any_bytes_are_a_result(raw: bytes) -> None:
    parse_result(raw)
