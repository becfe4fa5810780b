from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.act.reap import KillReport, ReapReport
from reactor.errors import RefusedError
from reactor.guard.node_shutdown import (
    NAME,
    NodeShutdown,
    ShutdownTermination,
    ShutdownTimes,
    ShutdownWatch,
    ShutdownWatchError,
    shutdown_file,
)
from reactor.link.shutdown import GO_ON, ShutdownNews, ShutdownNewsKind, write_news
from reactor.model.pods import Pod
from reactor.model.settings import KubernetesSettings, Settings, ShutdownGroup
from reactor.supervisor import Nursery, Supervisor
from tests.support.waiting import until

INHIBITED, NOT_INHIBITED, PREPARING, CANCELLED, PROBLEM = ShutdownNewsKind
GROUPS = (
    ShutdownGroup(priority=0, seconds=20),
    ShutdownGroup(priority=1000, seconds=10),
    ShutdownGroup(priority=2_000_000_000, seconds=5),
)


def _pod(name: str, priority: int = 0, *, grace_seconds: int = 30, critical: str | None = None) -> Pod:
    return Pod(
        name=name,
        namespace="cgroup",
        uid=name,
        priority=priority,
        termination_grace_period_seconds=grace_seconds,
        critical_because=critical,
        cgroup=f"/{name}",
    )


class Kills:
    """Pods that end by themselves after their time in `ends_in`, and else when they are killed."""

    def __init__(self) -> None:
        self.ends_in: dict[str, float] = {}
        self.refuses: set[str] = set()
        self.asked: list[tuple[float, str]] = []
        self.killed: list[tuple[float, str]] = []
        self.dead: set[str] = set()

    def prepare(self, pods: Sequence[Pod]) -> None:
        raise AssertionError(pods)

    def kill_now(self, pod: Pod) -> KillReport:
        raise AssertionError(pod)

    async def reap(self, pod: Pod, deadline_seconds: float = 10.0) -> ReapReport:  # noqa: ARG002 - as Kills has it
        return ReapReport(freed_ns=1, problems=())

    async def terminate(
        self, pod: Pod, grace_period_seconds: float, still_wanted: Callable[[], bool] = lambda: True
    ) -> KillReport | None:
        if pod.name in self.refuses:
            raise RefusedError(f"cgroup {pod.name!r} holds process 1, init")
        self.asked.append((trio.current_time(), pod.name))
        own_seconds = self.ends_in.get(pod.name, float("inf"))
        await trio.sleep(min(own_seconds, grace_period_seconds))
        if own_seconds <= grace_period_seconds or not still_wanted():
            self.dead.add(pod.name)
            return None
        self.killed.append((trio.current_time(), pod.name))
        self.dead.add(pod.name)
        return KillReport(killed_ns=1, processes=1)


class Watch:
    """The process that watches logind, as it is seen from here."""

    def __init__(self) -> None:
        self.pid: int | None = 7
        self.inhibited_seconds: int | None = 35
        self.problem: str | None = None
        self.wanted: list[tuple[int, str | None]] = []
        self.went_on_at: list[float] = []

    async def run(self, wanted_seconds: int, kubelet_config_path: str | None) -> None:
        self.wanted.append((wanted_seconds, kubelet_config_path))
        await trio.sleep_forever()

    async def go_on(self) -> None:
        self.went_on_at.append(trio.current_time())


class Reporter:
    def __init__(self) -> None:
        self.reported: list[str] = []

    def shuts_down(self, *, is_under_way: bool) -> None:
        self.reported.append("began" if is_under_way else "cancelled")

    def shutdown_ends(self, ending: ShutdownTermination, nursery: Nursery) -> None:  # noqa: ARG002 - as ShutdownReporter has it
        self.reported.append(ending.pod.name)


