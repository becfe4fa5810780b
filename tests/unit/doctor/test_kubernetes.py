from __future__ import annotations

import json
from pathlib import Path

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
    kubelet_eviction,
    kubernetes_features,
)
from reactor.kernel.features import Feature
from reactor.model.settings import KubernetesSettings, Role, Settings
from tests.support.api_faults import Asked, FaultServer, Reply, refusal


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


async def _features(tmp_path: Path, *, denied: str = "", node: bool = True) -> dict[str, Feature]:
    def script(asked: Asked) -> Reply:
        if asked.path == "/version":
            return Reply(body={"gitVersion": "v1.20.2"})
        if asked.method == "POST":
            attributes = asked.body["spec"]["resourceAttributes"]
            return Reply(body={"status": {"allowed": attributes["subresource"] != denied or not denied}})
        return Reply(body={}) if node else refusal(404, "not found")

    server = FaultServer(script)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        path = tmp_path / "kubeconfig"
        path.write_text(
            "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
            f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
        )
        found = await _asked(KubernetesSettings(kubeconfig_path=str(path), node_name="one"))
        nursery.cancel_scope.cancel()
    return {feature.name: feature for feature in found}


async def test_a_server_that_grants_everything_is_well(tmp_path: Path) -> None:
    found = await _features(tmp_path)
    assert [SERVER, RULES, NODE] == list(found)
    assert all(feature.available for feature in found.values())
    assert "v1.20.2" == found[SERVER].detail


async def test_missing_rules_are_named(tmp_path: Path) -> None:
    found = await _features(tmp_path, denied="status")
    assert "missing: patch on nodes/status; patch on pods/status" == found[RULES].detail
    assert "rbac.yaml" in found[RULES].remedy


async def test_an_unknown_node_name_is_named(tmp_path: Path) -> None:
    found = await _features(tmp_path, node=False)
    assert "there is no 'one'" == found[NODE].detail
    assert "NODE_NAME" in found[NODE].remedy
