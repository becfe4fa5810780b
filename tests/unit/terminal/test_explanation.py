"""`reactor explain` as a person reads it."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from reactor.terminal.show import kernel_kill_text, process_victims_text, show_explanation

EVICTION: dict[str, Any] = {
    "id": 6,
    "time": "2026-11-22T10:14:13.125792Z",
    "pod": "cgroup/hog",
    "dry_run": False,
    "outcome": "killed",
    "message": "The node was low on resource: memory.",
    "resource": "memory",
    "threshold": {
        "threshold": "memory.available<50Mi",
        "value": 50 << 20,
        "available": 49 << 20,
        "capacity": 256 << 20,
    },
    "wakes": [{"source": "memcg-eventfd"}],
    "timing": {"woke_ns": 0},
    "killed_ns": 1_700_000,
    "freed_ns": 18_600_000,
    "problems": [],
    "ranking": [],
    "reclaimed": [],
    "rule": None,
}


def explained(tmp_path: Path, capsys: pytest.CaptureFixture[str], **differences: Any) -> str:
    """Return what is printed of one eviction, which a daemon's socket tells."""
    return explained_of(tmp_path, capsys, {"evictions": [EVICTION | differences]})


def explained_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], differences: dict[str, Any]) -> str:
    """Return what is printed of an answer, which a daemon's socket tells."""
    empty: dict[str, Any] = {"ranking": [], "oom_kills": [], "slowdowns": [], "rules": [], "rules_acted": []}
    document = {**empty, **differences}
    path = tmp_path / "reactor.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(json.dumps(document).encode() + b"\n")

        answering = threading.Thread(target=answer)
        answering.start()
        assert show_explanation(path, None, "table") == 0
        answering.join()
    return " ".join(capsys.readouterr().out.split())


def test_an_eviction_is_reported_with_when_it_killed_and_freed(tmp_path, capsys):
    text = explained(tmp_path, capsys)

    assert "cgroup/hog was evicted at 2026-11-22T10:14:13.125792Z, decision 6" in text
    assert "woken by memcg-eventfd; killed after 1.7 ms, memory back after 18.6 ms" in text


def test_a_crossing_that_the_loop_found_unasked_is_explained_in_plain_words(tmp_path, capsys):
    text = explained(tmp_path, capsys, wakes=[{"source": "glance"}])

    assert "woken by the 10 ms check; killed" in text


def test_a_pass_that_nothing_woke_is_explained_by_the_start_or_a_reload(tmp_path, capsys):
    assert "woken by the start or a reload; killed" in explained(tmp_path, capsys, wakes=[])


def test_an_outcome_other_than_killed_is_named(tmp_path, capsys):
    text = explained(tmp_path, capsys, outcome="failed", killed_ns=None, freed_ns=None)

    assert "woken by memcg-eventfd; failed" in text


def test_a_dry_run_says_what_would_have_been_evicted_and_not_what_was(tmp_path, capsys):
    text = explained(tmp_path, capsys, dry_run=True, outcome="dry-run", killed_ns=None, freed_ns=None)

    assert "cgroup/hog would have been evicted (dry run) at" in text
    assert "was evicted" not in text


WARRANT = {
    "generation": 7,
    "armed_ns": 1_000_000,
    "crossed_ns": 3_500_000,
    "signalled_ns": 3_547_000,
    "pid": 42,
    "comm": "hog\x1b[0m",
    "refused": None,
}


def test_kill_by_the_kernel_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(explained(tmp_path, capsys, warrant=WARRANT).split())
    assert (
        "killed by the kernel under warrant 7, armed in advance, crossed 2.5 ms later, signalled after 47 us "
        "(process 42, hog" in text
    )
    assert "\x1b" not in text
    assert "the ranking below is the one it was armed with" in text


def test_signal_that_the_kernel_refused_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {**WARRANT, "refused": "Operation not permitted"}
    text = " ".join(explained(tmp_path, capsys, warrant=refused).split())
    assert "the kernel refused to kill under warrant 7" in text
    assert "Operation not permitted; reactor killed the pod itself" in text


def test_warrant_whose_end_was_not_written_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {**WARRANT, "crossed_ns": None, "signalled_ns": None, "pid": None, "comm": None}
    text = " ".join(explained(tmp_path, capsys, warrant=unknown).split())
    assert "killed by the kernel under warrant 7, armed in advance; the ranking" in text


def test_the_eviction_of_one_process_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = {"pid": 42, "name": "tab\x1b[0m", "bytes": 200 << 20}
    amounts = {"credited_bytes": 150 << 20, "returned_bytes": 140 << 20}
    told = {"outcome": "process-killed", "process": process, "pod_lives": True, **amounts}
    text = " ".join(explained(tmp_path, capsys, **told).split())
    assert "cgroup/hog lost one process at 2026-11-22" in text
    assert "one process of it alone: tab\\x1b[0m (process 42, 200Mi); the pod lives on" in text
    assert "the process held 150Mi; the node had 140Mi more afterwards" in text


