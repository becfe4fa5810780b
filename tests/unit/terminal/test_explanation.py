"""`reactor explain` as a person reads it."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from reactor.terminal.show import show_explanation

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
}


def explained(tmp_path: Path, capsys: pytest.CaptureFixture[str], **differences: Any) -> str:
    """Return what is printed of one eviction, which a daemon's socket tells."""
    document = {"ranking": [], "evictions": [EVICTION | differences], "oom_kills": [], "slowdowns": []}
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


def test_an_eviction_is_told_with_when_it_killed_and_freed(tmp_path, capsys):
    text = explained(tmp_path, capsys)

    assert "cgroup/hog was evicted at 2026-11-22T10:14:13.125792Z, decision 6" in text
    assert "woken by memcg-eventfd; killed after 1.7 ms, freed after 18.6 ms" in text


def test_an_outcome_other_than_killed_is_named(tmp_path, capsys):
    text = explained(tmp_path, capsys, outcome="failed", killed_ns=None, freed_ns=None)

    assert "woken by memcg-eventfd; failed" in text


def test_a_dry_run_says_what_would_have_been_evicted_and_not_what_was(tmp_path, capsys):
    text = explained(tmp_path, capsys, dry_run=True, outcome="dry-run", killed_ns=None, freed_ns=None)

    assert "cgroup/hog would have been evicted (dry run) at" in text
    assert "was evicted" not in text
