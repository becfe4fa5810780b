"""The steward's part in a cluster, against an API server that keeps one pod and one node."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kube.node import node_name
from reactor.kube.pods import PodStore
from reactor.link.frames import FrameKind, Message
from reactor.link.listings import read_files, read_spec, split_records
from reactor.link.requests import Piece, Request, RequestKind, Section
from reactor.model.pod_lists import PodEntry, PodLists, ProcessVictimEntry
from reactor.model.pods import NodeFiles, PodSource
from reactor.model.settings import KubernetesSettings, Settings
from reactor.steward.kubernetes import Kubernetes, PodListings
from reactor.supervisor import Supervisor
from reactor.terminal import show
from tests.support.api_faults import Asked, FaultServer, Reply, chunk, line, pod_document
from tests.support.part_faults import PartFaults
from tests.support.waiting import until


class _Guard:
    """Keeps what the steward says; numbers what it reports itself."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.lines: list[Any] = []
        self.number = 0

    async def say(self, request: object) -> None:
        await trio.lowlevel.checkpoint()
        self.heard.append(request)

    def report(self, kind: str, **about: Any) -> Message:
        self.number += 1
        return Message(FrameKind.REPORT, self.number, json.dumps({"report": kind, **about}).encode())

    def evicted(self, state: str = "over", **changes: Any) -> Message:
        report = {
            "uid": "uid-web",
            "name": "web",
            "namespace": "default",
            "message": "The node was low on resource: memory.",
            "annotations": {},
            "disrupted": True,
            "at_unix_seconds": time.time(),
            "grace_period_seconds": 0,
        }
        return self.report("eviction", **{**report, "state": state, **changes})

    @property
    def safe(self) -> list[int]:
        """Return the numbers of the reports that are said to be safe."""
        return [
            one.number for one in self.heard if isinstance(one, Request) and one.kind is RequestKind.REPORTED
        ]

    def records(self, section: Section) -> list[list[bytes]]:
        """Return the records of each listing of a section, in their order."""
        found: dict[int, bytearray] = {}
        for one in self.heard:
            if isinstance(one, Piece) and one.section is section:
                found.setdefault(one.number, bytearray()).extend(one.content)
        return [list(split_records(content)) for content in found.values()]


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


def _kubernetes(
    directory: Path,
    url: str,
    guard: _Guard,
    supervisor: Supervisor | None = None,
    cluster: KubernetesSettings | None = None,
    **changes: Any,
) -> Kubernetes:
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(
        "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
    )
    settings = Settings(
        kubernetes=replace(cluster or KubernetesSettings(node_name="one"), kubeconfig_path=str(kubeconfig)),
        state_path=str(directory / "state.json"),
        runtime_endpoint=str(directory / "no.sock"),
        pod_parents=("/reactor-test-nobody",),
        **changes,
    )
    root = directory / "cgroup"
    root.mkdir(exist_ok=True)
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=root)
    on_filesystems = list[None]().clear
    return Kubernetes(
        guard,  # type: ignore[arg-type] - of which this is all that is used
        supervisor or Supervisor(),
        settings,
        dict,
        on_filesystems,
        write=guard.lines.append,
        tree=lambda: tree,
    )


@asynccontextmanager
async def _running(
    directory: Path,
    server: Callable[[Asked], Reply | None],
    supervisor: Supervisor | None = None,
    **changes: Any,
) -> AsyncIterator[tuple[Kubernetes, _Guard]]:
    served, guard = FaultServer(server), _Guard()
    async with trio.open_nursery() as nursery:
        await nursery.start(served.serve)
        kubernetes = _kubernetes(directory, served.url, guard, supervisor, **changes)
        nursery.start_soon(kubernetes.run)
        await until(lambda: kubernetes.watches["pods"])
        yield kubernetes, guard
        nursery.cancel_scope.cancel()
    kubernetes.close()


