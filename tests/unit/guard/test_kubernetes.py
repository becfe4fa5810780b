"""The daemon's part in a cluster, against an API server that keeps one pod and one node."""

from __future__ import annotations

import builtins
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import trio

from reactor.act.kill import KillPath
from reactor.errors import ConfigError
from reactor.guard.eviction_reports import api_uid
from reactor.guard.kubernetes import Cluster, node_name
from reactor.guard.optional import cluster_of
from reactor.guard.record import EvictionAttempt, PassRecord, StageTimes
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.model.decisions import Decision, Eviction, Snapshot
from reactor.model.oom import OomKill, OomScope
from reactor.model.pods import Pod
from reactor.model.settings import KubernetesSettings, Settings
from reactor.model.signals import NodeCondition, Resource, Signal
from reactor.model.thresholds import Threshold, ThresholdValue
from reactor.supervisor import Supervisor
from reactor.terminal import show
from tests.support.api_faults import Asked, FaultServer, Reply, chunk, line, pod_document
from tests.support.part_faults import PartFaults
from tests.support.waiting import until

_POD = Pod(name="web", namespace="default", uid="uid-web", cgroup=None)


class _Server:
    """Lists, watches, patches and takes events; what comes is kept."""

    def __init__(self) -> None:
        self.pod = pod_document("web")
        self.events: list[Any] = []
        self.node_patches: list[Any] = []
        self.changed = trio.Event()

    def __call__(self, asked: Asked) -> Reply:
        if asked.method == "POST":
            self.events.append(asked.body)
            return Reply(status=201, body=asked.body)
        if asked.method == "PATCH":
            if "/pods/" in asked.path:
                self.pod["status"] = {**self.pod["status"], **asked.body["status"]}
                self.changed.set()
                return Reply(body=self.pod)
            self.node_patches.append(asked.body)
            return Reply(body={})
        if asked.query.get("watch"):
            return Reply(after=self._watch if asked.path.endswith("/pods") else _nothing)
        node = {"metadata": {"name": "one", "resourceVersion": "5"}}
        items = [self.pod] if asked.path.endswith("/pods") else [node]
        return Reply(body={"metadata": {"resourceVersion": "9"}, "items": items})

    async def _watch(self, stream: trio.SocketStream) -> None:
        await self.changed.wait()
        told = {**self.pod, "metadata": {**self.pod["metadata"], "resourceVersion": "10"}}
        await stream.send_all(chunk(line("MODIFIED", told)))
        await trio.sleep_forever()


async def _nothing(_: trio.SocketStream) -> None:
    await trio.sleep_forever()


def _cgroups(directory: Path) -> CgroupTree:
    """Return a hierarchy without any cgroup."""
    root = directory / "cgroup"
    root.mkdir()
    return CgroupTree(version=CgroupVersion.V2, memory_root=root)


def _cluster(directory: Path, url: str, supervisor: Supervisor | None = None, **changes: Any) -> Cluster:
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(
        "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
    )
    settings = Settings(
        kubernetes=KubernetesSettings(node_name="one", kubeconfig_path=str(kubeconfig)),
        state_path=str(directory / "state.json"),
        runtime_endpoint=str(directory / "no.sock"),
        pod_parents=("/reactor-test-nobody",),
        **changes,
    )
    tree = _cgroups(directory)
    return Cluster(settings, tree, KillPath(tree, settings.pod_parents), supervisor or Supervisor())


@asynccontextmanager
async def _running(
    directory: Path,
    server: Callable[[Asked], Reply | None],
    supervisor: Supervisor | None = None,
    **changes: Any,
) -> AsyncIterator[tuple[Cluster, trio.Nursery]]:
    served = FaultServer(server)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.serve)
        cluster = _cluster(directory, served.url, supervisor, **changes)
        cluster.attend(lambda: None, lambda: (_POD,), dict, lambda: None)
        nursery.start_soon(cluster.run)
        await cluster.wait_pods(10)
        yield cluster, nursery
        nursery.cancel_scope.cancel()
    cluster.close()


