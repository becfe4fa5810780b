from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from ruamel.yaml import YAML

from reactor.doctor.kubernetes import (
    EVICTION,
    NO_EVICTION,
    NODE,
    RULES,
    SERVER,
    _asked,
    _missing_rules,
    kubelet_eviction,
    kubernetes_features,
    reserved_too_little,
)
from reactor.doctor.thresholds import ALLOCATABLE, hard_threshold_bytes, reserved_feature
from reactor.kernel.features import Feature
from reactor.model.settings import EvictionSettings, KubernetesSettings, PodOrigin, Role, Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from tests.support.api_faults import Asked, FaultServer, Reply, refusal, served
from tests.support.builders import make_threshold


def _eviction(path: Path, text: str, role: Role = Role.SOLE) -> Feature:
    path.write_text(text)
    return kubelet_eviction(KubernetesSettings(role=role, kubelet_config_path=str(path)))


def test_a_kubelet_that_evicts_too_is_named_with_what_switches_it_off(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    found = _eviction(path, "evictionHard: {memory.available: 100Mi}\n")
    assert (EVICTION, False) == (found.name, found.available)
    assert "memory.available<100Mi" in found.detail
    _, _, printed = found.remedy.partition("restart the kubelet: ")
    assert NO_EVICTION == json.loads(printed)
    assert "localStorageCapacityIsolation" not in printed


def test_what_reactor_keeps_free_is_to_be_reserved_where_the_kubelet_subtracts_it_no_more(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    kept = {"memory": 512 << 20, "ephemeral-storage": 10 << 30}
    path.write_text("systemReserved: {cpu: 500m, memory: 1Gi}\nkubeReserved: {memory: 100Mi}\n")
    settings = KubernetesSettings(role=Role.SOLE, kubelet_config_path=str(path))
    _, _, printed = kubelet_eviction(settings, kept).remedy.partition("restart the kubelet: ")
    wanted = json.loads(printed)
    assert {"cpu": "500m", "memory": "1536Mi", "ephemeral-storage": "10Gi"} == wanted["systemReserved"]
    path.write_text(json.dumps({**wanted, "kubeReserved": {"memory": "100Mi"}}))
    found = kubelet_eviction(settings, kept)
    assert found.available
    assert "" == found.remedy


def test_a_kubelet_that_does_not_evict_and_reserves_too_little_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({**NO_EVICTION, "systemReserved": {"memory": "100Mi"}}))
    settings = KubernetesSettings(role=Role.SOLE, kubelet_config_path=str(path))
    found = kubelet_eviction(settings, {"memory": 200 << 20})
    assert not found.available
    assert "memory by 200Mi" in found.detail
    assert '{"systemReserved": {"memory": "300Mi"}}' in found.remedy


def test_a_node_without_isolation_of_local_storage_is_named(tmp_path: Path) -> None:
    text = json.dumps({**NO_EVICTION, "localStorageCapacityIsolation": False})
    found = _eviction(tmp_path / "config.yaml", text)
    assert not found.available
    assert "stay Pending" in found.detail
    assert '{"localStorageCapacityIsolation": true}' in found.remedy


def test_hard_thresholds_of_memory_and_nodefs_are_what_is_kept_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "reactor.doctor.thresholds._memory_and_processes",
        lambda *_: {Signal.MEMORY_AVAILABLE: Observation(available=1, capacity=1 << 30)},
    )
    thresholds = (
        make_threshold(100 << 20),
        make_threshold(200 << 20, grace_period_seconds=30),
        make_threshold(100, Signal.PID_AVAILABLE),
    )
    settings = Settings(eviction=EvictionSettings(thresholds=thresholds))
    assert {"memory": 100 << 20} == hard_threshold_bytes(settings)


@pytest.mark.parametrize(
    ("role", "kubelet", "short"),
    [
        (Role.ALONGSIDE, "evictionHard: {memory.available: 100Mi}", "100Mi"),
        (Role.ALONGSIDE, "kind: KubeletConfiguration", "100Mi"),  # its default
        (Role.ALONGSIDE, "evictionHard: {memory.available: 200Mi}", None),
        (Role.ALONGSIDE, "systemReserved: {memory: 50Mi}\nkubeReserved: {memory: 50Mi}", None),
        (Role.SOLE, "evictionHard: {memory.available: 0%}", "200Mi"),
        (Role.SOLE, "evictionHard: {memory.available: 0%}\nsystemReserved: {memory: 200Mi}", None),
    ],
)
def test_a_threshold_that_keeps_more_than_the_scheduler_leaves_is_found_in_both_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role, kubelet: str, short: str | None
) -> None:
    monkeypatch.setattr(
        "reactor.doctor.thresholds._memory_and_processes",
        lambda *_: {Signal.MEMORY_AVAILABLE: Observation(available=1, capacity=1 << 30)},
    )
    path = tmp_path / "config.yaml"
    path.write_text(f"{kubelet}\n")
    settings = Settings(
        eviction=EvictionSettings(thresholds=(make_threshold(200 << 20),)),
        kubernetes=KubernetesSettings(role=role, kubelet_config_path=str(path)),
    )
    found = dict(reserved_too_little(settings))
    assert ([] if short is None else ['evictionHard["memory.available"]']) == list(found)
    assert all(f"add {short} of memory to systemReserved" in why for why in found.values())