async def test_an_eviction_that_the_guard_reports_is_published_with_the_conditions_and_is_safe_then(
    tmp_path: Path,
) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.evicted())
        kubernetes.take(guard.report("threshold met", resource="memory"))
        kubernetes.take(guard.report("conditions", conditions=["MemoryPressure"]))
        await until(lambda: server.pod["status"]["phase"] == "Failed")
        await until(
            lambda: {event["reason"] for event in server.events} == {"Evicted", "EvictionThresholdMet"}
        )
        await until(lambda: len(server.node_patches) >= 2)
        await until(lambda: kubernetes.pending == 0)
        await until(lambda: guard.safe == [1, 2, 3])


async def test_a_pod_that_broke_its_own_limit_is_not_disrupted_and_its_conditions_have_its_generation(
    tmp_path: Path,
) -> None:
    server = _Server()
    server.pod["metadata"]["generation"] = 4
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.evicted(disrupted=False))
        await until(lambda: server.pod["status"].get("phase") == "Failed")
        found = {one["type"]: one.get("observedGeneration") for one in server.pod["status"]["conditions"]}
        assert {"Ready": 4, "ContainersReady": 4} == found


async def test_an_eviction_is_safe_only_when_a_file_has_it(tmp_path: Path) -> None:
    async with _running(tmp_path, _Server()) as (kubernetes, guard):
        kubernetes.take(guard.evicted())
        assert guard.safe == []
        await until(lambda: guard.safe == [1])
        kept = json.loads((tmp_path / "announcements.json").read_text())
        assert ["uid-web"] == [one["uid"] for one in kept["announcements"]]