class Node:
    def __init__(
        self,
        directory: Path,
        pods: Sequence[Pod],
        settings: Settings | None = None,
        *,
        wait_written: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        self.pods = list(pods)
        self.kills = Kills()
        self.watch = Watch()
        self.reporter = Reporter()
        self.lines: list[dict] = []
        self.file = shutdown_file(directory / "journal.jsonl")
        self.settings = settings or Settings(shutdown_groups=GROUPS)
        self.shutdown = NodeShutdown(
            settings=self.settings,
            kills=self.kills,
            pods=lambda: tuple(self.pods),
            may_be_populated=lambda pod: pod.name not in self.kills.dead,
            write=lambda make: self.lines.append(dict(make())),
            wait_written=wait_written,
            file=self.file,
            reporter=self.reporter,
            watch=self.watch,
        )

    @asynccontextmanager
    async def running(self):
        supervisor = Supervisor()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.file.run)
            nursery.start_soon(self.shutdown.run, supervisor.jobs(nursery, "pods at shutdown"))
            await until(lambda: self.watch.wanted or not self.settings.shutdown_groups, "logind is watched")
            yield self
            assert not supervisor.problems
            nursery.cancel_scope.cancel()

    def say(self, kind: ShutdownNewsKind) -> None:
        self.shutdown.on_news(ShutdownNews(kind=kind))

    async def until_over(self) -> None:
        await until(lambda: self.watch.went_on_at, "the shutdown goes on", seconds=120.0)

    def phases(self) -> list[str]:
        return [line["phase"] for line in self.lines]

    def outcomes(self) -> dict[str, str]:
        groups = [line for line in self.lines if line["phase"] == "group"]
        return {one["pod"].rpartition("/")[2]: one["outcome"] for group in groups for one in group["pods"]}


async def test_groups_end_in_order_and_each_waits_no_longer_than_its_pods(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [_pod("critical", 2_000_000_000), _pod("low"), _pod("high", 1000)])
    node.kills.ends_in = {"low": 3.0, "high": 1.0, "critical": 0.5}
    async with node.running():
        node.say(PREPARING)
        await node.until_over()
    at = {name: seconds for seconds, name in node.kills.asked}
    assert ["low", "high", "critical"] == [name for _, name in node.kills.asked]
    assert at["high"] - at["low"] == pytest.approx(3.0, abs=0.1)
    assert at["critical"] - at["high"] == pytest.approx(1.0, abs=0.1)
    assert dict.fromkeys(("low", "high", "critical"), "terminated") == node.outcomes()
    assert ["began", "group", "group", "group", "ended"] == node.phases()


async def test_a_pod_that_does_not_end_is_killed_when_its_groups_time_is_over_and_no_sooner(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(
        tmp_path, [_pod("stubborn", grace_seconds=100), _pod("short", grace_seconds=4), _pod("high", 1000)]
    )
    node.kills.ends_in = {"high": 1.0}
    async with node.running():
        node.say(PREPARING)
        await node.until_over()
    began = node.kills.asked[0][0]
    killed = {name: seconds - began for seconds, name in node.kills.killed}
    assert {"stubborn", "short"} == killed.keys()
    assert killed["short"] == pytest.approx(4.0, abs=0.1)
    assert killed["stubborn"] == pytest.approx(20.0, abs=0.1)
    assert {"stubborn": "killed", "short": "killed", "high": "terminated"} == node.outcomes()
    high = next(seconds for seconds, name in node.kills.asked if name == "high") - began
    assert high == pytest.approx(20.0, abs=0.2)


async def test_without_a_pod_a_shutdown_goes_on_at_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [])
    async with node.running():
        began = trio.current_time()
        node.say(PREPARING)
        await node.until_over()
        assert node.watch.went_on_at[0] - began < 5.0


async def test_a_pod_that_came_meanwhile_ends_with_its_group_if_that_is_to_come(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [_pod("low")])
    node.kills.ends_in = {"low": 3.0, "late low": 1.0, "late high": 1.0}
    async with node.running():
        node.say(PREPARING)
        await trio.sleep(1.0)
        node.pods += [_pod("late low"), _pod("late high", 1000)]
        await node.until_over()
    assert ["low", "late high"] == [name for _, name in node.kills.asked]


async def test_a_cancelled_shutdown_kills_no_pod_any_more_and_the_next_one_does(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [_pod("low"), _pod("high", 1000)])
    async with node.running():
        node.say(PREPARING)
        await trio.sleep(5.0)
        node.say(CANCELLED)
        assert not node.shutdown.is_under_way
        await trio.sleep(60.0)
        assert [] == node.kills.killed
        assert [] == node.watch.went_on_at
        assert ["low"] == [name for _, name in node.kills.asked]
        assert ["began", "cancelled", "group"] == node.phases()
        assert "waiting" == node.shutdown.document()["state"]
        assert node.shutdown.document()["last"]["cancelled"]
        node.kills.dead.clear()
        node.say(PREPARING)
        await node.until_over()
        assert {"low", "high"} == {name for _, name in node.kills.killed}
    assert ["began", "low", "cancelled", "began", "low", "high"] == node.reporter.reported