def test_where_there_is_no_kubelet_nothing_is_said_of_what_it_reserves(tmp_path: Path) -> None:
    settings = Settings(eviction=EvictionSettings(thresholds=(make_threshold(200 << 20),)))
    assert [] == list(reserved_too_little(settings))
    gone = KubernetesSettings(kubelet_config_path=str(tmp_path / "gone"))
    assert [] == list(reserved_too_little(replace(settings, kubernetes=gone)))


@pytest.mark.parametrize("merged", ["", "mergeDefaultEvictionSettings: true\n"])
def test_what_is_printed_switches_it_off(tmp_path: Path, merged: str) -> None:
    path = tmp_path / "config.yaml"
    with path.open("w") as file:
        YAML().dump(dict(NO_EVICTION), file)
    found = _eviction(path, merged + path.read_text())
    assert found.available
    assert "" == found.remedy


_SOFT = """
evictionHard: {}
evictionSoft: {memory.available: 1Gi}
evictionSoftGracePeriod: {memory.available: 1m}
"""


@pytest.mark.parametrize("text", ["", _SOFT])
def test_defaults_and_soft_thresholds_are_eviction_too(tmp_path: Path, text: str) -> None:
    assert not _eviction(tmp_path / "config.yaml", text).available


def test_beside_a_kubelet_nothing_is_asked_of_its_configuration(tmp_path: Path) -> None:
    found = _eviction(tmp_path / "config.yaml", "evictionHard: {memory.available: 100Mi}\n", Role.ALONGSIDE)
    assert "" == found.remedy
    gone = kubelet_eviction(KubernetesSettings(kubelet_config_path=str(tmp_path / "gone")))
    assert "" == gone.remedy


@pytest.mark.parametrize("text", ["[", "\x00", "evictionHard: 3\n"])
def test_a_configuration_that_can_not_be_read_is_not_taken_for_a_good_one(tmp_path: Path, text: str) -> None:
    found = _eviction(tmp_path / "config.yaml", text)
    assert not found.available
    assert "unknown" in found.detail
    settings = KubernetesSettings(kubelet_config_path=str(tmp_path / "gone"), role=Role.SOLE)
    gone = kubelet_eviction(settings)
    assert "No such file" in gone.detail
    assert "reactor.kubernetes.kubelet.config" in gone.remedy


def test_a_plain_node_has_nothing_of_it() -> None:
    assert () == kubernetes_features(Settings())


def test_credentials_that_are_missing_are_named(tmp_path: Path) -> None:
    settings = KubernetesSettings(kubeconfig_path=str(tmp_path / "gone"), kubelet_config_path="/gone")
    server, eviction = kubernetes_features(Settings(kubernetes=settings))
    assert (SERVER, False) == (server.name, server.available)
    assert "gone" in server.detail
    assert EVICTION == eviction.name


# A kubelet of 16 GiB with its default threshold, and nothing reserved.
_NODE = {
    "status": {
        "capacity": {"cpu": "4", "memory": "16777216Ki", "ephemeral-storage": "100Gi"},
        "allocatable": {"cpu": "4", "memory": "16674816Ki", "ephemeral-storage": "96636764160"},
    }
}


async def _features(
    tmp_path: Path, *, denied: str = "", node: bool = True, kept: dict[str, int] | None = None
) -> dict[str, Feature]:
    def script(asked: Asked) -> Reply:
        if asked.path == "/version":
            return Reply(body={"gitVersion": "v1.20.2"})
        if asked.method == "POST":
            attributes = asked.body["spec"]["resourceAttributes"]
            return Reply(body={"status": {"allowed": attributes["subresource"] != denied or not denied}})
        return Reply(body=_NODE) if node else refusal(404, "not found")

    server = FaultServer(script)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        path = tmp_path / "kubeconfig"
        path.write_text(
            "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
            f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
        )
        found = await _asked(KubernetesSettings(kubeconfig_path=str(path), node_name="one"), kept or {}, None)
        nursery.cancel_scope.cancel()
    return {feature.name: feature for feature in found}


