"""The kustomize base and its variants, built by kubectl, are the chart; the server takes what it makes."""

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
from ruamel.yaml import YAML

from tests.support.helm import POLICY, hook_of, of_kind, render

CLEAN = "post-delete"


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


def test_pod_update_strategy_rights_and_configuration_are_those_of_the_kustomize_base() -> None:
    chart, base = render({}), manifests()
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


def test_before_maxsurge_the_update_strategy_is_that_of_the_kustomize_overlay() -> None:
    old, overlay = render({}, version="v1.21.14"), manifests(BASE.parent / "overlays/before-1.22")
    ours, theirs = (of_kind("DaemonSet", each)["spec"]["updateStrategy"] for each in (old, overlay))
    assert {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}} == ours
    assert theirs["rollingUpdate"] == ours["rollingUpdate"]


def test_the_variants_are_those_of_the_kustomize_components(tmp_path: Path) -> None:
    if kubectl_version() < (1, 21):
        pytest.skip("kubectl knows no kustomize components; install one of 1.21 or newer")
    components = BASE.parent / "components"
    here = os.path.relpath(BASE.parent, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{here}/base]\n"
        f"components: [{', '.join(f'{here}/components/{each.name}' for each in components.iterdir())}]\n"
    )
    chart = render({"runtime": "crio", "deleteEvictedPods": True})
    kustomized = manifests(tmp_path)
    assert pod_spec(kustomized) == pod_spec(chart)
    assert of_kind("ValidatingAdmissionPolicy", kustomized)["metadata"]["name"] == "reactor"
    assert of_kind("ClusterRole", kustomized)["rules"] == of_kind("ClusterRole", chart)["rules"]


def test_the_server_takes_what_the_chart_makes(cluster: Cluster) -> None:
    documents = render({}, version=cluster.api.get("/version")["gitVersion"])
    cluster.api.create_unless_there("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for document in documents:
        cluster.api.create_unless_there(f"{collection(document)}?dryRun=All", document)


def test_the_policy_of_the_own_node_is_made_where_the_server_has_it_and_as_kustomize_makes_it() -> None:
    def policies(*apis: str, **values: Any) -> list[Object]:
        made = [dict(each) for each in render(values, *apis)]
        found = [each for each in made if each["kind"].startswith("ValidatingAdmission")]
        for each in found:
            each["metadata"].pop("labels")
        return found

    path = BASE.parent / "components/own-node-only/policy.yaml"
    expected = [dict(each) for each in YAML(typ="safe").load_all(path)]
    for each in expected:
        each["metadata"].pop("labels")
    assert expected == policies(POLICY) == policies(ownNodeOnly=True)
    assert [] == policies() == policies(POLICY, ownNodeOnly=False)


def test_what_is_left_on_nodes_is_removed_with_the_rights_that_kustomize_gives() -> None:
    chart, kustomized = render({}), manifests(BASE.parent / "clean")
    ours, theirs = of_kind("ClusterRole", chart, CLEAN), of_kind("ClusterRole", kustomized)
    assert theirs["rules"] == ours["rules"]
    ours, theirs = of_kind("Job", chart, CLEAN), of_kind("Job", kustomized)
    assert args_of(theirs) == args_of(ours)
    assert [] == [each for each in render({"cleanNodes": False}) if hook_of(each) == CLEAN]


def args_of(job: Object) -> list[str]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return list(container["args"])