async def test_the_cancellation_of_a_shutdown_is_reported_though_a_dry_run_has_begun_meanwhile(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [_pod("low")])
    async with node.running():
        node.say(PREPARING)
        await trio.sleep(5.0)
        node.shutdown.order(replace(node.settings, dry_run=True))
        node.say(CANCELLED)
    assert ["began", "low", "cancelled"] == node.reporter.reported


async def test_a_shutdown_that_is_reported_twice_is_one(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [_pod("low")])
    node.kills.ends_in = {"low": 1.0}
    async with node.running():
        node.say(PREPARING)
        node.say(PREPARING)
        await node.until_over()
        node.say(PREPARING)
        await trio.sleep(1.0)
    assert 1 == len(node.kills.asked)
    assert 1 == node.phases().count("began")


async def test_a_dry_run_ends_no_pod_and_holds_nothing_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [_pod("low")], Settings(shutdown_groups=GROUPS, dry_run=True))
    async with node.running():
        began = trio.current_time()
        node.say(PREPARING)
        await node.until_over()
        assert node.watch.went_on_at[0] - began < 5.0
        assert [] == node.kills.asked
        node.say(CANCELLED)
        node.shutdown.order(Settings(shutdown_groups=GROUPS))
        await until(lambda: len(node.watch.wanted) == 2, "logind is asked once more")
    assert {"low": "dry-run"} == node.outcomes()
    assert ["cancelled"] == node.reporter.reported
    # logind's maximum is not raised for what holds nothing up.
    assert [0, sum(group.seconds for group in GROUPS)] == [seconds for seconds, _ in node.watch.wanted]


async def test_what_the_shutdown_itself_needs_and_what_is_never_evicted_is_left_to_systemd(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    pods = [
        _pod("dbus.service"),
        _pod("systemd-logind.service"),
        _pod("systemd-journald.service", 2_000_000_000),
        _pod("omitted.service", critical="user.oomd_omit"),
        _pod("critical.service", 2_000_000_000, critical="priority 2000000000"),
        _pod("web.service"),
    ]
    node = Node(tmp_path, pods)
    async with node.running():
        node.say(PREPARING)
        await node.until_over()
    assert {"critical.service", "web.service"} == {name for _, name in node.kills.asked}


@pytest.mark.parametrize("namespace", ["shop", "cgroup"])
async def test_no_name_namespace_or_mark_of_a_kubernetes_pod_keeps_it_out_of_a_shutdown(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, namespace: str
) -> None:
    """Its tenant chooses its names, some that units have; and systemd stops none of the kubelet's pods."""
    pods = [_pod("dbus.service"), _pod("init.scope"), _pod("static", critical="static pod"), _pod("web")]
    settings = Settings(shutdown_groups=GROUPS, kubernetes=KubernetesSettings())
    node = Node(tmp_path, [replace(pod, namespace=namespace) for pod in pods], settings)
    async with node.running():
        node.say(PREPARING)
        await node.until_over()
    assert {pod.name for pod in pods} == {name for _, name in node.kills.asked}


async def test_a_pod_that_reactor_must_not_touch_is_spared_and_the_others_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [_pod("own"), _pod("other")])
    node.kills.refuses = {"own"}
    async with node.running():
        node.say(PREPARING)
        await node.until_over()
    assert {"own": "spared", "other": "killed"} == node.outcomes()


async def test_the_times_of_a_shutdown_are_on_the_disk_before_it_goes_on(tmp_path: Path) -> None:
    node = Node(tmp_path, [])
    async with node.running():
        node.say(PREPARING)
        await node.until_over()
        document = json.loads((tmp_path / NAME).read_text())
    assert document["startTime"] <= document["endTime"]
    assert document["cancelled"] is False