def test_why_the_whole_pod_was_evicted_in_place_of_one_process_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(explained(tmp_path, capsys, process=None, whole_because="many small ones").split())
    assert "not one process of it, but the whole pod: many small ones" in text


@pytest.mark.parametrize(("pods", "where"), [(0, None), (1, "1 pod"), (3, "3 pods")])
def test_status_counts_the_pods_of_which_one_process_is_killed(pods: int, where: str | None) -> None:
    expected = where and f"process victims: in {where} one process is killed for memory, not the pod"
    assert expected == process_victims_text({"pods": pods})


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"mode": "off"}, None),
        (
            {
                "mode": "hard",
                "state": "armed",
                "detail": "3 of 3 pods known to the kernel",
                "armed_for": "ns/hog",
                "why_none": None,
                "counted": {"withdrawn": 2, "served": 1},
            },
            "kernel kill: armed for ns/hog; warrants so far: 1 served, 2 withdrawn",
        ),
        (
            {
                "mode": "hard",
                "state": "armed",
                "detail": "",
                "armed_for": None,
                "why_none": "no crossing is near",
                "counted": {},
            },
            "kernel kill: no warrant now: no crossing is near; warrants so far: none",
        ),
        (
            {
                "mode": "hard",
                "state": "failed",
                "detail": "the kernel is locked down",
                "armed_for": None,
                "why_none": None,
                "counted": {},
            },
            "kernel kill: failed: the kernel is locked down; warrants so far: none",
        ),
    ],
)
def test_status_says_how_the_kernels_own_kills_stand(told: dict[str, Any], expected: str) -> None:
    assert kernel_kill_text(told) == expected


def test_reclaim_before_an_eviction_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reclaimed = {
        "kind": "pod-memory",
        "unit": "bytes",
        "freed": 20 << 20,
        "wanted": 30 << 20,
        "took_seconds": 1.23,
        "did": ["21Mi to swap from /pods/a"],
        "problems": ["not done within 1 s"],
    }
    text = explained(tmp_path, capsys, reclaimed=[reclaimed])
    assert (
        "before it, a reclaim (pod-memory) freed 20Mi of 30Mi wanted in 1.2 s: "
        "21Mi to swap from /pods/a; problem: not done within 1 s"
    ) in text
    nothing = reclaimed | {"did": [], "problems": []}
    assert "in 1.2 s: nothing was to be had" in explained(tmp_path / "..", capsys, reclaimed=[nothing])


RULE: dict[str, Any] = {
    "name": "full",
    "action": "reclaim",
    "matched": 3,
    "why_not": "it has held in /apps/a for 2 of 5 s",
    "conditions": [{"condition": "usage of the limit >= 90 %", "limit": 90.0, "highest": 95.5}],
    "holds": [{"cgroup": "/apps/a", "for_seconds": 2.2, "values": {"usage of the limit >= 90 %": 95.5}}],
}
ACTED: dict[str, Any] = {
    "id": 7,
    "time": "2026-11-22T10:14:13.125792Z",
    "dry_run": False,
    "evictions": [],
    "reclaim": [],
    "deferred_because": None,
    "timing": {"woke_ns": 0},
    "reclaimed": [{"freed": 8 << 20, "unit": "bytes"}],
    "rule": {
        "name": "full",
        "action": "reclaim",
        "cgroup": "/apps/a",
        "held_seconds": 5.2,
        "for_seconds": 5.0,
        "inputs": [
            {"condition": "usage of the limit >= 90 %", "value": 95.5, "lowest": 91.0, "highest": 97.0}
        ],
    },
}


def test_a_rule_is_explained_by_when_it_acted_and_why_it_does_not_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = explained_of(tmp_path, capsys, {"evictions": [], "rules": [RULE], "rules_acted": [ACTED]})
    assert (
        "decision 7: reclaimed 8Mi from /apps/a rule full (reclaim): held in /apps/a for 5.2 s of 5 s "
        "usage of the limit >= 90 %: 95.5, from 91 to 97 meanwhile "
        "rule full (reclaim) observes 3 cgroups: it has held in /apps/a for 2 of 5 s "
        "usage of the limit >= 90 % (highest 95.5) holds in /apps/a for 2 s: usage of the limit >= 90 %: 95.5"
    ) in said


def test_a_rule_that_evicted_is_not_explained_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evicted = {**ACTED, "evictions": [{"pod": "cgroup/a"}]}
    said = explained_of(tmp_path, capsys, {"evictions": [], "rules": [RULE], "rules_acted": [evicted]})
    assert "decision 7" not in said