async def test_an_eviction_that_is_reported_again_is_published_once(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        for _ in range(3):
            kubernetes.take(guard.evicted())
        await until(lambda: kubernetes.pending == 0)
        await until(lambda: guard.safe == [1, 2, 3])
        assert ["Evicted"] == [event["reason"] for event in server.events]


async def test_a_dry_run_tells_nothing_until_it_is_none(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server, dry_run=True) as (kubernetes, guard):
        assert {"pods": True} == kubernetes.watches
        assert ([], []) == (server.events, server.node_patches)
        kubernetes.order(Settings(kubernetes=KubernetesSettings(node_name="one")))
        kubernetes.take(guard.evicted())
        await until(lambda: server.pod["status"]["phase"] == "Failed")
        await until(lambda: guard.safe == [1])


async def test_a_reload_to_a_dry_run_clears_the_node_and_deletes_no_evicted_pod(tmp_path: Path) -> None:
    server, cluster = _Server(), KubernetesSettings(node_name="one", evicted_pod_ttl_seconds=0.05)
    asked: list[str] = []

    def script(one: Asked) -> Reply | None:
        asked.append(one.method)
        return server(one)

    async with _running(tmp_path, script, cluster=cluster) as (kubernetes, guard):
        kubernetes.take(guard.report("conditions", conditions=["MemoryPressure"]))
        await until(lambda: "True" in str(server.node_patches))
        kubernetes.order(Settings(kubernetes=cluster, dry_run=True))
        await until(lambda: "True" not in str(server.node_patches[-1]))
        server.pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
        server.changed.set()
        await until(lambda: any(one["kind"] == "pod-evicted" for one in guard.lines))
        await trio.sleep(0.3)
        assert "DELETE" not in asked
        kubernetes.order(Settings(kubernetes=cluster))
        await until(lambda: "DELETE" in asked)


async def test_a_dry_run_records_whom_the_kubelet_evicts_and_whose_journal_it_is(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server, dry_run=True) as (_, guard):
        await until(lambda: guard.lines)
        (node,) = guard.lines
        assert ("node", "one", True) == (node["kind"], node["node"], node["dry_run"])
        server.pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
        server.changed.set()
        await until(lambda: len(guard.lines) == 2)
        assert ("pod-evicted", "default/web") == (guard.lines[1]["kind"], guard.lines[1]["pod"])


async def test_an_eviction_of_reactors_own_is_no_other_ones(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.evicted())
        await until(lambda: server.pod["status"]["phase"] == "Failed")
        await until(lambda: kubernetes.pending == 0)
        await until(lambda: guard.lines)
        assert ["node"] == [one["kind"] for one in guard.lines]


async def test_an_eviction_that_is_called_off_never_makes_its_pod_failed(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.evicted("ordered", grace_period_seconds=30))
        await until(lambda: server.events)
        kubernetes.take(guard.evicted("called off"))
        await until(lambda: kubernetes.pending == 0)
        kubernetes.take(guard.evicted("ordered", grace_period_seconds=30))  # in earnest later
        assert 1 == kubernetes.pending
        assert "Running" == server.pod["status"]["phase"]


async def test_a_soft_eviction_has_its_status_when_its_pod_has_ended(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.evicted("ordered", grace_period_seconds=30))
        await until(lambda: server.events)
        assert "Running" == server.pod["status"]["phase"]
        kubernetes.take(guard.evicted("over", grace_period_seconds=30))
        await until(lambda: server.pod["status"]["phase"] == "Failed")


async def test_what_happens_to_the_node_is_an_event(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.report("system OOM", comm="hog", pid=7))
        kubernetes.take(guard.report("evictions slowed down", message="they do not help"))
        kubernetes.take(guard.report("no evictable pod", message="no pod can be evicted"))
        await until(lambda: len(server.events) == 3)
        assert [
            ("SystemOOM", "System OOM encountered, victim process: hog, pid: 7"),
            ("EvictionsSlowedDown", "they do not help"),
            ("NoEvictablePod", "no pod can be evicted"),
        ] == [(one["reason"], one["message"]) for one in server.events]


async def test_a_killed_process_is_an_event_of_its_pod_and_its_status_stays(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        before = json.dumps(server.pod["status"])
        kubernetes.take(
            guard.report(
                "process killed", uid="uid-web", namespace="default", name="web", message="tool was killed"
            )
        )
        await until(lambda: server.events)
        (told,) = server.events
        assert ("ProcessKilled", "tool was killed", "default") == (
            told["reason"],
            told["message"],
            told["metadata"]["namespace"],
        )
        assert ("Pod", "web", "uid-web", "default") == tuple(
            told["involvedObject"][key] for key in ("kind", "name", "uid", "namespace")
        )
        await until(lambda: guard.safe == [1])
        assert before == json.dumps(server.pod["status"])


async def test_the_guard_is_told_of_the_labels_that_the_configuration_names_and_of_no_others(
    tmp_path: Path,
) -> None:
    server = _Server()
    server.pod["metadata"]["labels"] = {"app": "web", "role": "", "odd": "\x1b", "tier": "front"}

    def told(guard: _Guard) -> dict[str, str]:
        record = guard.records(Section.SPECS)[-1][0]
        return dict(read_spec(record, lambda _source, _priority: None)[1].labels)

    async with _running(tmp_path, server) as (kubernetes, guard):
        await until(lambda: any(_is_heard(one) for one in guard.heard))
        assert {} == told(guard)
        named = tuple((key, "") for key in ("app", "odd", "role", "absent"))
        victims = (ProcessVictimEntry(pods=PodEntry(namespace="default", labels=named)),)
        kubernetes.order(
            Settings(
                kubernetes=KubernetesSettings(node_name="one"), pod_lists=PodLists(process_victims=victims)
            )
        )
        await until(lambda: {"app": "web", "role": ""} == told(guard))


async def test_it_reports_whether_the_cluster_is_heard(tmp_path: Path) -> None:
    async with _running(tmp_path, _Server()) as (kubernetes, _):
        await until(lambda: kubernetes.watches == {"pods": True, "node": True})
        assert {
            "node": "one",
            "role": "alongside",
            "watches": {"pods": True, "node": True},
            "untold_evictions": 0,
            "out_of_service": False,
        } == kubernetes.document()


async def test_the_guard_gets_the_pods_and_that_they_are_all(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (_, guard):
        await until(lambda: any(_is_heard(one) for one in guard.heard))
        (records,) = guard.records(Section.SPECS)
        source, pod = read_spec(records[0], lambda _source, _priority: None)
        assert (PodSource.API, "default/web", "uid-web") == (source, pod.key, pod.uid)


def _is_heard(one: object) -> bool:
    return isinstance(one, Request) and one.kind is RequestKind.PODS_COMPLETE and one.places == 1


async def _first_listing(section: Section, store: PodStore, files: NodeFiles) -> Sequence[bytes]:
    """Return the records that the guard gets first."""
    guard, specs = _Guard(), SimpleNamespace(store=store, is_heard=True)
    runtime, node_files = SimpleNamespace(inventory={}), SimpleNamespace(files=files)
    listings = PodListings(guard, specs, runtime, node_files)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listings.run)
        await until(lambda: any(_is_heard(one) for one in guard.heard))
        nursery.cancel_scope.cancel()
    return guard.records(section)[0]


async def test_no_directories_of_ended_pods_crowd_a_static_pod_out_of_what_the_guard_is_told() -> None:
    names = {f"{number:04}": ("default", "done") for number in range(2000)}
    store = PodStore()
    store.listing()
    store.take(pod_document())
    store.listed()
    files = NodeFiles(names=names, static_uids=frozenset({"static"}))
    records = await _first_listing(Section.FILES, store, files)
    assert 2000 == len(records)
    assert ["static"] == [one.uid for one in map(read_files, records) if one.is_static]


async def test_pods_of_very_many_containers_crowd_no_other_pod_out_of_what_the_guard_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listing holds some 160 of the largest, here two: a node may have more pods of one tenant."""
    monkeypatch.setattr("reactor.link.listings.MOST_LISTED_BYTES", 60_000)
    long = f"1.{'0' * 55}1"
    requests = {"memory": long, "ephemeral-storage": long}
    containers = [
        {"name": f"{number:063}", "resources": {"requests": requests, "limits": requests}}
        for number in range(64)
    ]
    volumes = [{"name": f"{number:063}", "emptyDir": {"sizeLimit": long}} for number in range(64)]
    large = {"containers": containers, "volumes": volumes}
    store = PodStore()
    store.listing()
    for number in range(3):
        store.take(pod_document(f"a{number}", spec=large))
    store.take(pod_document("web"))
    store.take(pod_document("ended", status={"phase": "Failed"}))
    store.listed()
    records = await _first_listing(Section.SPECS, store, NodeFiles())
    read = [read_spec(record, lambda _source, _priority: None)[1].name for record in records]
    assert ["web", "a0", "a1"] == read


async def test_a_lost_server_is_a_problem_and_what_is_untold_is_kept(tmp_path: Path) -> None:
    server = _Server()
    is_down = [False]

    def script(asked: Asked) -> Reply | None:
        return None if is_down[0] else server(asked)

    async with _running(tmp_path, script) as (kubernetes, guard):
        is_down[0] = True
        kubernetes.take(guard.evicted())
        await until(lambda: "eviction of web" in kubernetes.problems)
        assert 1 == kubernetes.pending
    kept = json.loads((tmp_path / "announcements.json").read_text())
    assert ["uid-web"] == [one["uid"] for one in kept["announcements"]]


async def test_every_part_that_fails_is_restarted_and_an_eviction_is_reported_all_the_same(
    tmp_path: Path,
) -> None:
    faults = PartFaults()
    supervisor, server = Supervisor(faults), _Server()
    async with _running(tmp_path, server, supervisor) as (kubernetes, guard):
        await until(lambda: len(supervisor.states) >= 11)
        parts = {state.name for state in supervisor.states}
        for name in parts:
            faults.fail(name)
        await until(lambda: parts == set(faults.failed))
        kubernetes.take(guard.evicted())

        await until(lambda: server.pod["status"]["phase"] == "Failed")
        await until(lambda: all(state.health == "running" for state in supervisor.states))
        assert parts == {state.name for state in supervisor.states if state.restarts}
        await until(lambda: guard.safe == [1])


async def test_credentials_that_are_missing_are_a_problem(tmp_path: Path) -> None:
    kubernetes = _kubernetes(tmp_path, "http://127.0.0.1:1", _Guard())
    (tmp_path / "kubeconfig").unlink()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kubernetes.run)
        await until(lambda: "kubernetes credentials" in kubernetes.problems)
        nursery.cancel_scope.cancel()


def test_the_nodes_name_is_configured_or_told_or_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "told")
    assert "given" == node_name(KubernetesSettings(node_name="given"))
    assert "told" == node_name(KubernetesSettings())
    monkeypatch.delenv("NODE_NAME")
    assert node_name(KubernetesSettings()) == node_name(KubernetesSettings()).lower()


def test_status_prints_the_cluster_in_one_line() -> None:
    watches = {"pods": True, "node": False}
    told = {"node": "one", "role": "sole", "watches": watches, "untold_evictions": 2}
    line = "kubernetes: node one, sole; pods watched, node NOT watched; 2 evictions not reported yet"
    assert line == show._kubernetes(told)
    assert f"{line}; OUT OF SERVICE by an operator's taint" == show._kubernetes(
        {**told, "out_of_service": True}
    )


async def test_a_pod_of_which_only_the_cgroup_is_known_is_reported_by_the_name_that_the_server_has(
    tmp_path: Path,
) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.evicted(name="", namespace=""))
        await until(lambda: server.events and server.pod["status"]["phase"] == "Failed")
        about = server.events[0]["involvedObject"]
        assert ("default", "web") == (about["namespace"], about["name"])


async def test_a_runtime_that_refuses_was_asked_and_one_that_never_answers_is_waited_for_in_vain(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.rate = 0.2
    async with _running(tmp_path, _Server()) as (kubernetes, _):
        with trio.fail_after(2.5):
            await kubernetes.wait_placed()
    mock_clock.rate = 10.0
    began = trio.current_time()
    await _kubernetes(tmp_path, "http://127.0.0.1:1", _Guard()).wait_placed()
    assert 2.9 < trio.current_time() - began


async def test_at_the_guards_end_what_was_set_stays_for_a_successor_and_is_removed_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "POD_NAME", "INVOCATION_ID"):
        monkeypatch.delenv(name, raising=False)
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.report("conditions", conditions=["MemoryPressure"]))
        await until(lambda: len(server.node_patches) >= 2)
        stays = "node one: conditions and taints stay: the daemon that stands by is expected"
        assert ((stays,), ()) == await kubernetes.leave(stands_by=True, seconds=60.0)
        removed = ("node one: nothing to remove: no successor is expected",)
        assert (removed, ()) == await kubernetes.leave(stands_by=False, seconds=60.0)


class _SlowServer(_Server):
    """Has a node with a taint's annotation and a condition, and answers about it when it is let go on."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.held = held
        self.is_asked, self.goes_on = trio.Event(), trio.Event()

    def __call__(self, asked: Asked) -> Reply:
        if not asked.path.startswith("/api/v1/nodes/"):
            return super().__call__(asked)
        if asked.method == "PATCH":
            self.node_patches.append(asked.body)
        if asked.method == self.held and not self.is_asked.is_set():
            self.is_asked.set()
            return Reply(after=self._late)
        return Reply(body=self.node)

    async def _late(self, stream: trio.SocketStream) -> None:
        await self.goes_on.wait()
        await stream.send_all(chunk(json.dumps(self.node).encode()) + chunk(b""))

    @property
    def node(self) -> Any:
        taint = "node.kubernetes.io/memory-pressure"
        metadata = {"name": "one", "resourceVersion": "5", "annotations": {"reactor/taints": taint}}
        return {
            "metadata": metadata,
            "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "reactor/MemoryPressure", "status": "True"}]},
        }


_ALL_STAYS = "node one: conditions and taints stay: no answer within "
_MAY_STAY = "node one: conditions or taints may stay (reactor cluster clean --node one): no answer within "
_REMOVED = "node one: removed 1 taints, 1 conditions: no successor is expected"


@pytest.mark.parametrize(
    ("held", "late_seconds", "patches", "outcome"),
    [
        pytest.param("GET", 5.9, 2, _REMOVED, id="known in time"),
        pytest.param("GET", 6.1, 0, _ALL_STAYS, id="known too late for both writes"),
        pytest.param("PATCH", 9.9, 2, _REMOVED, id="written in time"),
        pytest.param("PATCH", 10.1, 1, _MAY_STAY, id="time over in the middle"),
    ],
)
async def test_where_time_runs_out_nothing_is_removed_or_all_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: trio.testing.MockClock,
    held: str,
    late_seconds: float,
    patches: int,
    outcome: str,
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "POD_NAME", "INVOCATION_ID"):
        monkeypatch.delenv(name, raising=False)
    server = _SlowServer(held)
    mock_clock.rate = 1.0
    async with _running(tmp_path, server) as (kubernetes, _), trio.open_nursery() as nursery:
        over: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

        async def leave() -> None:
            over.append(await kubernetes.leave(stands_by=False, seconds=10.0))

        mock_clock.rate = 0.0
        nursery.start_soon(leave)
        await server.is_asked.wait()
        mock_clock.jump(late_seconds)
        if outcome == _REMOVED:
            server.goes_on.set()
    assert patches == len(server.node_patches)
    ((done, problems),) = over
    assert [outcome] == [line[: len(outcome)] for line in (*done, *problems)]
    assert (outcome == _REMOVED) == bool(done)


async def test_a_steward_that_has_answered_nothing_removes_nothing(tmp_path: Path) -> None:
    server = _Server()
    async with _running(tmp_path, server, dry_run=True) as (kubernetes, _):
        assert ((), ()) == await kubernetes.leave(stands_by=False, seconds=60.0)
        assert [] == server.node_patches


async def test_a_shutdown_is_an_event_a_condition_and_a_taint_and_a_cancelled_one_is_undone(
    tmp_path: Path,
) -> None:
    server = _Server()
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.report("conditions", conditions=[]))
        kubernetes.take(guard.report("shutdown", is_under_way=True))
        kubernetes.take(guard.report("shutdown", is_under_way=True))  # to another steward, or heard twice
        await until(lambda: server.events and any("spec" in one for one in server.node_patches))
        assert [("Normal", "Shutdown", "Shutdown manager detected shutdown event", 1)] == [
            (one["type"], one["reason"], one["message"], one["count"]) for one in server.events
        ]
        assert ["reactor/node-shutdown"] == [
            taint["key"] for one in server.node_patches if "spec" in one for taint in one["spec"]["taints"]
        ][:1]
        kubernetes.take(guard.report("shutdown", is_under_way=False))
        await until(lambda: len(server.events) == 2)
        assert "Shutdown manager detected shutdown cancellation" == server.events[1]["message"]


