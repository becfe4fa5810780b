"""The reactor's own Lease, against an API server that keeps one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from reactor.cluster.node_status import NodeLease, lease_namespace
from reactor.config.settings import settings_from_text
from reactor.errors import ConfigError
from reactor.kube.client import Recovery
from reactor.kube.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from reactor.model.settings import KubernetesSettings

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/reactor-system/leases"


class _Client:
    """Keeps one Lease; `failure` is what it answers instead."""

    def __init__(self) -> None:
        self.recovery = Recovery()
        self.lease: dict[str, Any] | None = None
        self.renewed = 0
        self.failure: ApiError | None = None

    async def patch(self, path: str, document: dict[str, Any], kind: str) -> None:
        await self._answer()
        assert (f"{_LEASES}/one", "application/merge-patch+json") == (path, kind)
        if self.lease is None:
            raise NotFoundError(path, "not found", status=404)
        self.lease["spec"] |= document["spec"]
        self.lease["metadata"] |= document["metadata"]
        self.renewed += 1

    async def create(self, path: str, document: dict[str, Any]) -> None:
        await self._answer()
        assert _LEASES == path
        self.lease = document
        self.renewed += 1

    async def _answer(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure


class _Guard:
    is_alive = True

    async def answer(self) -> bool:
        await trio.lowlevel.checkpoint()
        return self.is_alive


@asynccontextmanager
async def renewing(client: _Client, guard: _Guard) -> AsyncIterator[NodeLease]:
    async with trio.open_nursery() as nursery:
        lease = NodeLease(
            client,  # type: ignore[arg-type] - all that it uses of one
            "reactor-system",
            "one",
            guard.answer,
            lease_seconds=40,
            node_uid=lambda: "u",
            clock_unix_seconds=lambda: 60.25 + trio.current_time() * 0,
        )
        nursery.start_soon(lease.run)
        yield lease
        nursery.cancel_scope.cancel()


async def test_it_is_made_and_renewed_as_a_kubelets(autojump_clock: object) -> None:
    client = _Client()
    async with renewing(client, _Guard()) as lease:
        await trio.sleep(60)
        assert client.lease is not None
        assert {
            "holderIdentity": "one",
            "leaseDurationSeconds": 40,
            "renewTime": "1970-01-01T00:01:00.250000Z",
        } == client.lease["spec"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": "one", "uid": "u"}
        assert {"name": "one", "ownerReferences": [owner]} == client.lease["metadata"]
        assert 6 <= client.renewed <= 8
        assert lease.problem is None


async def test_nodes_that_come_up_together_renew_at_different_times(autojump_clock: object) -> None:
    clients = [_Client() for _ in range(50)]
    async with AsyncExitStack() as stack:
        for client in clients:
            await stack.enter_async_context(renewing(client, _Guard()))
        await trio.sleep(7)  # the first is up to 5 s late, and the next up to 10 s later
        assert 5 < sum(client.renewed > 1 for client in clients) < 45


async def test_it_has_its_owner_once_the_node_is_known(autojump_clock: object) -> None:
    client = _Client()
    client.lease = {"metadata": {"name": "one"}, "spec": {}}
    async with renewing(client, _Guard()):
        await trio.sleep(6)
        assert ["u"] == [owner["uid"] for owner in client.lease["metadata"]["ownerReferences"]]


async def test_one_that_was_made_though_the_answer_was_lost_is_no_problem(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """As a busy server has it: the first attempt times out, the second finds what that one has made."""
    client = _Client()
    made = client.create

    async def create(path: str, document: dict[str, Any]) -> None:
        await made(path, document)
        raise ConflictError(path, "already exists", status=409)

    client.create = create  # type: ignore[method-assign]
    async with renewing(client, _Guard()) as lease:
        await trio.sleep(6)
        assert lease.problem is None
        assert client.lease is not None
    assert "not renewed" not in caplog.text


async def test_it_lapses_while_the_guard_does_not_answer(autojump_clock: object) -> None:
    client, guard = _Client(), _Guard()
    async with renewing(client, guard):
        await trio.sleep(15)
        before, guard.is_alive = client.renewed, False
        await trio.sleep(60)
        assert before == client.renewed
        guard.is_alive = True
        await trio.sleep(11)
        assert before < client.renewed


async def test_a_missing_rule_is_a_problem_until_it_is_granted(autojump_clock: object) -> None:
    client = _Client()
    client.failure = ForbiddenError(_LEASES, "a rule is missing", status=403)
    async with renewing(client, _Guard()) as lease:
        await trio.sleep(30)
        assert "a rule is missing" in (lease.problem or "")
        client.failure = None
        await trio.sleep(11)
        assert lease.problem is None
        assert client.lease is not None


def test_the_namespace_is_configured_or_the_pods_own(tmp_path: Path) -> None:
    assert lease_namespace(KubernetesSettings(), tmp_path) is None
    (tmp_path / "namespace").write_text("reactor-system\n")
    assert "reactor-system" == lease_namespace(KubernetesSettings(), tmp_path)
    assert lease_namespace(KubernetesSettings(kubeconfig_path="/x"), tmp_path) is None
    assert "mine" == lease_namespace(
        KubernetesSettings(kubeconfig_path="/x", lease_namespace="mine"), tmp_path
    )
    assert lease_namespace(KubernetesSettings(lease_namespace="off"), tmp_path) is None


@pytest.mark.parametrize(("text", "expected"), [("mine", "mine"), ("off", "off"), ("false", "off")])
def test_the_key_takes_a_namespace_or_off(text: str, expected: str) -> None:
    found = settings_from_text(f"reactor: {{kubernetes: {{leaseNamespace: {text}}}}}", "x").kubernetes
    assert found is not None
    assert expected == found.lease_namespace
    with pytest.raises(ConfigError, match=r"reactor\.kubernetes\.leaseNamespace"):
        settings_from_text("reactor: {kubernetes: {leaseNamespace: A_b}}", "x")


@pytest.mark.parametrize(("text", "expected"), [("20s", 20.0), ("2m", 120.0), ("1h", 3600.0)])
def test_its_duration_is_configured(text: str, expected: float) -> None:
    found = settings_from_text(f"reactor: {{kubernetes: {{leaseDuration: {text}}}}}", "x").kubernetes
    assert found is not None
    assert expected == found.lease_seconds


@pytest.mark.parametrize("text", ["0s", "19s", "30500ms", "2h", "-1s", "often"])
def test_a_duration_that_helps_nobody_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"reactor\.kubernetes\.leaseDuration"):
        settings_from_text(f"reactor: {{kubernetes: {{leaseDuration: {text}}}}}", "x")
