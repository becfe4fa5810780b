from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest

from reactor.tables import Screen, Table, moment
from reactor.terminal.show import (
    filesystems_table,
    next_text,
    notifications_text,
    reclaimed_table,
    rule_lines,
    rules_table,
    signals_table,
    swap_traffic_text,
    time_left_texts,
)

GIB = 1 << 30
NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def printed(table: Table, width: int = 80) -> list[str]:
    return list(table.lines(width))


def signal(name: str, *amounts: int, available: int = 5 * GIB) -> dict[str, Any]:
    thresholds = [
        {"kind": "hard", "amount": one, "margin": available - one, "met": False, "below_for_seconds": None}
        for one in amounts
    ]
    return {
        "signal": name,
        "unit": "bytes",
        "available": available,
        "capacity": 10 * GIB,
        "thresholds": thresholds,
        "source": {"name": "filesystems", "health": "armed"},
    }


def filesystem(name: str, path: str, device: str | None = "8:1", **more: Any) -> dict[str, Any]:
    return {
        "filesystem": name,
        "path": path,
        "device": device,
        "kind": "ext4",
        "mount_point": "/srv",
        "read_only": False,
        "fills_by_bytes_per_second": 0,
        "fills_by_inodes_per_second": 0,
        "seconds_to_threshold": None,
        **more,
    }


def test_signal_of_the_same_disk_under_another_name_is_shown_once_unless_it_has_a_threshold_of_its_own() -> (
    None
):
    lines = printed(
        signals_table(
            [
                signal("nodefs.available", GIB),
                signal("imagefs.available"),
                signal("imagefs.available", 2 * GIB),
                signal("containerfs.available", GIB),
                signal("containerfs.available", available=GIB),
            ],
            120,
        ),
        120,
    )
    assert ["nodefs.available", "imagefs.available", "containerfs.available"] == [
        line.split()[0] for line in lines[1:]
    ]
    assert "2Gi" in lines[2]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_name_of_a_signal_is_never_broken_and_no_line_is_too_long(width: int) -> None:
    one = {
        **signal("allocatableMemory.available", GIB),
        "source": {"name": "memcg-eventfd", "health": "degraded"},
    }
    lines = printed(signals_table([one], width), width)
    assert lines[1].startswith(" allocatableMemory.available ")
    assert max(map(len, lines)) <= width
    assert ("SOURCE" in lines[0]) == (width >= 100)


def test_path_is_reported_once_by_all_its_names_with_the_nearest_threshold() -> None:
    names = [
        filesystem("nodefs", "/srv", fills_by_bytes_per_second=GIB, seconds_to_threshold=7300.0),
        filesystem("imagefs", "/srv", seconds_to_threshold=90.0),
        filesystem("containerfs", "/srv/layers"),
        filesystem("other", "/gone", None),
    ]
    _, first, second, third = printed(filesystems_table({"layout": "single", "filesystems": names}), 100)
    assert ["nodefs,", "imagefs", "/srv", "ext4", "8:1", "1Gi/s", "1m30s"] == first.split()
    assert ["containerfs", "/srv/layers", "ext4", "8:1", "on", "/srv", "-", "-"] == second.split()
    assert "unknown" in third


def test_what_was_reclaimed_is_reported_with_what_was_wanted_and_what_went_wrong() -> None:
    one = {
        "kind": "commands",
        "unit": "bytes",
        "time": "2020-01-01T00:00:00.000000Z",
        "signal": "nodefs.available",
        "freed": GIB,
        "wanted": None,
        "took_seconds": 0.25,
        "did": ["/bin/clean"],
        "problems": ["exit status 1"],
    }
    text = " ".join(printed(reclaimed_table([one]), 120))
    for part in (
        "commands",
        "2020-01-01 00:00Z",
        "1Gi",
        "unknown",
        "0.2 s",
        "/bin/clean; problem: exit status 1",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "-"),
        ("2026-11-21T08:59:01.020300Z", "08:59:01.020Z"),
        ("2026-11-20T08:59:01.020300Z", "2026-11-20 08:59Z"),
    ],
)
def test_instant_of_today_is_a_time_and_any_other_a_date(text: str | None, told: str) -> None:
    assert told == moment(text, NOW)


def test_notifications_are_counted_by_channel_and_not_mentioned_before_there_was_one() -> None:
    nothing = {"sent": 0, "failed": 0, "dropped": 0, "waiting": 0}
    quiet = [{"channel": "wall", **nothing}]
    assert notifications_text([]) is None
    assert notifications_text(quiet) is None
    told = [
        *quiet,
        {"channel": "command", **nothing, "sent": 2},
        {"channel": "webhook", **nothing, "failed": 1, "dropped": 7, "waiting": 256},
    ]
    assert "notifications: command 2 sent; webhook 1 failed, 7 dropped, 256 waiting" == notifications_text(
        told
    )


