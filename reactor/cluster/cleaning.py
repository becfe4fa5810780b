"""What a reactor that is gone has left on nodes: its taints, its annotation, its conditions.

They stay when a daemon ends, for its successor. Where there will be none they are removed by this: by the
daemon itself where it can tell (leaving.py), else by `reactor cluster clean`, for one node or for all.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reactor.errors import ConfigError
from reactor.kube.client import MERGE_PATCH, ApiClient
from reactor.kube.documents import node_path
from reactor.kube.errors import ApiError, ConflictError, UnreachableError
from reactor.kube.node import NodeObject, clean_status_patch, read_node, taints_patch
from reactor.model.settings import Role

_PAGE: Final = "50"
_MOST_PAGES: Final = 1_000
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What was removed from a node. `problem` is why something was not, None where nothing is left."""

    node: str
    taints: int = 0
    conditions: int = 0
    problem: str | None = None

    def __str__(self) -> str:
        """Return it as one line."""
        done = f"removed {self.taints} taints, {self.conditions} conditions"
        if not self.taints and not self.conditions:
            done = "nothing to remove" if self.problem is None else "nothing removed"
        return f"{self.node}: {done}" + ("" if self.problem is None else f"; {self.problem}")


async def clean(client: ApiClient, nodes: Sequence[str] | None) -> AsyncIterator[Cleaned]:
    """Clean these nodes, or all there are (None), one after the other; yield each as it is done.

    Raises ApiError where the nodes can't be listed.
    """
    if nodes is not None:
        for name in nodes:
            yield await clean_node(client, name)
        return
    going_on = ""
    for _ in range(_MOST_PAGES):
        query = {"limit": _PAGE} | ({"continue": going_on} if going_on else {})
        answer = await client.get("/api/v1/nodes", **query)
        for name in _names(answer):
            yield await clean_node(client, name)
        going_on = (answer.get("metadata") or {}).get("continue") or ""
        if not going_on:
            return
    raise UnreachableError("GET /api/v1/nodes", "the list of nodes has no end")


async def clean_node(client: ApiClient, name: str, begun: Callable[[], None] = lambda: None) -> Cleaned:
    """Clean a node; why something is left stands in what is returned.

    `begun` is called once the node is known, before each attempt to write. Taints go first: pods stay away
    from a node for them, while conditions are only shown.
    """
    path, taints, conditions = node_path(name), 0, 0
    for attempts_left in range(_ATTEMPTS - 1, -1, -1):
        try:
            node = read_node(await client.get(path))
            begun()
            patch = taints_patch(node, (), Role.ALONGSIDE, time.time())
            if patch is not None:
                await client.patch(path, patch, MERGE_PATCH)
                taints += _own_taints(node)
            status = clean_status_patch(node)
            if status is not None:
                await client.patch(f"{path}/status", status)
                conditions += len(status["status"]["conditions"])
            return Cleaned(node=name, taints=taints, conditions=conditions)
        except ConflictError as error:  # another client wrote in between
            if not attempts_left:
                return Cleaned(node=name, taints=taints, conditions=conditions, problem=str(error))
        except (ApiError, ConfigError) as error:
            return Cleaned(node=name, taints=taints, conditions=conditions, problem=str(error))
    raise AssertionError("the last attempt returns")


def _own_taints(node: NodeObject) -> int:
    return sum(taint.id in node.own_taints for taint in node.taints)


def _names(answer: Any) -> list[str]:
    try:
        return [str(item["metadata"]["name"]) for item in answer["items"]]
    except (TypeError, KeyError) as error:
        raise UnreachableError(
            "GET /api/v1/nodes", f"got {answer!r:.80}; accepted: a list of nodes"
        ) from error