async def test_a_shutdown_that_was_cut_off_is_reported_at_the_next_start(tmp_path: Path) -> None:
    first = Node(tmp_path, [_pod("low")])
    async with first.running():
        first.say(PREPARING)
        await until((tmp_path / NAME).exists, "the times are saved")
    next_one = Node(tmp_path, [])
    async with next_one.running():
        document = next_one.shutdown.document()
        assert document["last_was_cut_off"]
        assert next_one.shutdown.times()["start"] > 0.0
        assert 0.0 == next_one.shutdown.times()["end"]
        await until(lambda: next_one.phases() == ["cut off"], "it is journaled")
        next_one.say(PREPARING)
        await next_one.until_over()
        assert not next_one.shutdown.document()["last_was_cut_off"]


async def test_a_shutdown_that_was_cut_off_is_journaled_once_and_shown_until_the_next(tmp_path: Path) -> None:
    shutdown_file(tmp_path / "journal").save(ShutdownTimes(start_unix_seconds=1000.0))
    first = Node(tmp_path, [])
    async with first.running():
        await until(lambda: _is_reported(tmp_path), "it is known to be journaled")
        assert ["cut off"] == first.phases()
    second = Node(tmp_path, [])
    async with second.running():
        document = second.shutdown.document()
        assert document["last_was_cut_off"]
        assert document["last"] == first.shutdown.document()["last"]
        second.say(PREPARING)
        await second.until_over()
    assert ["began", "ended"] == second.phases()


async def test_a_shutdown_that_was_cut_off_is_journaled_again_where_the_line_was_not_safe(
    tmp_path: Path,
) -> None:
    shutdown_file(tmp_path / "journal").save(ShutdownTimes(start_unix_seconds=1000.0))
    for node in (Node(tmp_path, [], wait_written=trio.sleep_forever) for _ in range(2)):
        async with node.running():
            await until(partial(_journaled_cut_off, node), "it is journaled")
    assert not _is_reported(tmp_path)


async def test_a_shutdown_that_begins_before_the_line_of_the_last_is_safe_keeps_its_own_times(
    tmp_path: Path,
) -> None:
    shutdown_file(tmp_path / "journal").save(ShutdownTimes(start_unix_seconds=1000.0))
    safe = trio.Event()
    node = Node(tmp_path, [_pod("low")], wait_written=safe.wait)
    async with node.running():
        await until(lambda: node.phases() == ["cut off"], "it is journaled")
        node.say(PREPARING)
        await until(lambda: node.kills.asked, "its pods end")
        safe.set()
        await trio.testing.wait_all_tasks_blocked()
        assert node.shutdown.times()["start"] > 1000.0


def _journaled_cut_off(node: Node) -> bool:
    return node.phases() == ["cut off"]


def _is_reported(directory: Path) -> bool:
    return json.loads((directory / NAME).read_text()).get("reported") is True


@pytest.mark.parametrize("end_unix_seconds", [1020.5, 400.0], ids=["later", "its clock was set back"])
async def test_a_shutdown_that_came_to_its_end_is_not_reported_as_cut_off(
    tmp_path: Path, end_unix_seconds: float
) -> None:
    times = ShutdownTimes(start_unix_seconds=1000.0, end_unix_seconds=end_unix_seconds)
    shutdown_file(tmp_path / "journal").save(times)
    node = Node(tmp_path, [])
    async with node.running():
        assert not node.shutdown.document()["last_was_cut_off"]
        assert {"start": 1000.0, "end": end_unix_seconds} == node.shutdown.times()
        assert [] == node.phases()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"version": 1, "startTime": 5, "endTime": null, "cancelled": false}',
        b'{"version": 1, "startTime": "2026-01-01T00:00:00", "endTime": null, "cancelled": false}',
        b'{"version": 1, "startTime": "2026-01-01T00:00:00Z"}',
        b"x" * 10_000,
    ],
)
async def test_a_file_that_can_not_be_read_is_a_problem_and_no_more(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).touch(0o600)
    (tmp_path / NAME).write_bytes(content)
    node = Node(tmp_path, [])
    async with node.running():
        assert "started without it" in node.shutdown.problems["shutdown file"]
        assert not node.shutdown.document()["last_was_cut_off"]


async def test_other_groups_have_logind_asked_again_but_not_while_pods_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [_pod("low")])
    async with node.running():
        assert [(35, None)] == node.watch.wanted
        node.shutdown.order(Settings(shutdown_groups=GROUPS[:1]))
        await trio.sleep(1.0)
        assert [(35, None), (20, None)] == node.watch.wanted
        node.say(PREPARING)
        await trio.sleep(1.0)
        node.shutdown.order(Settings())
        await trio.sleep(1.0)
        assert "off" == node.shutdown.document()["state"]
        assert node.shutdown.is_under_way
        node.say(CANCELLED)
        await trio.sleep(1.0)
        assert not node.shutdown.is_under_way
    assert [(35, None), (20, None)] == node.watch.wanted