async def test_a_server_that_grants_everything_is_well(tmp_path: Path) -> None:
    found = await _features(tmp_path)
    assert [SERVER, RULES, NODE, ALLOCATABLE] == list(found)
    assert all(feature.available for feature in found.values())
    assert "v1.20.2" == found[SERVER].detail


async def test_what_the_scheduler_may_give_away_is_compared_with_what_reactor_keeps_free(
    tmp_path: Path,
) -> None:
    """Beside a kubelet that keeps 100Mi, pods within their requests reach a threshold of 200Mi."""
    found = (await _features(tmp_path, kept={"memory": 200 << 20, "ephemeral-storage": 10 << 30}))[
        ALLOCATABLE
    ]
    assert not found.available
    assert "memory: 100Mi reserved, reactor keeps 200Mi free" in found.detail
    assert "ephemeral-storage: 10Gi reserved, reactor keeps 10Gi free" in found.detail
    assert "add to systemReserved in the kubelet's configuration memory 100Mi, or lower" in found.remedy
    kept = (await _features(tmp_path, kept={"memory": 100 << 20}))[ALLOCATABLE]
    assert (True, "") == (kept.available, kept.remedy)


def test_what_is_used_outside_the_pods_has_to_be_reserved_too() -> None:
    kept = {"memory": 60 << 20}
    assert reserved_feature(_NODE, kept, 40 << 20).available
    short = reserved_feature(_NODE, kept, 41 << 20)
    assert "memory 1Mi" in short.remedy
    assert "41Mi are used outside the pods" in short.detail


@pytest.mark.parametrize(
    "node", [{}, {"status": None}, {"status": {"capacity": [], "allocatable": {"memory": "1Gi"}}}]
)
def test_a_node_that_does_not_say_what_it_may_give_away_is_not_judged(node: dict[str, object]) -> None:
    found = reserved_feature(node, {"memory": 200 << 20})
    assert (True, "") == (found.available, found.remedy)


@pytest.mark.parametrize(
    ("version", "granted", "missing"),
    [
        ((1, 20), {"proxy"}, []),
        ((1, 20), {"pods"}, ["get on nodes/proxy"]),
        ((1, 36), {"pods"}, []),
        ((1, 36), {"proxy"}, []),
        ((1, 36), set(), ["get on nodes/pods"]),
    ],
)
async def test_pods_from_the_kubelet_need_the_narrow_right_where_there_is_one(
    version: tuple[int, int], granted: set[str], missing: list[str]
) -> None:
    class Server:
        async def create(self, _path: str, review: dict[str, Any]) -> dict[str, Any]:
            asked = review["spec"]["resourceAttributes"]
            allowed = asked["subresource"] in granted if asked["subresource"] in {"proxy", "pods"} else True
            return {"status": {"allowed": allowed}}

    settings = KubernetesSettings(pods_from=PodOrigin.KUBELET)
    assert missing == await _missing_rules(Server(), settings, version)


async def test_missing_rules_are_named(tmp_path: Path) -> None:
    found = await _features(tmp_path, denied="status")
    assert "missing: patch on nodes/status; patch on pods/status" == found[RULES].detail
    assert "rbac.yaml" in found[RULES].remedy


async def test_the_rules_of_the_lease_are_asked_for_where_there_is_one(tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []

    def script(request: Asked) -> Reply:
        attributes = request.body["spec"]["resourceAttributes"]
        asked.append(attributes)
        return Reply(body={"status": {"allowed": attributes["resource"] != "leases"}})

    settings = KubernetesSettings(kubeconfig_path=str(tmp_path / "gone"))
    async with served(script) as (_, client):
        assert [] == await _missing_rules(client, settings)
        missing = await _missing_rules(client, replace(settings, lease_namespace="mine"))
    assert ["create on leases", "patch on leases"] == missing
    lease = {"group": "coordination.k8s.io", "namespace": "mine", "resource": "leases", "subresource": ""}
    assert {**lease, "verb": "patch"} == asked[-1]


async def test_an_unknown_node_name_is_named(tmp_path: Path) -> None:
    found = await _features(tmp_path, node=False)
    assert "there is no 'one'" == found[NODE].detail
    assert "NODE_NAME" in found[NODE].remedy
