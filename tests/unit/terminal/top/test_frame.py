"""What a person reads in a frame, at several widths and heights."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.terminal.top import Shown, frame
from reactor.terminal.top.sections import Rates, note_rates, seconds_left
from reactor.terminal.top.table import Style
from tests.unit.terminal.top import top_answers as top

MIB = 1 << 20
LONG = "kube-system/metrics-server-5d78c9869d-abcde-with-a-tail"


def _seen(*available: int) -> tuple[dict, Rates]:
    """Return the last of several answers, a second apart, and the rates in them."""
    rates = Rates()
    for second, value in enumerate(available):
        found = top.document(signals=[top.signal(available=value)])
        note_rates(rates, found, float(second))
    return found, rates


def test_a_signal_shows_margin_rate_and_time_to_its_threshold():
    found, rates = _seen(320 * MIB, 310 * MIB, 300 * MIB)

    line = next(line for line in top.read(found, rates=rates) if line.startswith("memory.available"))

    assert line.split() == [
        "memory.available",
        "300Mi",
        "512Mi",
        "hard",
        "100Mi",
        "200Mi",
        "-10Mi/s",
        "20s",
        "ok",
    ]


def test_a_signal_that_recovers_has_a_rate_and_no_time():
    found, rates = _seen(300 * MIB, 310 * MIB)

    line = next(line for line in top.read(found, rates=rates) if line.startswith("memory.available"))

    assert line.split()[-3:] == ["+10Mi/s", "-", "ok"]


@pytest.mark.parametrize(
    ("threshold", "per_second", "left"),
    [
        ({"margin": 100, "reached_in_seconds": 7.0}, -1.0, 7.0),  # the daemon's own reckoning
        ({"margin": 100, "reached_in_seconds": None}, -10.0, 10.0),
        ({"margin": 100, "reached_in_seconds": None}, 10.0, None),
        ({"margin": 100, "reached_in_seconds": None}, None, None),
        ({"margin": -1, "reached_in_seconds": None}, -10.0, None),
        ({"margin": None, "reached_in_seconds": None}, -10.0, None),
        ({"margin": 1e9, "reached_in_seconds": None}, -1.0, None),  # years
    ],
)
def test_the_time_that_is_left(threshold, per_second, left):
    assert seconds_left(threshold, per_second) == left


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"met": True, "margin": -5}, "met"),
        ({"below_for_seconds": 5.0, "grace_period_seconds": 30.0, "margin": -5}, "5s of 30s"),
        ({"margin": -5}, "below"),
        ({}, "ok"),
    ],
)
def test_a_threshold_says_how_it_stands(fields, state):
    lines = top.read(top.document(signals=[top.signal(**fields)]))

    assert next(line for line in lines if line.startswith("memory.available")).endswith(f" {state}")


def test_what_was_not_observed_is_unknown_and_no_zero():
    lines = top.read(top.document(signals=[top.signal(available=None)]))

    line = next(line for line in lines if line.startswith("memory.available"))
    assert line.split() == ["memory.available", "-", "-", "hard", "-", "-", "-", "-", "unknown"]


def test_pods_stand_in_the_order_of_their_eviction_with_the_reason():
    first = [
        top.place(1, "shop/gone", being_evicted=True),
        top.place(2, "shop/unknown", usage=None, exceeds_request=None),
        top.place(3, "shop/greedy"),
        top.place(4, "shop/modest", exceeds_request=False),
        top.place(5, "shop/batch", preference="prefer"),
        top.place(6, "shop/last", exceeds_request=False, preference="avoid"),
        top.place(7, "kube-system/proxy", critical_because="priority 2000001000"),
    ]
    order = {**top.document()["order"], "first": first, "pods": 110, "age_seconds": 4.2}

    lines = top.read(top.document(order=order), 120, 40)

    start = next(
        index for index, line in enumerate(lines) if "POD of 110, for memory.available, 4s old" in line
    )
    rows = [line.split() for line in lines[start + 1 : start + 1 + len(first)]]
    assert [row[:2] for row in rows] == [[str(one["place"]), one["pod"]] for one in first]
    whys = ["being evicted", "no statistics", "above request", "within request"]
    whys += ["preferred, above request", "avoided, within request", "never: priority 2000001000"]
    assert [" ".join(row[-len(why.split()) :]) for row, why in zip(rows, whys, strict=True)] == whys


@pytest.mark.parametrize(
    ("width", "height"), [(80, 24), (60, 24), (40, 12), (250, 60), (20, 5), (1, 1), (0, 0)]
)
def test_a_frame_is_never_larger_than_the_terminal(width, height):
    names = (
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "pid.available",
    )
    order = {
        **top.document()["order"],
        "first": [top.place(n, f"{LONG}-{n}") for n in range(1, 60)],
        "pods": 59,
    }
    found = top.document(
        signals=[top.signal(name) for name in names], order=order, problems={"journal": "full " * 30}
    )

    lines = top.read(found, width, height)

    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_in_80_columns_and_24_lines_there_is_some_of_everything():
    order = {
        **top.document()["order"],
        "first": [top.place(n, f"{LONG}-{n}") for n in range(1, 60)],
        "pods": 59,
    }
    found = top.document(
        signals=[
            top.signal(name) for name in ("memory.available", "allocatableMemory.available", "pid.available")
        ],
        order=order,
        problems={"journal": "the disk is full"},
    )

    text = "\n".join(top.read(found))

    for expected in (
        "q quits",
        "no pressure",
        "problem: journal",
        "allocata",
        "POD of 59",
        "memcg-eventfd",
        "UTC",
    ):
        assert expected in text
    assert re.search(r"1 kube-system/me\S*…\S*tail-1 ", text)  # a name is told by both of its ends
    assert "off" in text
    assert "no pressure" in text.splitlines()[-2]  # the last decision
    assert "scroll the pods" in text.splitlines()[-1]


def test_in_60_columns_what_matters_less_gives_way():
    found, rates = _seen(320 * MIB, 310 * MIB)

    lines = top.read(found, 60, rates=rates)
    headings = next(line for line in lines if line.startswith("SIGNAL"))

    assert headings.split() == ["SIGNAL", "THRESHOLD", "MARGIN", "RATE", "IN", "STATE"]


def test_a_very_wide_terminal_shows_all_columns_and_a_gauge():
    lines = top.read(top.document(), 200, 50)

    signal = next(line for line in lines if line.startswith("memory.available"))
    assert "[########........|...]" in signal
    assert signal.endswith("memcg-eventfd")


def test_where_not_all_signals_have_room_the_nearest_to_their_thresholds_are_shown():
    margins = {"nodefs.available": 400, "memory.available": 3, "imagefs.available": 200, "pid.available": 1}
    found = top.document(signals=[top.signal(name, available=(100 + m) * MIB) for name, m in margins.items()])

    lines = top.read(found, 100, 13)

    start = next(index for index, line in enumerate(lines) if line.startswith("SIGNAL 3 of 4"))
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == [
        "memory.available",
        "imagefs.available",
        "pid.available",
    ]


def test_pressure_and_evictions_stand_at_the_head():
    found = top.document(
        conditions=[{"condition": "MemoryPressure", "in_force": True, "since": "", "for_seconds": 12.0}],
        in_flight=[
            {
                "pod": "shop/web",
                "uid": "u",
                "resource": "memory",
                "killed_in_seconds": 3.0,
                "given_up_in_seconds": 9.0,
            }
        ],
        dry_run=True,
    )

    head = top.read(found, 100)[:2]

    assert "DRY RUN" in head[0]
    assert head[1] == "MemoryPressure for 12s  evicting shop/web for memory, killed in 3s"


def test_events_are_told_newest_first_the_kernels_own_kills_among_them():
    evicted = top.decision(
        "2026-11-21T08:00:03.000000Z",
        threshold="memory.available<100Mi",
        evictions=[
            {
                "outcome": "killed",
                "pod": "shop/web",
                "process": None,
                "killed_ns": 1_500_000,
                "freed_ns": None,
            }
        ],
    )
    kill = {"time": "2026-11-20T23:59:59.000000Z", "message": "killed java (7)"}
    found = top.document(decisions=[top.decision(), evicted], oom_kills={"counted": {}, "recent": [kill]})

    lines = top.read(found, 100, 40)

    start = next(index for index, line in enumerate(lines) if line.startswith("UTC"))
    assert lines[start + 1 : start + 4] == [
        "08:00:03    memory.available<100Mi: killed shop/web after 1.5 ms",
        "08:00:01    no pressure",
        "11-20 23:59 the kernel's OOM killer: killed java (7)",
    ]


def test_a_daemon_that_is_gone_is_said_to_be_and_the_last_that_was_known_is_dimmed():
    shown = Shown(
        document=top.document(), rates=Rates(), absent_because="Connection refused", absent_seconds=75.0
    )

    lines = frame(shown, 80, 24)

    assert lines[0][0].text == "No answer for 1m15s, asking again: Connection refused"
    assert lines[0][0].style is Style.BAD
    assert {span.style for line in lines[3:] for span in line} == {Style.DIM}


def test_without_any_answer_yet_the_reason_is_folded_and_nothing_is_cut_off():
    because = "/run/reactor/reactor.sock: No such file or directory; is `reactor run` running?"

    lines = top.read(Shown(document=None, rates=Rates(), absent_because=because, keys="q quits"), 40, 24)

    assert because in "".join(lines)
    assert lines[-1] == "q quits"


def test_a_cgroups_name_can_not_write_on_the_screen():
    order = {**top.document()["order"], "first": [top.place(1, "cgroup/\x1b[2Jevil\r\n")]}

    text = "\n".join(top.read(top.document(order=order, node_cgroup="/a\x1b]0;b\x07")))

    assert "\x1b" not in text
    assert r"cgroup/\x1b[2Jevil\x0d\x0a" in text


@given(
    width=st.integers(0, 300),
    height=st.integers(0, 100),
    pods=st.integers(0, 80),
    names=st.text(max_size=60),
)
def test_no_size_and_no_name_breaks_a_frame(width, height, pods, names):
    order = {**top.document()["order"], "first": [top.place(n, names) for n in range(1, pods)], "pods": pods}
    lines = frame(Shown(document=top.document(order=order), rates=Rates()), width, height)

    assert len(lines) <= height
    assert all(sum(len(span.text) for span in line) <= width for line in lines)


def test_swap_traffic_stands_in_the_head_while_there_is_any():
    traffic = {"in_bytes_per_second": 3 * MIB, "out_bytes_per_second": 0, "window_seconds": 10.0}
    lines = top.read(top.document(swap_traffic=traffic))
    assert any("swap in 3Mi/s, out 0/s" in line for line in lines)
    for quiet in (None, traffic | {"in_bytes_per_second": 0}, traffic | {"in_bytes_per_second": None}):
        assert not any("swap" in line for line in top.read(top.document(swap_traffic=quiet)))


def test_rules_are_shown_those_first_that_hold_and_no_part_where_there_are_none():
    rule = {
        "name": "quiet",
        "action": "report",
        "matched": 3,
        "held_in": 0,
        "unhelpful": 0,
        "why_not": "its conditions hold in none of its cgroups",
    }
    thrash = {
        "name": "thrash",
        "action": "evict",
        "held_in": 2,
        "unhelpful": 1,
        "why_not": "it rests for 9 s more",
    }
    lines = top.read(top.document(rules=[rule, rule | thrash]), width=120)
    (head,) = [index for index, line in enumerate(lines) if line.startswith("RULE ")]
    assert ["RULE", "ACTION", "CGROUPS", "HOLDS", "IN"] == lines[head].split()
    assert ["thrash", "evict", "3", "2", "did", "not", "help", "1", "times", "in", "a", "row;"] == lines[
        head + 1
    ].split()[:12]
    assert lines[head + 2].split()[:6] == ["quiet", "report", "3", "0", "its", "conditions"]
    for without in ({}, {"rules": []}):
        assert not any(line.startswith("RULE ") for line in top.read(top.document(**without)))


def test_what_a_rule_did_is_an_event_with_its_name():
    rule = {"name": "thrash", "action": "report", "cgroup": "/apps/a"}
    lines = top.read(top.document(decisions=[top.decision(rule=rule)]))
    assert any("rule thrash: reported /apps/a" in line for line in lines)
