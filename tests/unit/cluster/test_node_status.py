"""The node's conditions and taints against an API server that keeps a node, and others who write to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from reactor.cluster.node_status import NodeStatus
from reactor.model.rules import Mark, Marks
from reactor.model.settings import Role, TaintedBy
from reactor.model.signals import NodeCondition
from tests.support.api_faults import Asked, Reply, refusal, served
from tests.support.waiting import until

_MEMORY, _DISK, _PID = NodeCondition
_TAINT = "node.kubernetes.io/memory-pressure"


class _Server:
    """Keeps one node as an API server does; tells the watch of every change, its own among them."""

    def __init__(self) -> None:
        self.version = 1
        self.annotations: dict[str, str] = {}
        self.taints: list[dict[str, str]] = []
        self.conditions: dict[str, dict[str, str]] = {}
        self.faults: list[Callable[[Asked], Reply | None]] = []
        self.refuses_taints: Reply | None = None
        self.controller_keeps: Callable[[dict[str, str]], bool] = lambda _: True
        self.on_change: Callable[[], None] = lambda: None
        self.writes: list[str] = []

    @property
    def document(self) -> dict[str, Any]:
        return {
            "metadata": {
                "name": "one",
                "resourceVersion": str(self.version),
                "annotations": self.annotations,
            },
            "spec": {"taints": self.taints},
            "status": {"conditions": list(self.conditions.values())},
        }

    def changed(self) -> None:
        self.version += 1
        self.on_change()
        kept = [taint for taint in self.taints if self.controller_keeps(taint)]
        if kept != self.taints:
            self.taints = kept
            self.changed()

    def __call__(self, asked: Asked) -> Reply | None:
        if asked.method == "PATCH":
            if self.faults:
                return self.faults.pop(0)(asked)
            self.writes.append(asked.path)
            if self.refuses_taints is not None and not asked.path.endswith("/status"):
                return self.refuses_taints
            version = asked.body.get("metadata", {}).get("resourceVersion")
            if version not in {None, str(self.version)}:
                return refusal(409, "the object has been modified")
            if asked.path.endswith("/status"):
                for one in asked.body["status"]["conditions"]:
                    if one.get("$patch") == "delete":
                        self.conditions.pop(one["type"], None)
                        continue
                    self.conditions[one["type"]] = {**self.conditions.get(one["type"], {}), **one}
            else:
                self.taints = asked.body["spec"]["taints"] or []
                told = {**self.annotations, **asked.body["metadata"]["annotations"]}
                self.annotations = {key: value for key, value in told.items() if value is not None}
            self.changed()
        return Reply(body=self.document)

    def is_true(self, kind: str) -> bool:
        return self.conditions.get(kind, {}).get("status") == "True"

    @property
    def taint_writes(self) -> int:
        return self.writes.count("/api/v1/nodes/one")

    def is_tainted(self) -> bool:
        return _TAINT in [taint["key"] for taint in self.taints]


@asynccontextmanager
async def keeping(
    server: _Server,
    role: Role = Role.ALONGSIDE,
    heartbeat_seconds: float = 300.0,
    on_status: Callable[[str], None] = lambda _: None,
    tainted_by: TaintedBy = TaintedBy.REACTOR,
) -> AsyncIterator[NodeStatus]:
    async with served(server) as (_, client), trio.open_nursery() as nursery:
        status = NodeStatus(
            client,
            "one",
            role,
            tainted_by=tainted_by,
            heartbeat_seconds=heartbeat_seconds,
            on_status=on_status,
        )
        server.on_change = lambda: status.take(server.document)
        status.listing()
        status.take(server.document)
        status.listed()
        nursery.start_soon(status.run)
        yield status
        nursery.cancel_scope.cancel()


async def test_pressure_is_shown_and_taken_back_again() -> None:
    server = _Server()
    async with keeping(server) as status:
        status.want([_MEMORY])
        await until(lambda: server.is_true("reactor/MemoryPressure") and server.is_tainted())
        assert {"reactor/taints": f"{_TAINT}:NoSchedule,{_TAINT}:PreferNoSchedule"} == server.annotations
        status.want([])
        await until(lambda: not server.is_true("reactor/MemoryPressure") and not server.is_tainted())
        assert {} == server.annotations
    assert "MemoryPressure" not in server.conditions


async def test_what_rules_show_is_written_kept_against_others_and_removed() -> None:
    server = _Server()
    mark = Mark("MemoryContention", "example.com/contention:NoSchedule", "rule r")

    def shows() -> bool:
        tainted = "example.com/contention" in [taint["key"] for taint in server.taints]
        return tainted and server.is_true("reactor/MemoryContention")

    async with keeping(server) as status:
        status.want([])
        status.mark(Marks(shown=(mark,)))
        await until(shows)
        server.taints = []
        server.conditions.pop("reactor/MemoryContention")
        server.changed()
        await until(shows)
        status.mark(Marks())
        await until(lambda: not server.taints and "reactor/MemoryContention" not in server.conditions)
        assert {} == server.annotations


async def test_alone_on_the_node_the_kubelets_own_condition_is_kept_against_the_kubelet() -> None:
    server = _Server()
    async with keeping(server, Role.SOLE) as status:
        status.want([_DISK])
        await until(lambda: server.is_true("DiskPressure"))
        for _ in range(3):
            server.conditions["DiskPressure"] = {
                "type": "DiskPressure",
                "status": "False",
                "reason": "Kubelet",
            }
            server.changed()
            await until(lambda: server.is_true("DiskPressure"))


async def test_a_taint_that_a_controller_takes_away_is_set_again() -> None:
    server = _Server()
    async with keeping(server) as status:
        status.want([_MEMORY])
        await until(server.is_tainted)
        server.taints = []
        server.changed()
        await until(server.is_tainted)


async def test_a_successor_sets_at_once_what_others_removed_while_no_reactor_ran() -> None:
    """The kubelet has reported no pressure, and the node controller has removed the taint for that."""
    server = _Server()
    async with keeping(server, Role.SOLE) as status:
        status.want([_MEMORY])
        await until(lambda: server.is_true("MemoryPressure") and server.is_tainted())
    server.conditions["MemoryPressure"] = {"type": "MemoryPressure", "status": "False", "reason": "Kubelet"}
    server.taints = []
    server.writes.clear()
    async with keeping(server, Role.SOLE) as status:
        status.want([_MEMORY])
        await until(lambda: server.is_true("MemoryPressure") and server.is_tainted())
    assert ["/api/v1/nodes/one", "/api/v1/nodes/one/status"] == server.writes[:2]


async def test_what_others_set_stays(autojump_clock: object) -> None:
    server = _Server()
    server.taints = [{"key": _TAINT, "effect": "NoSchedule"}, {"key": "mine", "effect": "NoSchedule"}]
    async with keeping(server) as status:
        status.want([_MEMORY])
        await until(lambda: server.is_true("reactor/MemoryPressure"))
        status.want([])
        await until(lambda: not server.is_true("reactor/MemoryPressure"))
    assert [_TAINT, "mine"] == [taint["key"] for taint in server.taints]


async def test_a_change_by_another_writer_in_between_is_not_lost() -> None:
    server = _Server()

    def meanwhile(_: Asked) -> Reply:
        server.taints = [{"key": "mine", "effect": "NoSchedule"}]
        server.version += 1  # the watch has not told of it yet
        return refusal(409, "the object has been modified")

    server.faults = [meanwhile]
    async with keeping(server) as status:
        status.want([_MEMORY])
        await until(server.is_tainted)
        assert status.problem is None
    assert {"mine", _TAINT} == {taint["key"] for taint in server.taints}


async def test_a_server_that_fails_is_a_problem_until_it_does_not() -> None:
    server = _Server()
    server.faults = [lambda _: refusal(403, "forbidden")] * 2
    async with keeping(server) as status:
        status.want([_MEMORY])
        await until(lambda: status.problem is not None)
        assert 'resources: ["nodes"], verbs: ["patch"]' in (status.problem or "")
        await until(lambda: server.is_tainted() and status.problem is None)


async def test_nothing_is_written_while_nothing_changes() -> None:
    server = _Server()
    async with keeping(server) as status:
        status.want([])
        await until(lambda: len(server.conditions) == 3)
        written = len(server.writes)
        for _ in range(5):
            status.want([])
            server.changed()
            await trio.sleep(0.02)
        assert written == len(server.writes)


async def test_conditions_have_a_heartbeat() -> None:
    server = _Server()
    async with keeping(server, heartbeat_seconds=0.1) as status:
        status.want([])
        await until(lambda: server.writes.count("/api/v1/nodes/one/status") >= 3)


async def test_a_node_that_the_server_does_not_have_is_named_and_nothing_is_written() -> None:
    server = _Server()
    async with keeping(server) as status:
        status.drop(server.document)
        status.listing()
        status.listed()
        status.want([_PID])
        await trio.sleep(0.05)
        assert "no node 'one'" in (status.missing or "")
        assert [] == server.writes
        status.take(server.document)
        await until(lambda: server.is_true("reactor/PIDPressure"))
        assert status.missing is None


async def test_in_a_dry_run_the_node_shows_nothing_and_nothing_more_is_written() -> None:
    """A reload begins the dry run and ends it; what is wanted then is shown again."""
    server = _Server()
    mark = Mark("MemoryContention", "example.com/contention:NoSchedule", "rule r")
    async with keeping(server, heartbeat_seconds=0.05) as status:
        status.want([_MEMORY])
        status.mark(Marks(shown=(mark,)))
        status.shut_down(is_under_way=True)
        await until(lambda: server.is_true("reactor/MemoryPressure") and server.is_tainted())
        status.order(is_dry_run=True)
        await until(lambda: server.taints == [] and not any(map(server.is_true, server.conditions)))
        writes = len(server.writes)
        status.want([_DISK])
        await trio.sleep(0.2)
        assert ([], writes) == (server.taints, len(server.writes))
        status.order(is_dry_run=False)
        await until(lambda: server.is_true("reactor/DiskPressure") and server.taints)


async def test_a_node_that_an_operator_took_out_of_service_is_shown_so_and_stays_so() -> None:
    server = _Server()
    server.taints = [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]
    async with keeping(server) as status:
        assert status.is_out_of_service
        status.want([_MEMORY])
        await until(server.is_tainted)
        status.want([])
        await until(lambda: not server.is_tainted())
        await status.withdraw()
        assert status.is_out_of_service
        server.taints = []
        server.changed()
        assert not status.is_out_of_service


async def test_an_unreadable_node_is_named() -> None:
    status = NodeStatus(None, "one", Role.SOLE)  # type: ignore[arg-type]
    status.take({"metadata": 3})
    assert "can't be read" in (status.missing or "")


async def test_a_problem_ends_with_the_outage_also_where_nothing_is_left_to_write() -> None:
    server = _Server()
    async with keeping(server) as status:
        status.want([])
        await until(lambda: len(server.conditions) == 3)
        server.faults = [lambda _: None] * 10_000  # until it is said that the outage is over
        status.want([_MEMORY])
        await until(lambda: status.problem is not None)
        status.want([])  # the pressure is over before it could be shown
        server.faults.clear()
        await until(lambda: status.problem is None)
    assert not server.is_true("reactor/MemoryPressure")


async def test_alone_on_the_node_a_condition_that_changes_is_reported_once_in_upstreams_words() -> None:
    server, events = _Server(), list[str]()
    server.conditions["PIDPressure"] = {"type": "PIDPressure", "status": "False", "reason": "Kubelet"}
    async with keeping(server, Role.SOLE, on_status=events.append) as status:
        status.want([])
        await until(lambda: len(server.conditions) == 3)
        # Of the third the node has shown the same before.
        await until(lambda: events == ["NodeHasSufficientMemory", "NodeHasNoDiskPressure"])
        events.clear()
        status.want([_MEMORY, _DISK, _PID])
        await until(lambda: server.is_true("PIDPressure"))
        expected = ["NodeHasInsufficientMemory", "NodeHasDiskPressure", "NodeHasInsufficientPID"]
        await until(lambda: events == expected)
        server.conditions["DiskPressure"] = {"type": "DiskPressure", "status": "False", "reason": "Kubelet"}
        server.changed()
        await until(lambda: server.is_true("DiskPressure"))
        status.want([_MEMORY, _DISK])
        await until(lambda: events == [*expected, "NodeHasSufficientPID"])


async def test_beside_a_kubelet_its_conditions_are_its_own_to_report() -> None:
    server, events = _Server(), list[str]()
    async with keeping(server, on_status=events.append) as status:
        status.want([_MEMORY])
        await until(lambda: server.is_true("reactor/MemoryPressure"))
        status.want([])
        await until(lambda: not server.is_true("reactor/MemoryPressure"))
    assert [] == events


async def test_a_condition_that_is_unknown_is_shown_so_and_brings_no_taint() -> None:
    server, events = _Server(), list[str]()
    async with keeping(server, Role.SOLE, on_status=events.append) as status:
        status.want([_MEMORY], [_DISK])
        await until(lambda: server.is_true("MemoryPressure") and server.is_tainted())
        disk = server.conditions["DiskPressure"]
        assert ("Unknown", "ReactorDoesNotObserveDisk", "reactor can't observe a filesystem") == (
            disk["status"],
            disk["reason"],
            disk["message"],
        )
        assert [_TAINT] == [taint["key"] for taint in server.taints]
        assert "NodeHasNoDiskPressure" not in events
        status.want([_MEMORY])
        await until(lambda: "NodeHasNoDiskPressure" in events)
        assert "False" == server.conditions["DiskPressure"]["status"]


async def test_a_condition_that_becomes_known_during_a_write_is_reported_once_it_is_shown() -> None:
    server = _Server()
    shown: dict[str, str] = {}

    def note(reason: str) -> None:
        shown[reason] = server.conditions["DiskPressure"]["status"]

    async with keeping(server, Role.SOLE, on_status=note) as status:
        told = server.on_change

        def change_meanwhile() -> None:
            told()
            if server.conditions:
                status.want([_MEMORY])

        server.on_change = change_meanwhile
        status.want([_MEMORY], [_DISK])
        await until(lambda: "NodeHasNoDiskPressure" in shown)
    assert "False" == shown["NodeHasNoDiskPressure"]


async def test_without_a_successor_what_was_set_is_removed_and_nothing_is_set_again() -> None:
    server = _Server()
    async with keeping(server) as status:
        status.want([_MEMORY])
        await until(lambda: server.is_true("reactor/MemoryPressure") and server.is_tainted())
        cleaned = await status.withdraw()
        assert ("one: removed 2 taints, 3 conditions", False) == (str(cleaned), server.is_tainted())
        assert {} == server.conditions
        writes = list(server.writes)
        status.want([_MEMORY, _DISK])
        server.changed()
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
        assert writes == server.writes
        assert {} == server.annotations


async def test_a_write_that_is_under_way_comes_before_the_removal() -> None:
    server = _Server()
    async with keeping(server) as status:
        taken_up = trio.Event()

        def slow(_: Asked) -> Reply | None:
            taken_up.set()
            return refusal(503, "busy")

        server.faults.append(slow)
        status.want([_MEMORY])
        await taken_up.wait()
        await status.withdraw()
        assert not server.is_tainted()
        assert not server.is_true("reactor/MemoryPressure")


@pytest.mark.parametrize(
    "refused",
    [refusal(403, "forbidden"), refusal(422, "denied by a webhook"), refusal(500, "failed calling webhook")],
)
async def test_a_refused_taint_does_not_keep_the_conditions_from_being_written(refused: Reply) -> None:
    server = _Server()
    server.refuses_taints = refused
    async with keeping(server) as status:
        status.want([_MEMORY])
        await until(lambda: server.is_true("reactor/MemoryPressure") and status.problem is not None)
        assert "PATCH /api/v1/nodes/one" in (status.problem or "")
        status.want([])
        await until(lambda: not server.is_true("reactor/MemoryPressure"))
        status.want([_DISK])
        await until(lambda: server.is_true("reactor/DiskPressure"))
        server.refuses_taints = None
        await until(lambda: [] != server.taints and status.problem is None)
    assert {"node.kubernetes.io/disk-pressure"} == {taint["key"] for taint in server.taints}


async def test_a_refused_taint_that_another_writer_has_set_is_no_problem_any_more() -> None:
    server = _Server()
    server.refuses_taints = refusal(403, "forbidden")
    async with keeping(server, Role.SOLE) as status:
        status.want([_MEMORY])
        await until(lambda: status.problem is not None)
        server.taints = [{"key": _TAINT, "effect": "NoSchedule"}]
        server.changed()
        await until(lambda: status.problem is None)
        with trio.fail_after(60):
            await trio.testing.wait_all_tasks_blocked(0.1)


async def test_nothing_is_tried_while_a_node_is_gone_whose_taint_was_fought_over() -> None:
    server = _Server()
    server.controller_keeps = lambda taint: taint["effect"] != "NoSchedule"
    async with keeping(server) as status:
        status.want([_MEMORY])
        await until(lambda: server.taint_writes == 2)
        status.drop(server.document)
        with trio.fail_after(60):
            await trio.sleep(1.5)  # past the next attempt
            await trio.testing.wait_all_tasks_blocked(0.1)
        assert 2 == server.taint_writes


async def test_a_taint_that_is_removed_again_and_again_is_set_ever_less_often(
    mock_clock: trio.testing.MockClock,
) -> None:
    mock_clock.rate = 40.0
    server = _Server()
    server.controller_keeps = lambda taint: taint["effect"] != "NoSchedule"
    async with keeping(server) as status:
        status.want([_MEMORY])
        await trio.sleep(30)
        assert 2 <= server.taint_writes <= 8
        within_30_seconds = server.taint_writes
        await trio.sleep(300)
        assert server.taint_writes - within_30_seconds <= 6
        assert [(_TAINT, "PreferNoSchedule")] == [(one["key"], one["effect"]) for one in server.taints]
        # What is new is written at once, and without the one that is fought over.
        status.want([_MEMORY, _DISK])
        await until(lambda: len(server.taints) == 2)
        status.want([])
        await until(lambda: [] == server.taints)
        assert {} == server.annotations


async def test_a_taint_that_has_stayed_for_a_while_is_set_again_at_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """The clock stands but where it is moved: no pause is ever over by itself."""
    server = _Server()
    async with keeping(server) as status:
        status.want([_MEMORY])
        for _ in range(12):  # pauses that go on doubling would be longer by then
            while not server.is_tainted():
                await trio.lowlevel.checkpoint()
            for _ in range(25):
                for _ in range(50):  # the answer is on its way
                    await trio.lowlevel.checkpoint()
                mock_clock.jump(1)
            server.taints = []
            server.changed()


async def test_the_taints_are_the_node_controllers_where_there_is_one(
    mock_clock: trio.testing.MockClock,
) -> None:
    mock_clock.rate = 40.0
    server = _Server()
    async with keeping(server, Role.SOLE, tainted_by=TaintedBy.NODE_CONTROLLER) as status:
        tell = server.on_change

        def controlled() -> None:
            """Taint as the node controller does, by the kubelet's conditions."""
            wanted = [{"key": _TAINT, "effect": "NoSchedule"}] if server.is_true("MemoryPressure") else []
            if server.taints != wanted:
                server.taints = wanted
                server.version += 1
            tell()

        server.on_change = controlled
        status.want([_MEMORY])
        await until(server.is_tainted)
        for _ in range(3):
            await trio.sleep(10)
            server.conditions["MemoryPressure"] = {"type": "MemoryPressure", "status": "False"}
            server.changed()
            await until(lambda: server.is_true("MemoryPressure") and server.is_tainted())
        status.want([])
        await until(lambda: not server.is_tainted())
    assert 0 == server.taint_writes


async def test_the_taints_are_reactors_where_no_node_controller_sets_them(
    mock_clock: trio.testing.MockClock,
) -> None:
    mock_clock.rate = 40.0
    server = _Server()
    async with keeping(server, Role.SOLE, tainted_by=TaintedBy.NODE_CONTROLLER) as status:
        status.want([_MEMORY])
        await until(server.is_tainted)
        assert {"reactor/taints": f"{_TAINT}:NoSchedule"} == server.annotations
        status.want([])
        await until(lambda: not server.is_tainted())


async def test_the_conditions_of_a_time_beside_a_kubelet_go_when_reactor_is_alone() -> None:
    server = _Server()
    async with keeping(server) as status:
        status.want([_MEMORY])
        await until(lambda: server.is_true("reactor/MemoryPressure"))
    async with keeping(server, Role.SOLE) as status:
        status.want([_MEMORY])
        await until(lambda: server.is_true("MemoryPressure"))
        await until(lambda: not any(kind.startswith("reactor/") for kind in server.conditions))