async def test_what_rules_show_is_put_on_the_node(tmp_path: Path) -> None:
    server = _Server()
    mark = ["MemoryContention", "example.com/contention:NoSchedule", "rule r: usage >= 90 %"]
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.report("conditions", conditions=[]))
        kubernetes.take(guard.report("marks", shown=[mark], left=[]))
        await until(lambda: any("spec" in one for one in server.node_patches))
        (taint,) = next(one["spec"]["taints"] for one in server.node_patches if "spec" in one)
        assert ("example.com/contention", "NoSchedule") == (taint["key"], taint["effect"])
        await until(
            lambda: any(
                condition["type"] == "reactor/MemoryContention"
                for one in server.node_patches
                for condition in one.get("status", {}).get("conditions", ())
            )
        )


async def test_a_pod_that_is_ended_for_a_shutdown_has_upstreams_status_and_no_event(tmp_path: Path) -> None:
    server = _Server()
    message = "Pod was terminated in response to imminent node shutdown."
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.evicted("over", message=message, for_shutdown=True))
        await until(lambda: server.pod["status"]["phase"] == "Failed")
        status = server.pod["status"]
        assert ("Terminated", message) == (status["reason"], status["message"])
        disruption = next(one for one in status["conditions"] if one["type"] == "DisruptionTarget")
        assert ("True", "TerminationByKubelet", message) == (
            disruption["status"],
            disruption["reason"],
            disruption["message"],
        )
        await until(lambda: kubernetes.pending == 0)
    assert [] == server.events


async def test_a_pod_that_succeeds_at_a_shutdown_stays_so(tmp_path: Path) -> None:
    server = _Server()
    server.pod["status"] = {"phase": "Succeeded"}
    async with _running(tmp_path, server) as (kubernetes, guard):
        kubernetes.take(guard.evicted("over", for_shutdown=True))
        await until(lambda: kubernetes.pending == 0)
    assert "Succeeded" == server.pod["status"]["phase"]
