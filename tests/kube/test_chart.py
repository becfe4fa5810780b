"""The Helm chart says the same as the kustomize base, and the server takes what it makes."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from api import Object
from cluster import Cluster
from deployed import BASE, NAMESPACE, collection, manifests
from rendering import CHART, render, rendered
from ruamel.yaml import YAML


def of_kind(kind: str, documents: list[Object], *, in_hook: bool = False) -> Object:
    """Return the release's object of a kind, or that of its hook."""
    (found,) = [each for each in documents if each["kind"] == kind and is_in_hook(each) == in_hook]
    return found


def is_in_hook(document: Object) -> bool:
    return "helm.sh/hook" in document["metadata"].get("annotations", {})


def kubectl_version() -> tuple[int, int]:
    command = ["kubectl", "version", "--client", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    version = json.loads(done.stdout)["clientVersion"]
    return int(version["major"]), int(version["minor"].rstrip("+"))


def pod_spec(documents: list[Object]) -> Object:
    """Return what the pod is, without the configuration's name, in which kustomize has a hash."""
    spec: Object = copy.deepcopy(of_kind("DaemonSet", documents)["spec"]["template"]["spec"])
    for volume in spec["volumes"]:
        if volume["name"] == "config":
            volume["configMap"] = {}
    for ordered in (spec["volumes"], spec["containers"][0]["volumeMounts"]):
        ordered.sort(key=lambda each: (each["name"], each.get("mountPath", "")))
    spec["containers"][0].pop("imagePullPolicy", None)
    return spec


def test_pod_update_strategy_rights_and_configuration_are_those_of_the_kustomize_base(
    renderer: Path,
) -> None:
    chart, base = render(renderer, {}), manifests()
    assert pod_spec(base) == pod_spec(chart)
    strategy, ready = "updateStrategy", "minReadySeconds"
    ours, theirs = (of_kind("DaemonSet", each)["spec"] for each in (chart, base))
    assert (theirs[strategy], theirs[ready]) == (ours[strategy], ours[ready])
    for kind in ("ClusterRole", "Role"):
        assert of_kind(kind, base)["rules"] == of_kind(kind, chart)["rules"]
    configurations = [
        YAML(typ="safe").load(of_kind("ConfigMap", each)["data"]["config.yaml"]) for each in (base, chart)
    ]
    assert configurations[0] == configurations[1]


def test_before_maxsurge_the_update_strategy_is_that_of_the_kustomize_overlay(renderer: Path) -> None:
    old, overlay = render(renderer, {}, "v1.21.14"), manifests(BASE.parent / "overlays/before-1.22")
    ours, theirs = (of_kind("DaemonSet", each)["spec"]["updateStrategy"] for each in (old, overlay))
    assert {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}} == ours
    assert theirs["rollingUpdate"] == ours["rollingUpdate"]


def test_the_variants_are_those_of_the_kustomize_components(renderer: Path, tmp_path: Path) -> None:
    if kubectl_version() < (1, 21):
        pytest.skip("kubectl knows no kustomize components; install one of 1.21 or newer")
    components = BASE.parent / "components"
    here = os.path.relpath(BASE.parent, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{here}/base]\n"
        f"components: [{', '.join(f'{here}/components/{each.name}' for each in components.iterdir())}]\n"
    )
    chart = render(renderer, {"runtime": "crio", "deleteEvictedPods": True})
    kustomized = manifests(tmp_path)
    assert pod_spec(kustomized) == pod_spec(chart)
    assert of_kind("ValidatingAdmissionPolicy", kustomized)["metadata"]["name"] == "reactor"
    assert of_kind("ClusterRole", kustomized)["rules"] == of_kind("ClusterRole", chart)["rules"]


@pytest.mark.parametrize(
    ("section", "socket"),
    [
        ({"metrics": "off"}, "/run/reactor/reactor.sock"),
        ({"metrics": "0.0.0.0:9000", "socket": "/run/reactor/other.sock"}, "/run/reactor/other.sock"),
        (None, "/run/reactor/reactor.sock"),
    ],
)
def test_probes_follow_the_socket_and_not_the_address_of_the_metrics(
    renderer: Path, section: dict[str, Any] | None, socket: str
) -> None:
    (container,) = pod_spec(render(renderer, {"config": {"reactor": section}}))["containers"]
    for name, words in (("livenessProbe", []), ("readinessProbe", ["--ready"])):
        command = container[name]["exec"]["command"]
        assert command[1:] == ["-I", "-m", "reactor.healthz", *words, socket]


def test_the_server_takes_what_the_chart_makes(cluster: Cluster, renderer: Path) -> None:
    documents = render(renderer, {}, cluster.api.get("/version")["gitVersion"])
    cluster.api.create_unless_there("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for document in documents:
        cluster.api.create_unless_there(f"{collection(document)}?dryRun=All", document)


def test_the_policy_of_the_own_node_is_made_where_the_server_has_it_and_as_kustomize_makes_it(
    renderer: Path,
) -> None:
    def policies(*apis: str, **values: Any) -> list[Object]:
        made = [dict(each) for each in render(renderer, values, *apis)]
        found = [each for each in made if each["kind"].startswith("ValidatingAdmission")]
        for each in found:
            each["metadata"].pop("labels")
        return found

    path = BASE.parent / "components/own-node-only/policy.yaml"
    expected = [dict(each) for each in YAML(typ="safe").load_all(path)]
    served = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
    assert expected == policies(served) == policies(ownNodeOnly=True)
    assert [] == policies() == policies(served, ownNodeOnly=False)
    assert "accepted: auto, true, false" in rendered(renderer, {"ownNodeOnly": "maybe"}).stderr


def test_a_runtime_that_the_chart_does_not_know_is_refused_by_name(renderer: Path) -> None:
    done = rendered(renderer, {"runtime": "docker"})
    assert done.returncode == 1
    assert 'runtime: "docker"; accepted: containerd, crio' in done.stderr


def test_what_is_left_on_nodes_is_removed_with_the_rights_that_kustomize_gives(renderer: Path) -> None:
    chart, kustomized = render(renderer, {}), manifests(BASE.parent / "clean")
    ours, theirs = of_kind("ClusterRole", chart, in_hook=True), of_kind("ClusterRole", kustomized)
    assert theirs["rules"] == ours["rules"]
    ours, theirs = of_kind("Job", chart, in_hook=True), of_kind("Job", kustomized)
    assert args_of(theirs) == args_of(ours)
    assert [] == [each for each in render(renderer, {"cleanNodes": False}) if is_in_hook(each)]


def args_of(job: Object) -> list[str]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


def test_another_release_is_another_set_of_objects(renderer: Path) -> None:
    command = [renderer, CHART, NAMESPACE, "second"]
    done = subprocess.run(command, input="{}", capture_output=True, text=True, check=True, timeout=30)
    documents = [dict(each) for each in YAML(typ="safe").load_all(done.stdout) if each]
    assert {document["metadata"]["name"] for document in documents} == {
        "second-reactor",
        "second-reactor-clean",
    }
