"""What is kept and told of the kernel's own OOM kills."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from reactor.guard.incidents import OomKills
from reactor.guard.node import Node
from reactor.guard.outbox import encode
from reactor.model.kills import OomKill, OomScope
from reactor.model.pods import Pod, QosClass
from reactor.model.thresholds import Observed

MIB = 1 << 20


class Kept:
    """An OomKills and what it has written and counted."""

    def __init__(self) -> None:
        self.known = Node(observed=Observed(stale_seconds=10.0), passes=7)
        self.known.pods = (
            Pod(
                name="web",
                namespace="default",
                uid="uid-web",
                priority=0,
                qos_class=QosClass.BURSTABLE,
                cgroup="/kubepods/pod-web",
            ),
        )
        self.lines: list[Mapping[str, Any]] = []
        self.born: tuple[Pod, ...] = ()
        self.kills = OomKills(self.known, self._write, self._glance)

    def _glance(self) -> None:
        self.known.pods += self.born

    def _write(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self.lines.append(json.loads(encode(make())))


def kill(scope: OomScope = OomScope.OWN_LIMIT, **changed: Any) -> OomKill:
    known = {
        "pid": 42,
        "comm": "java",
        "victim_bytes": 150 * MIB,
        "victim_cgroup": "/kubepods/pod-web/app",
        "limit_cgroup": "/kubepods/pod-web",
        "limit_bytes": 128 * MIB,
        "usage_bytes": 128 * MIB,
    }
    return OomKill(source="ebpf-oom", scope=scope, at_ns=time.monotonic_ns(), **{**known, **changed})


def test_kill_at_a_pods_own_limit_is_reported_as_such_and_not_as_our_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept()
    kept.kills.record(kill())
    (line,) = kept.lines
    assert line["kind"] == "oom-kill"
    assert line["scope"] == "own-limit"
    assert (line["pod"], line["uid"], line["pid"]) == ("default/web", "uid-web", 42)
    assert line["decision"] == 7
    assert "java (pid 42, 150Mi) of default/web at the limit of 128Mi of /kubepods/pod-web" in line["message"]
    assert "faster than us" not in line["message"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_kill_because_the_node_ran_out_is_said_plainly(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    kept.kills.record(kill(OomScope.NODE, limit_cgroup=None, limit_bytes=2048 * MIB, usage_bytes=None))
    (line,) = kept.lines
    assert line["message"].endswith("of the machine: the kernel's OOM killer was faster than us")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_kills_that_were_only_counted_name_no_victim() -> None:
    kept = Kept()
    kept.kills.record(OomKill(source="oom-counters", scope=OomScope.UNKNOWN, at_ns=0, kills=3))
    (line,) = kept.lines
    assert line["pod"] is None
    assert line["message"].startswith("OOM kill of 3 processes, by the kernel's count")
    assert kept.kills.counted[OomScope.UNKNOWN] == 3


def test_victim_in_no_known_pod_is_named_by_its_cgroup() -> None:
    kept = Kept()
    kept.kills.record(kill(victim_cgroup="/system.slice/cron.service"))
    kept.kills.record(kill(victim_cgroup="/kubepods/pod-web-2"))
    kept.kills.record(kill(victim_cgroup=None))
    assert [line["pod"] for line in kept.lines] == [None, None, None]
    assert "of /system.slice/cron.service" in kept.lines[0]["message"]
    assert "of a cgroup that is not known" in kept.lines[2]["message"]


def test_victim_that_was_being_evicted_is_reported_as_such() -> None:
    kept = Kept()
    kept.known.under_way.began("uid-web", time.monotonic_ns())
    kept.kills.record(kill())
    assert kept.lines[0]["being_evicted"]
    assert "which was being evicted" in kept.lines[0]["message"]


def test_being_evicted_is_judged_by_the_moment_of_the_kill_and_not_of_its_telling() -> None:
    kept = Kept()
    before_both = kill()
    kept.known.under_way.began("uid-web", time.monotonic_ns())
    while_evicted = kill()
    kept.known.under_way.ended("uid-web", time.monotonic_ns())
    after_both = kill()
    for one in (before_both, while_evicted, after_both):
        kept.kills.record(one)
    assert [False, True, False] == [line["being_evicted"] for line in kept.lines]


def test_each_scope_is_counted_for_itself() -> None:
    kept = Kept()
    for scope in (OomScope.NODE, OomScope.OWN_LIMIT, OomScope.OWN_LIMIT):
        kept.kills.record(kill(scope))
    assert (kept.kills.counted[OomScope.NODE], kept.kills.counted[OomScope.OWN_LIMIT]) == (1, 2)


def test_pod_that_is_younger_than_the_last_housekeeping_is_named() -> None:
    kept = Kept()
    kept.born = (replace(kept.known.pods[0], name="young", uid="uid-young", cgroup="/kubepods/pod-young"),)
    kept.kills.record(kill(victim_cgroup="/kubepods/pod-young"))
    kept.kills.record(kill())
    assert [line["pod"] for line in kept.lines] == ["default/young", "default/web"]
    assert kept.known.pods[1:] == kept.born  # looked for once, where it was not known