def test_a_path_is_never_broken_however_narrow_the_screen_is() -> None:
    path = "/srv/containers/storage/of-a-tenant-with-a-long-name/overlay-images/and-then-some-more/data"
    document = {"layout": "single", "filesystems": [filesystem("nodefs", path), filesystem("imagefs", "/")]}
    paper = io.StringIO()
    screen = Screen(file=paper, width=40)
    screen.print(filesystems_table(document, whole="PATH"))
    screen.say(
        f"problem: manifests: {path}/web.yaml: got nothing; accepted: a pod, and nothing else than a pod"
    )
    table, _, said = paper.getvalue().partition("problem")
    assert path in table
    assert "FILESYSTEM (single)" in table
    assert f"{path}/web.yaml" in said
    assert [line for line in said.splitlines() if len(line) > 40] == [f"{path}/web.yaml:"]


@pytest.mark.parametrize(("columns", "width"), [(None, 120), ("80", 80), ("200", 200)])
def test_a_pipe_is_as_wide_as_columns_says(
    columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert width == Screen().width


def test_swap_traffic_is_shown_where_it_is_known() -> None:
    told = {"in_bytes_per_second": 3 << 20, "out_bytes_per_second": 0, "window_seconds": 10.0}
    assert swap_traffic_text(told) == "swap traffic: 3Mi/s in, 0/s out in the last 10 s"
    assert swap_traffic_text(None) is None
    assert swap_traffic_text(told | {"out_bytes_per_second": None}) is None


RULE = {
    "name": "thrash",
    "action": "evictWorst",
    "for_seconds": 30.0,
    "matched": 300,
    "conditions": [
        {"condition": "pressure memory full avg10 >= 60 %", "limit": 60.0, "highest": 71.25},
        {"condition": "memory.events max >= 10 within 30 s", "limit": 10.0, "highest": None},
    ],
    "held_in": 3,
    "holds": [{"cgroup": "/apps/a", "for_seconds": 12.3, "values": {}}],
    "cooldown_left_seconds": 48.2,
}


def test_rules_are_shown_with_the_highest_values_and_where_they_hold() -> None:
    _, row = printed(rules_table([RULE]), 200)
    assert row.split("  ")[0].strip() == "thrash"
    assert "pressure memory full avg10 >= 60 % (highest 71.25); memory.events max >= 10 within 30 s " in row
    assert row.endswith("/apps/a for 12 of 30 s and 2 more; acts again in 48 s")
    at_rest = {**RULE, "held_in": 0, "holds": [], "cooldown_left_seconds": 0.0}
    assert printed(rules_table([at_rest]), 200)[1].endswith(" -")


def test_an_eviction_by_a_rule_is_explained_by_its_inputs() -> None:
    inputs = [{"condition": "usage of the limit >= 90 %", "value": 95.5, "lowest": 91.0, "highest": 97.25}]
    rule = {**RULE, "by": "pgscan", "cgroup": "/apps", "held_seconds": 31.2, "inputs": inputs}
    assert [
        "rule thrash (evictWorst by pgscan): held in /apps for 31.2 s of 30 s",
        "  usage of the limit >= 90 %: 95.5, from 91 to 97.25 meanwhile",
    ] == list(rule_lines(rule))
    assert "rule thrash (evict): held" in next(rule_lines({**rule, "action": "evict"}))
    assert [] == list(rule_lines(None))


def test_the_time_left_is_said_with_its_bounds_or_why_it_is_not_foreseeable() -> None:
    known = {
        "threshold": "memory.available<100Mi",
        "seconds": 12.34,
        "earliest_seconds": 10.0,
        "latest_seconds": 15.0,
        "falls_by_bytes_per_second": 25 << 20,
        "because": None,
    }
    unknown = {**known, "seconds": None, "because": "the fall has paused"}
    assert list(time_left_texts({"signals": [known, unknown]})) == [
        "time left until memory.available<100Mi: 12.3 s (10.0 to 15.0 s); it falls by 25Mi/s",
        "time left until memory.available<100Mi: not foreseeable: the fall has paused",
    ]
    assert list(time_left_texts(None)) == []


def test_the_next_pod_is_the_first_that_is_not_being_evicted() -> None:
    def place(pod: str, *, being_evicted: bool = False, critical: str | None = None) -> dict[str, Any]:
        return {
            "pod": pod,
            "because": "uses 7Mi",
            "being_evicted": being_evicted,
            "critical_because": critical,
        }

    def text(*first: dict[str, Any]) -> str | None:
        return next_text({"signal": "memory.available", "first": first})

    hog = place("cgroup/hog", being_evicted=True)
    assert text(hog, place("cgroup/web")) == "next for memory.available: cgroup/web (uses 7Mi)"
    never = text(place("cgroup/db", critical="pods.never"))
    assert never == "next for memory.available: no pod can be evicted, such as cgroup/db (uses 7Mi)"
    assert [text(), text(hog), next_text(None)] == [None] * 3
