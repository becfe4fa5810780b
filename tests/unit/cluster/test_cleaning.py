"""What a reactor that is gone has left on nodes is removed, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from reactor.cli import main
from reactor.cluster.leaving import Cleaned, clean
from reactor.kube.client import ApiClient
from reactor.kube.errors import UnreachableError
from tests.support.api_faults import Asked, FaultServer, Reply, chunk, refusal, served

_MEMORY, _DISK = "node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure"


def _node(name: str, *, dirty: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"}]
    taints = [{"key": _DISK, "effect": "NoSchedule"}]
    annotations = {"other": "kept"}
    if dirty:
        conditions += [{"type": f"reactor/{kind}", "status": "True"} for kind in ("A", "B", "C")]
        taints += [{"key": _MEMORY, "effect": effect} for effect in ("NoSchedule", "PreferNoSchedule")]
        annotations["reactor/taints"] = f"{_MEMORY}:NoSchedule,{_MEMORY}:PreferNoSchedule"
    return {
        "metadata": {"name": name, "resourceVersion": "5", "annotations": annotations},
        "spec": {"taints": taints},
        "status": {"conditions": conditions},
    }


class _Server:
    """Keeps nodes, and applies what the cleaning patches; `faults` answer first, one each."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.nodes = {node["metadata"]["name"]: node for node in nodes}
        self.faults: list[Callable[[Asked], Reply | None]] = []
        self.refused: str | None = None
        self.writes = 0

    def __call__(self, asked: Asked) -> Reply | None:
        if asked.path == "/api/v1/nodes":
            return self._listed(int(asked.query.get("continue", "0")))
        node = self.nodes.get(asked.path.split("/")[4])
        if node is None:
            return refusal(404, "not found")
        if asked.method == "PATCH":
            if asked.path.split("/")[4] == self.refused:
                return refusal(403, "forbidden")
            if self.faults:
                return self.faults.pop(0)(asked)
            self.writes += 1
            if asked.path.endswith("/status"):
                gone = {
                    one["type"] for one in asked.body["status"]["conditions"] if one["$patch"] == "delete"
                }
                kept = [one for one in node["status"]["conditions"] if one["type"] not in gone]
                node["status"]["conditions"] = kept
            else:
                told = {**node["metadata"]["annotations"], **asked.body["metadata"]["annotations"]}
                node["metadata"]["annotations"] = {key: one for key, one in told.items() if one is not None}
                node["spec"]["taints"] = asked.body["spec"]["taints"] or []
        return Reply(body=node)

    def _listed(self, start: int) -> Reply:
        names = list(self.nodes)
        going_on = str(start + 2) if start + 2 < len(names) else ""
        items = [self.nodes[name] for name in names[start : start + 2]]
        return Reply(body={"metadata": {"continue": going_on}, "items": items})


async def _cleaned(client: ApiClient, *nodes: str) -> list[Cleaned]:
    return [one async for one in clean(client, nodes or None)]


async def test_every_node_is_as_if_there_had_been_no_reactor() -> None:
    server = _Server(*(_node(name) for name in "abc"), _node("d", dirty=False))
    async with served(server) as (_, client):
        lines = [str(one) for one in await _cleaned(client)]
        assert [f"{name}: removed 2 taints, 3 conditions" for name in "abc"] == lines[:3]
        assert "d: nothing to remove" == lines[3]
        assert [_node(name, dirty=False) for name in "abcd"] == list(server.nodes.values())
        writes = server.writes
        assert ["a: nothing to remove"] == [str(one) for one in await _cleaned(client, "a")]
        assert writes == server.writes


async def test_nodes_are_cleaned_eight_at_a_time_and_told_in_their_order() -> None:
    """Where a request takes 20 ms, those for 5,000 nodes one by one take as long as a Job of ours may."""
    names = [f"n{number}" for number in range(16)]
    server, waiting, all_wait = _Server(*map(_node, names)), set[str](), trio.Event()

    def answer(asked: Asked) -> Reply | None:
        reply = server(asked)
        if asked.path == "/api/v1/nodes":
            return Reply(body={"metadata": {}, "items": list(server.nodes.values())})
        if reply is None or asked.method != "GET":
            return reply

        async def later(stream: trio.SocketStream) -> None:
            waiting.add(asked.path)
            if len(waiting) == 8:
                all_wait.set()
            await all_wait.wait()
            await stream.send_all(chunk(json.dumps(reply.body).encode()) + b"0\r\n\r\n")

        return Reply(after=later)

    async with served(answer) as (_, client):
        with trio.fail_after(10):
            lines = [str(one) for one in await _cleaned(client)]
    assert [f"{name}: removed 2 taints, 3 conditions" for name in names] == lines


async def test_only_the_named_nodes_are_cleaned_and_one_that_is_not_there_is_a_problem() -> None:
    server = _Server(_node("a"), _node("b"))
    async with served(server) as (_, client):
        done, missing = await _cleaned(client, "a", "x")
        assert done.problem is None
        assert "nothing removed; " in str(missing)
        assert _node("b") == server.nodes["b"]


async def test_a_node_that_others_write_to_is_read_again_and_one_that_is_refused_stops_no_other() -> None:
    server = _Server(_node("a"), _node("b"))
    server.faults = [lambda _: refusal(409, "the object has been modified")] * 2
    async with served(server) as (_, client):
        assert [None] == [one.problem for one in await _cleaned(client, "a")]
        server.nodes["a"] = _node("a")
        server.refused = "a"
        first, second = await _cleaned(client)
        assert "forbidden" in (first.problem or "")
        assert 3 == second.conditions


async def test_a_list_of_nodes_that_is_none_is_refused() -> None:
    async with served(lambda _: Reply(body={"items": 3})) as (_, client):
        with pytest.raises(UnreachableError, match="accepted: a list of nodes"):
            await _cleaned(client)


def test_the_command_prints_each_node_and_fails_where_something_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kubeconfig"
    statuses: list[int] = []

    async def run() -> None:
        server = FaultServer(_Server(_node("a")))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve)
            path.write_text(
                "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
                f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
            )
            for nodes in (["--all"], ["--node", "a", "--node", "x"]):
                asked = ["cluster", "clean", *nodes, "--kubeconfig", str(path)]
                statuses.append(await trio.to_thread.run_sync(main, asked))
            nursery.cancel_scope.cancel()

    trio.run(run)
    assert [0, 1] == statuses
    lines = capsys.readouterr().out.splitlines()
    assert ["a: removed 2 taints, 3 conditions", "a: nothing to remove"] == lines[:2]
    assert lines[2].startswith("x: nothing removed; ")