async def test_without_groups_logind_is_not_asked(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node(tmp_path, [], Settings())
    async with node.running():
        await trio.sleep(5.0)
        node.say(PREPARING)
    assert [] == node.watch.wanted
    assert "off" == node.shutdown.document()["state"]


def _fake(script: str) -> tuple[str, ...]:
    """Return the command of a process that runs this, with its end of the pair as `guard`."""
    head = "import os, socket, sys, time; guard = socket.socket(fileno=os.dup(0)); "
    return (sys.executable, "-S", "-c", head + script)


def _sent(*news: ShutdownNews) -> str:
    return "".join(f"guard.send({write_news(one)!r}); " for one in news)


async def test_what_the_process_says_is_passed_on_and_kept() -> None:
    heard: list[ShutdownNews] = []
    script = _sent(
        ShutdownNews(kind=INHIBITED, seconds=35),
        ShutdownNews(kind=PROBLEM, text="too short"),
        ShutdownNews(kind=PREPARING),
    )
    watch = ShutdownWatch(heard.append, command=_fake(f"{script}guard.recv(1)"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, 30, None)
        await until(lambda: len(heard) == 3, "all is heard")
        assert (35, "too short") == (watch.inhibited_seconds, watch.problem)
        assert watch.pid is not None
        nursery.cancel_scope.cancel()
    assert [INHIBITED, PROBLEM, PREPARING] == [one.kind for one in heard]
    assert (None, None, None) == (watch.pid, watch.inhibited_seconds, watch.problem)


async def test_what_is_no_message_is_counted_and_begins_no_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[ShutdownNews] = []
    garbage = [b"\1\3", b"x" * 16, b"\0" * 400, write_news(ShutdownNews(kind=PREPARING, seconds=7))]
    script = "".join(f"guard.send({one!r}); " for one in garbage) + _sent(ShutdownNews(kind=NOT_INHIBITED))
    watch = ShutdownWatch(heard.append, command=_fake(f"{script}guard.recv(1)"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, 30, None)
        await until(lambda: heard, "the last message")
        nursery.cancel_scope.cancel()
    assert [NOT_INHIBITED] == [one.kind for one in heard]
    assert len(garbage) == watch.refused
    assert 1 == caplog.text.count("a message is refused")


async def test_a_process_that_ends_is_named_with_how_it_ended() -> None:
    watch = ShutdownWatch(lambda _: None, command=_fake("sys.exit(3)"))
    with pytest.raises(ShutdownWatchError, match="status 3"):
        await watch.run(30, None)


async def test_the_process_hears_that_the_shutdown_may_go_on_and_what_is_wanted() -> None:
    heard: list[ShutdownNews] = []
    script = (
        f"assert guard.recv(64) == {GO_ON!r}; assert sys.argv[1:] == ['30', '/kubelet.yaml']; "
        f"{_sent(ShutdownNews(kind=CANCELLED))}guard.recv(1)"
    )
    watch = ShutdownWatch(heard.append, command=_fake(script))
    await watch.go_on()  # without a process there is no lock either
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, 30, "/kubelet.yaml")
        await until(lambda: watch.pid is not None, "the process runs")
        await watch.go_on()
        await until(lambda: heard, "its answer")
        nursery.cancel_scope.cancel()
    assert [CANCELLED] == [one.kind for one in heard]


async def test_a_flood_of_messages_is_read_at_a_bounded_pace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: list[ShutdownNews] = []
    one = write_news(ShutdownNews(kind=PREPARING))
    watch = ShutdownWatch(
        heard.append, command=_fake(f"[guard.send({one!r}) for _ in range(116)]; guard.recv(1)")
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, 30, None)
        began = trio.current_time()
        await until(lambda: len(heard) == 116, "all are heard", seconds=1e9, pause_seconds=0.1)
        assert trio.current_time() - began >= 9.0
        pid = watch.pid
        nursery.cancel_scope.cancel()
    # The clock jumps over the time in which its end is awaited.
    assert pid is not None
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)  # noqa: ASYNC222 - it was killed