def _record(
    *attempts: EvictionAttempt, conditions: tuple[NodeCondition, ...] = (), dry_run: bool = False
) -> PassRecord:
    threshold = Threshold(
        signal=Signal.MEMORY_AVAILABLE, value=ThresholdValue(text="10%", percent=Fraction(10))
    )
    return PassRecord(
        id=1,
        at_unix_seconds=0.0,
        wakes=(),
        snapshot=Snapshot(),
        decision=Decision(at_seconds=0.0, conditions=conditions, acted_on=threshold if attempts else None),
        times=StageTimes(woke_ns=0, started_ns=0, observed_ns=0, decided_ns=0, done_ns=0),
        attempts=attempts,
        dry_run=dry_run,
    )


def _attempt(outcome: str = "killed", grace_period_seconds: int = 0) -> EvictionAttempt:
    eviction = Eviction(
        pod=_POD,
        signal=Signal.MEMORY_AVAILABLE,
        resource=Resource.MEMORY,
        grace_period_seconds=grace_period_seconds,
        message="The node was low on resource: memory.",
    )
    return EvictionAttempt(eviction=eviction, outcome=outcome)


async def test_a_pass_that_evicts_is_told_with_its_conditions(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (cluster, nursery):
        attempt = _attempt()
        attempt.ended.set()
        cluster.passed(_record(attempt, conditions=(NodeCondition.MEMORY_PRESSURE,)), nursery)
        await until(lambda: server.pod["status"]["phase"] == "Failed")
        await until(
            lambda: {event["reason"] for event in server.events} == {"Evicted", "EvictionThresholdMet"}
        )
        await until(lambda: len(server.node_patches) >= 2)
        await until(lambda: cluster.pending == 0)


async def test_a_dry_run_tells_nobody_anything(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server, dry_run=True) as (cluster, nursery):
        cluster.passed(_record(_attempt("dry-run"), dry_run=True), nursery)
        assert 0 == cluster.pending
        assert ("Running", [], []) == (server.pod["status"]["phase"], server.events, server.node_patches)


async def test_an_eviction_that_failed_is_not_told(tmp_path: Path) -> None:
    async with _running(tmp_path, _Server()) as (cluster, nursery):
        cluster.evicted(_attempt("failed"), nursery)
        assert 0 == cluster.pending


async def test_an_eviction_that_is_called_off_never_makes_its_pod_failed(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (cluster, nursery):
        attempt = _attempt("ordered", grace_period_seconds=30)
        cluster.evicted(attempt, nursery)
        await until(lambda: server.events)
        attempt.outcome = "called off"
        attempt.ended.set()
        await until(lambda: cluster.pending == 0)
        other = _attempt("ordered", grace_period_seconds=30)  # the same pod, evicted in earnest later
        cluster.evicted(other, nursery)
        assert 1 == cluster.pending
        assert "Running" == server.pod["status"]["phase"]


async def test_a_soft_eviction_has_its_status_when_its_pod_has_ended(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (cluster, nursery):
        attempt = _attempt("ordered", grace_period_seconds=30)
        cluster.evicted(attempt, nursery)
        await until(lambda: server.events)
        assert "Running" == server.pod["status"]["phase"]
        attempt.ended.set()
        await until(lambda: server.pod["status"]["phase"] == "Failed")


async def test_only_a_kill_for_the_nodes_sake_is_a_system_oom(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (cluster, _):
        for scope in (OomScope.OWN_LIMIT, OomScope.NODE):
            cluster.oom_killed(OomKill(source="ebpf-oom", scope=scope, at_ns=0, pid=7, comm=str(scope)))
        await until(lambda: server.events)
        assert ["System OOM encountered, victim process: node, pid: 7"] == [
            one["message"] for one in server.events
        ]


async def test_it_tells_whether_the_cluster_is_heard(tmp_path: Path) -> None:
    async with _running(tmp_path, _Server()) as (cluster, _):
        await until(lambda: cluster.watches == {"pods": True, "node": True})
        assert {
            "node": "one",
            "role": "alongside",
            "watches": {"pods": True, "node": True},
            "untold_evictions": 0,
        } == cluster.document()


async def test_a_lost_server_is_a_problem_and_what_is_untold_is_kept(tmp_path: Path) -> None:
    server = _Server()
    is_down = [False]

    def script(asked: Asked) -> Reply | None:
        return None if is_down[0] else server(asked)

    async with _running(tmp_path, script) as (cluster, nursery):
        is_down[0] = True
        attempt = _attempt()
        attempt.ended.set()
        cluster.evicted(attempt, nursery)
        await until(lambda: "eviction of web" in cluster.problems)
        assert 1 == cluster.pending
    kept = json.loads((tmp_path / "announcements.json").read_text())
    assert ["uid-web"] == [one["uid"] for one in kept["announcements"]]


async def test_every_part_that_fails_is_restarted_and_an_eviction_is_told_all_the_same(
    tmp_path: Path,
) -> None:
    faults = PartFaults()
    supervisor, server = Supervisor(faults), _Server()
    async with _running(tmp_path, server, supervisor) as (cluster, nursery):
        await until(lambda: len(supervisor.states) >= 8)
        parts = {state.name for state in supervisor.states}
        for name in parts:
            faults.fail(name)
        await until(lambda: parts == set(faults.failed))
        attempt = _attempt()
        attempt.ended.set()
        cluster.passed(_record(attempt), supervisor.jobs(nursery, "kubernetes evictions"))

        await until(lambda: server.pod["status"]["phase"] == "Failed")
        await until(lambda: all(state.health == "running" for state in supervisor.states))
        assert parts == {state.name for state in supervisor.states if state.restarts}


async def test_credentials_that_are_missing_are_a_problem_and_the_start_is_not_held_up(
    tmp_path: Path,
) -> None:
    cluster = _cluster(tmp_path, "http://127.0.0.1:1")
    (tmp_path / "kubeconfig").unlink()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.run)
        await cluster.wait_pods(0.2)
        await until(lambda: "kubernetes credentials" in cluster.problems)
        nursery.cancel_scope.cancel()


def test_the_nodes_name_is_configured_or_told_or_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "told")
    assert "given" == node_name(KubernetesSettings(node_name="given"))
    assert "told" == node_name(KubernetesSettings())
    monkeypatch.delenv("NODE_NAME")
    assert node_name(KubernetesSettings()) == node_name(KubernetesSettings()).lower()


def test_a_pods_uid_at_the_server_is_what_stands_before_the_inode() -> None:
    assert "u" == api_uid(Pod(name="a", namespace="b", uid="u#12"))


def test_without_the_extra_the_configuration_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name == "reactor.guard.kubernetes":
            raise ImportError("No module named 'httpcore2'")
        return found(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    tree = _cgroups(tmp_path)
    with pytest.raises(ConfigError, match=r"pip install '\.\[kubernetes\]'"):
        cluster_of(Settings(kubernetes=KubernetesSettings()), tree, KillPath(tree, ()), Supervisor())
    assert cluster_of(Settings(), tree, KillPath(tree, ()), Supervisor()) is None


def test_status_prints_the_cluster_in_one_line() -> None:
    watches = {"pods": True, "node": False}
    told = {"node": "one", "role": "sole", "watches": watches, "untold_evictions": 2}
    line = "kubernetes: node one, sole; pods watched, node NOT watched; 2 evictions not reported yet"
    assert line == show._kubernetes(told)


async def test_a_pod_of_which_only_the_cgroup_is_known_is_told_by_the_name_that_the_server_has(
    tmp_path: Path,
) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (cluster, nursery):
        nameless = Pod(name="poduid-web", namespace="kubepods", uid="uid-web", cgroup=None)
        attempt = _attempt()
        attempt.eviction = dataclasses.replace(attempt.eviction, pod=nameless)
        attempt.ended.set()
        cluster.evicted(attempt, nursery)
        await until(lambda: server.events and server.pod["status"]["phase"] == "Failed")
        about = server.events[0]["involvedObject"]
        assert ("default", "web") == (about["namespace"], about["name"])
