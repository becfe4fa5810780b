from __future__ import annotations

from typing import Any

import pytest
import trio

from reactor.cluster.announce import Announcement, event_of, status_of
from reactor.cluster.evicted_pods import Cleanup
from reactor.cluster.pod_specs import AdmissionGuard
from reactor.kube.pods import PodStore
from reactor.model.signals import NodeCondition
from tests.support.api_faults import Asked, Reply, pod_document, refusal, served

_MEMORY, _DISK, _PID = NodeCondition
_PENDING = {"phase": "Pending"}
_BEST_EFFORT = {"containers": [{"name": "main"}]}


class _Node:
    """A store with arrivals that note whom they refuse."""

    def __init__(self, *names: str) -> None:
        self.refused: list[Announcement] = []
        self.store = PodStore()
        self.arrivals = AdmissionGuard(self.store, self.refused.append, lambda: 60.0)
        self.list(*names)

    def list(self, *names: str) -> None:
        self.store.listing()
        for name in names:
            self.store.take(pod_document(name, status=_PENDING))
        self.store.listed()

    def arrive(self, name: str, **changes: Any) -> None:
        self.store.take(pod_document(name, **{"status": _PENDING, **changes}))


def test_a_best_effort_pod_that_arrives_under_memory_pressure_is_refused_in_upstreams_words() -> None:
    node = _Node()
    node.arrivals.check([_MEMORY])
    node.arrive("new", spec=_BEST_EFFORT)
    node.arrivals.check([_MEMORY])
    [refused] = node.refused
    assert ("new", "uid-new", False) == (refused.name, refused.uid, refused.disrupted)
    message = "The node had condition: [MemoryPressure]. "
    assert message == event_of(refused, "one")["message"]
    assert f"Pod was rejected: {message}" == status_of(refused)["status"]["message"]
    node.arrivals.check([_MEMORY])
    assert 1 == len(node.refused)


@pytest.mark.parametrize(
    "changes",
    [
        {},  # asks for memory, and memory is the only pressure
        {"spec": {**_BEST_EFFORT, "priority": 2_000_000_000}},
        {"spec": _BEST_EFFORT, "status": {"phase": "Running"}},
        {"spec": _BEST_EFFORT, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {
            "spec": _BEST_EFFORT,
            "status": {"phase": "Pending", "containerStatuses": [{"state": {"running": {}}}]},
        },
    ],
)
def test_who_is_admitted_or_runs_already_is_left_alone(changes: dict[str, Any]) -> None:
    node = _Node()
    node.arrivals.check([_MEMORY])
    node.arrive("new", **changes)
    node.arrivals.check([_MEMORY])
    assert [] == node.refused


def test_without_pressure_everybody_is_admitted() -> None:
    node = _Node()
    node.arrivals.check([])
    node.arrive("new", spec=_BEST_EFFORT)
    node.arrivals.check([])
    node.arrivals.check([_DISK])  # it was there before the pressure
    assert [] == node.refused


def test_pods_of_the_first_list_were_there_before_us() -> None:
    node = _Node("old")
    node.arrivals.check([_DISK])
    assert [] == node.refused
    node.list("old", "new")
    node.arrivals.check([_DISK])
    assert ["new"] == [refused.name for refused in node.refused]


def test_before_the_first_list_no_pod_is_refused() -> None:
    refused: list[Announcement] = []
    store = PodStore()
    arrivals = AdmissionGuard(store, refused.append, lambda: 60.0)
    store.take(pod_document("early", status=_PENDING))
    arrivals.check([_DISK])
    store.listed()
    arrivals.check([_DISK])
    assert [] == refused


def _evicted(name: str, **status: Any) -> dict[str, Any]:
    return pod_document(name, status={"phase": "Failed", "reason": "Evicted", **status})


async def test_evicted_pods_are_deleted_after_their_time_and_no_others() -> None:
    def script(_: Asked) -> Reply:
        return Reply(body={})

    store, now = PodStore(), [1000.0]
    ended = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "1970-01-01T00:16:00Z"}
    store.take(_evicted("old", conditions=[ended]))  # at 960
    store.take(_evicted("unknown"))
    store.take(pod_document("failed", status={"phase": "Failed"}))
    async with served(script) as (server, client), trio.open_nursery() as nursery:
        cleanup = Cleanup(client, store, 0.05, clock_unix_seconds=lambda: now[0])
        cleanup._ttl_seconds = 60.0
        await cleanup._delete_due()
        assert [] == server.asked
        now[0] = 1021.0
        await cleanup._delete_due()
        assert ["/api/v1/namespaces/default/pods/old"] == [asked.path for asked in server.asked]
        assert {"uid": "uid-old"} == server.asked[0].body["preconditions"]
        now[0] = 1061.0
        await cleanup._delete_due()
        assert "/api/v1/namespaces/default/pods/unknown" in [asked.path for asked in server.asked]
        nursery.cancel_scope.cancel()


async def test_without_a_time_nothing_is_ever_deleted() -> None:
    store = PodStore()
    store.take(_evicted("old"))
    async with served(lambda _: Reply(body={})) as (server, client):
        await Cleanup(client, store, 0.0).run()
        assert [] == server.asked


async def test_a_deletion_that_is_refused_is_a_problem_and_a_pod_that_is_gone_is_none() -> None:
    replies = [refusal(403, "forbidden"), refusal(404, "gone")]
    store = PodStore()
    store.take(_evicted("old"))
    async with served(lambda _: replies.pop(0)) as (_, client):
        cleanup = Cleanup(client, store, 1.0, clock_unix_seconds=lambda: 0.0)
        cleanup._first_seen = {"uid-old": -10.0}
        await cleanup._delete_due()
        assert 'verbs: ["delete"]' in (cleanup.problem or "")
        await cleanup._delete_due()
        assert cleanup.problem is None


def test_a_pod_that_arrives_while_the_node_shuts_down_is_refused_even_a_critical_one() -> None:
    node = _Node()
    node.arrivals.check([])
    node.arrive("new", spec={**_BEST_EFFORT, "priority": 2_000_000_000})
    node.arrivals.check([], is_shutting_down=True)
    [refused] = node.refused
    message = "Pod was rejected as the node is shutting down."
    assert "NodeShutdown" == event_of(refused, "one")["reason"] == status_of(refused)["status"]["reason"]
    assert message == event_of(refused, "one")["message"]
    assert f"Pod was rejected: {message}" == status_of(refused)["status"]["message"]
