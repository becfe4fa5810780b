"""The chart by real Helm: pools, what is refused, what is generated, what Kubernetes' schemas say of it."""

from __future__ import annotations

import copy
import itertools
import json
import re
import runpy
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from reactor.config.kubelet import DEFAULT_HARD
from tests.support.api_faults import Asked, Reply, served
from tests.support.helm import (
    CHART,
    NAMESPACE,
    POLICY,
    ROOT,
    Object,
    configuration,
    helm,
    hook_of,
    named,
    of_kind,
    refusal,
    render,
)

EVERYTHING: dict[str, Any] = {
    "metrics": {
        "proxy": {
            "enabled": True,
            "tlsSecret": "certificate",
            "scrapers": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}],
        },
        "podMonitor": {"enabled": True},
        "rules": {"enabled": True, "runbookBase": "https://wiki.example.com/reactor/"},
        "dashboard": {"enabled": True},
    },
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
    "namespace": {"create": True},
    "openshift": True,
    "deleteEvictedPods": True,
    "runtime": "crio",
    "image": {"tag": "1", "pullSecrets": [{"name": "x"}]},
    "podLabels": {"a": "b"},
    "podAnnotations": {"c": "d: e"},
    "seLinuxOptions": {"type": "spc_t"},
    "priorityClassName": "guards",
    "minReadySeconds": 30,
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "2%", "maxUnavailable": 0}},
    "nodeExpressions": [{"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]}],
    "extraEnv": [{"name": "LANG", "value": "C.UTF-8"}],
    "extraVolumes": [{"name": "hook", "secret": {"secretName": "hook"}}],
    "extraVolumeMounts": [{"name": "hook", "mountPath": "/etc/hook", "readOnly": True}],
    "pools": [
        {
            "name": "gpu",
            "nodeSelector": {"pool": "gpu"},
            "dryRun": False,
            "config": {"evictionHard": {"memory.available": "1Gi", "nodefs.available": None}},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
        {"name": "db", "nodeSelector": {"pool": "db", "disk": "ssd"}, "minReadySeconds": 0},
    ],
}


def daemon_sets(documents: list[Object]) -> list[Object]:
    """Return those of the daemons."""
    found = [each for each in documents if each["kind"] == "DaemonSet"]
    return [each for each in found if each["spec"]["template"]["spec"].get("hostPID")]


def selects(daemon_set: Object, labels: dict[str, str]) -> bool:
    """Return whether a DaemonSet makes a pod on a node with these labels, by Kubernetes' rules."""

    def holds(expression: dict[str, Any]) -> bool:
        has, value = expression["key"] in labels, labels.get(expression["key"])
        match expression["operator"]:
            case "In":
                return has and value in expression["values"]
            case "NotIn":
                return not has or value not in expression["values"]
        raise ValueError(expression["operator"])

    spec = daemon_set["spec"]["template"]["spec"]
    if not spec["nodeSelector"].items() <= labels.items():
        return False
    if "affinity" not in spec:
        return True
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return any(all(map(holds, term["matchExpressions"])) for term in required["nodeSelectorTerms"])


def test_what_is_generated_is_what_its_sources_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "deploy/generate.py", "--check", "--helm", helm()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_it_is_helm_4_and_finds_nothing_wrong_with_the_chart() -> None:
    done = subprocess.run([helm(), "lint", "--strict", CHART], capture_output=True, text=True, check=True)
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout
    assert not re.search(r"\[(WARNING|ERROR)\]", done.stdout)


@pytest.mark.parametrize(
    ("version", "values"),
    [("1.25.0", EVERYTHING), ("1.30.0", EVERYTHING), ("1.37.0", EVERYTHING), ("1.37.0", {})],
    ids=["1.25", "1.30", "1.37", "1.37 by default"],
)
def test_kubernetes_own_schemas_know_every_field(version: str, values: dict[str, Any]) -> None:
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="no schemas of Kubernetes: pip install kubernetes-validate"
    )
    served = () if version == "1.25.0" else (POLICY,)
    documents = render(values, *served, version=f"v{version}")
    ours = [each for each in documents if not each["apiVersion"].startswith("monitoring.coreos.com/")]
    for document in ours:
        schemas.validate(document, version, strict=True)
    broken = copy.deepcopy(of_kind("ConfigMap", render({}))) | {"dada": {}}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(broken, version, strict=True)


def test_the_default_thresholds_are_the_kubelets_so_no_guaranteed_pod_dies_that_it_would_spare() -> None:
    written = configuration(of_kind("ConfigMap", render({"dryRun": False})))
    assert written["evictionHard"] == {str(signal): value for signal, value in DEFAULT_HARD.items()}
    assert "evictionSoft" not in written
    assert set(written["reactor"]) == {"kubernetes", "stateFile", "metrics"}


def test_by_default_it_is_a_dry_run_and_the_notes_say_so_first() -> None:
    documents = render({})
    assert configuration(of_kind("ConfigMap", documents))["reactor"]["dryRun"] is True
    assert notes({}).startswith("*" * 60)
    assert "DRY RUN: NO POD IS EVICTED ON ANY NODE" in notes({})
    assert "DRY RUN" not in notes({"dryRun": False})
    assert "dryRun" not in configuration(of_kind("ConfigMap", render({"dryRun": False})))["reactor"]


def test_the_notes_say_of_each_pool_whether_it_evicts() -> None:
    text = notes({"pools": [{"name": "gpu", "nodeSelector": {"pool": "gpu"}, "dryRun": False}]})
    assert "DRY RUN in some groups of nodes" in text
    assert "reactor-gpu: nodes with kubernetes.io/os=linux, pool=gpu; evicts" in text
    assert "reactor: all other nodes; DRY RUN" in text


def notes(values: dict[str, Any]) -> str:
    """Return what is printed after an installation."""
    command = [helm(), "install", "reactor", CHART, "--namespace", NAMESPACE, "--dry-run=client"]
    done = subprocess.run(
        [*command, "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.partition("NOTES:\n")[2].strip()


def test_a_pools_configuration_is_merged_over_the_common_one() -> None:
    documents = render(EVERYTHING)
    common, gpu, db = (
        configuration(named(name, "ConfigMap", documents))
        for name in ("reactor", "reactor-gpu", "reactor-db")
    )
    assert common == db
    assert gpu["evictionHard"] == {
        **{key: value for key, value in common["evictionHard"].items() if key != "nodefs.available"},
        "memory.available": "1Gi",
    }
    assert "dryRun" not in gpu["reactor"]
    assert gpu["reactor"] == {key: value for key, value in common["reactor"].items() if key != "dryRun"}
    sets = {each["metadata"]["name"]: each["spec"] for each in daemon_sets(documents)}
    assert ["reactor-gpu", "reactor-db", "reactor"] == list(sets)
    assert [30, 0, 30] == [sets[name]["minReadySeconds"] for name in sets]
    pod = sets["reactor-gpu"]["template"]["spec"]
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu"}
    volume = next(each for each in pod["volumes"] if each["name"] == "config")
    assert volume == {"name": "config", "configMap": {"name": "reactor-gpu"}}
    checksums = [sets[name]["template"]["metadata"]["annotations"]["checksum/config"] for name in sets]
    assert (checksums[0] != checksums[1], checksums[1]) == (True, checksums[2])


_TAKEN_AWAY = (
    *("resources", "priorityClassName", "updateStrategy", "minReadySeconds", "tolerations"),
    *("podAnnotations", "podLabels", "seLinuxOptions", "extraEnv", "extraVolumes", "extraVolumeMounts"),
)


def test_null_in_a_pool_takes_away_what_is_common_and_leaves_the_other_pools_theirs() -> None:
    parts = {"resources": {"limits": None, "requests": {"cpu": None}}, "podLabels": {"a": None}}
    pools = [
        {**_POOL, **dict.fromkeys(_TAKEN_AWAY)},
        {"name": "b", "nodeSelector": {"pool": "b"}, "priorityClassName": "", **parts},
    ]
    documents = render({**EVERYTHING, "pools": pools})
    without, with_parts, common = (each["spec"] for each in daemon_sets(documents))
    pod, container = without["template"]["spec"], without["template"]["spec"]["containers"][0]
    assert ("priorityClassName" in pod, pod["tolerations"], container["resources"]) == (False, [], {})
    assert without["minReadySeconds"] == 0
    assert without["updateStrategy"]["rollingUpdate"] == {"maxSurge": "5%", "maxUnavailable": 0}
    assert "seLinuxOptions" not in container["securityContext"]
    added = EVERYTHING["extraEnv"] + EVERYTHING["extraVolumes"]
    names = {each["name"] for each in (*container["env"], *pod["volumes"], *container["volumeMounts"])}
    assert names.isdisjoint(each["name"] for each in added)
    metadata = without["template"]["metadata"]
    assert ("a" in metadata["labels"], "c" in metadata["annotations"]) == (False, False)

    resources = common["template"]["spec"]["containers"][0]["resources"]
    assert resources.keys() == {"limits", "requests"}
    requests = {key: value for key, value in resources["requests"].items() if key != "cpu"}
    pod = with_parts["template"]["spec"]
    assert ("priorityClassName" in pod, pod["containers"][0]["resources"]) == (False, {"requests": requests})
    assert "a" not in with_parts["template"]["metadata"]["labels"]
    assert common["template"]["spec"]["priorityClassName"] == "guards"


def test_no_daemon_set_selects_the_pods_of_another_one() -> None:
    sets = daemon_sets(render(EVERYTHING))
    for one, other in itertools.permutations(sets, 2):
        selector = one["spec"]["selector"]["matchLabels"]
        assert not selector.items() <= other["spec"]["template"]["metadata"]["labels"].items()
        assert selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()


def test_the_common_daemon_sets_selector_is_as_before_pools_since_it_can_not_be_changed() -> None:
    (only,) = daemon_sets(render({}))
    assert only["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "reactor",
        "app.kubernetes.io/instance": "reactor",
    }


_LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=12)
@given(selectors=st.lists(_LABELS, max_size=3), excluded=st.booleans())
def test_each_node_has_the_daemon_of_the_first_pool_that_it_matches_and_no_other(
    selectors: list[dict[str, str]],
    excluded: bool,  # noqa: FBT001
) -> None:
    pools = [{"name": f"p{index}", "nodeSelector": one} for index, one in enumerate(selectors)]
    expressions = [{"key": "x", "operator": "NotIn", "values": ["1"]}] if excluded else []
    sets = daemon_sets(render({"pools": pools, "nodeExpressions": expressions}))
    choices = [(None, "1", "2")] * 3
    for values in itertools.product(*choices):
        node = {key: value for key, value in zip("abc", values, strict=True) if value is not None}
        linux = {**node, "kubernetes.io/os": "linux"}
        first = next(
            (f"reactor-p{index}" for index, one in enumerate(selectors) if one.items() <= node.items()),
            "reactor",
        )
        assert [first] == [each["metadata"]["name"] for each in sets if selects(each, linux)]
        assert [] == [each for each in sets if selects(each, {**node, "kubernetes.io/os": "windows"})]
        if excluded:
            assert [] == [each for each in sets if selects(each, {**linux, "x": "1"})]


_POOL = {"name": "a", "nodeSelector": {"pool": "a"}}
_LONG = {**_POOL, "name": "a" * 40}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicas": 3}, "'replicas' not allowed"),
        (
            {"resources": {"limit": {"memory": 1}}},
            "at '/resources': additional properties 'limit' not allowed",
        ),
        ({"updateStrategy": {"maxSurge": 1}}, "at '/updateStrategy': additional properties 'maxSurge'"),
        ({"updateStrategy": {"type": "Rolling"}}, "at '/updateStrategy/type': value must be one of"),
        ({"runtime": "docker"}, "at '/runtime': value must be one of 'containerd', 'crio'"),
        ({"ownNodeOnly": "maybe"}, "at '/ownNodeOnly': value must be one of 'auto'"),
        ({"dryRun": "no"}, "at '/dryRun': got string, want boolean"),
        ({"config": {"evictionHard": {"memory": "5"}}}, "additional properties 'memory' not allowed"),
        ({"config": {"evictionhard": {}}}, "additional properties 'evictionhard' not allowed"),
        ({"config": {"evictionHard": {"memory.available": "lots"}}}, "'lots' does not match pattern"),
        (
            {"config": {"reactor": {"kubernetes": {"role": "only"}}}},
            "value must be one of 'alongside', 'sole'",
        ),
        ({"config": {"reactor": {"dryrun": True}}}, "additional properties 'dryrun' not allowed"),
        ({"config": {"reactor": {"dryRun": False}}}, "additional properties 'dryRun' not allowed"),
        (
            {"config": {"reactor": {"kubernetes": {"role": "sole"}}}},
            "dryRun: true with config.reactor.kubernetes.role: sole; accepted: dryRun: false, or role: along",
        ),
        ({"pools": [{"name": "a"}]}, "at '/pools/0': missing property 'nodeSelector'"),
        ({"pools": [{"name": "a", "nodeSelector": {}}]}, "at '/pools/0/nodeSelector': minProperties"),
        ({"pools": [{**_POOL, "name": "A b"}]}, "at '/pools/0/name': 'A b' does not match pattern"),
        ({"pools": [{**_POOL, "nodeExpressions": []}]}, "'nodeExpressions' not allowed"),
        ({"pools": [{**_POOL, "image": None}]}, "at '/pools/0/image': got null, want object"),
        ({"pools": [_POOL, _POOL]}, 'pools[1].name: "a"; accepted: a name that no other pool has'),
        (
            {
                "pools": [
                    {"name": f"p{n}", "nodeSelector": {f"{key}{n}": "1" for key in "abcde"}} for n in range(3)
                ]
            },
            "pools[2].nodeSelector: the selectors so far make 125 terms of node affinity; accepted: 64",
        ),
        (
            {"metrics": {"podMonitor": {"enabled": True}}},
            "metrics.podMonitor.enabled: without metrics.proxy.enabled; accepted: with it",
        ),
        (
            {"metrics": {"proxy": {"enabled": True}}, "config": {"reactor": {"metrics": "off"}}},
            "config.reactor.metrics of the nodes is off; accepted: one address for all pools, and not off",
        ),
        ({"metrics": {"rules": {"runbookBase": "wiki"}}}, "at '/metrics/rules/runbookBase'"),
        ({"nodeExpressions": [{"key": "a", "operator": "Is"}]}, "at '/nodeExpressions/0/operator'"),
        ({"extraVolumeMounts": [{"name": "a"}]}, "missing property 'mountPath'"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)


def test_before_1_22_a_surge_is_left_out_and_one_that_is_asked_for_is_refused() -> None:
    (old,) = daemon_sets(render({}, version="v1.21.14"))
    assert old["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    (new,) = daemon_sets(render({}))
    assert new["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": "5%", "maxUnavailable": 0}
    words = refusal({"updateStrategy": EVERYTHING["updateStrategy"]}, version="v1.21.14")
    assert "updateStrategy.rollingUpdate.maxSurge: 2%; accepted: nothing" in words


def configurations_of_the_pages() -> list[Any]:
    """Return each configuration that the documentation shows."""
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for text in re.findall(
            r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            if re.search(r"^(evictionHard|evictionSoft|reactor):", text, re.MULTILINE):
                document = YAML(typ="safe", pure=True).load(text)
                document.get("reactor", {}).pop("dryRun", None)
                found.append(document)
    return found


def test_the_schema_takes_every_configuration_that_the_pages_show_and_leaves_it_as_it_is() -> None:
    shown = configurations_of_the_pages()
    assert len(shown) > 10
    pools = [
        {"name": f"c{index}", "nodeSelector": {"c": str(index)}, "dryRun": False, "config": one}
        for index, one in enumerate(shown)
    ]
    documents = render({"pools": pools})
    common = configuration(of_kind("ConfigMap", render({"dryRun": False})))
    for index, one in enumerate(shown):
        made = configuration(named(f"reactor-c{index}", "ConfigMap", documents))
        assert made == merged(common, one)


def merged(base: Any, over: Any) -> Any:
    """Return mappings merged key by key, all else replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {
        key: merged(base[key], over[key]) if key in base and key in over else {**base, **over}[key]
        for key in {**base, **over}
    }


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy/helm/platforms").iterdir()), ids=lambda path: path.stem
)
def test_the_values_of_a_platform_are_taken_and_named_by_its_page(path: Path) -> None:
    values = YAML(typ="safe", pure=True).load(path)
    documents = render(values)
    assert f"`deploy/helm/platforms/{path.name}`" in (ROOT / "docs/platforms.md").read_text(encoding="utf-8")
    hard = configuration(of_kind("ConfigMap", documents))["evictionHard"]
    of_all = {str(signal): value for signal, value in DEFAULT_HARD.items()}
    of_nodeadm = {key: value for key, value in of_all.items() if not key.startswith("imagefs")}
    assert hard == (of_nodeadm if path.stem == "eks" else of_all)
    (daemon_set,) = daemon_sets(documents)
    mounted = {
        each["mountPath"] for each in daemon_set["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    }
    assert ("/run/crio" in mounted) == (path.stem == "openshift")


def test_the_metrics_are_served_by_pods_that_may_do_nothing_but_ask_who_asks() -> None:
    documents = render(EVERYTHING)
    proxy = named("reactor-metrics", "DaemonSet", documents)["spec"]["template"]["spec"]
    (container,) = proxy["containers"]
    assert "--upstream=http://127.0.0.1:9753/" in container["args"]
    assert "--allow-paths=/metrics" in container["args"]
    assert container["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "hostPID" not in proxy
    assert not [each for each in proxy["volumes"] if "hostPath" in each]
    assert proxy["serviceAccountName"] == "reactor-metrics"
    assert named("reactor-metrics", "ClusterRole", documents)["rules"] == [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    ]
    reader = named("reactor-metrics-reader", "ClusterRoleBinding", documents)
    scraper = {"kind": "ServiceAccount", "name": "reactor-scraper", "namespace": NAMESPACE}
    assert reader["subjects"] == [*EVERYTHING["metrics"]["proxy"]["scrapers"], scraper]
    assert named("reactor-metrics-reader", "ClusterRole", documents)["rules"] == [
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    ]


def test_what_the_monitor_scrapes_is_the_proxys_port_by_tls_and_the_policy_opens_no_other() -> None:
    documents = render(EVERYTHING)
    monitor = of_kind("PodMonitor", documents)["spec"]
    proxy = named("reactor-metrics", "DaemonSet", documents)["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= proxy["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    # A PodMonitor knows no bearerTokenFile, and no credentialsFile: source pkg/apis/monitoring/v1.
    assert endpoint.keys() == {"port", "scheme", "interval", "authorization", "tlsConfig", "relabelings"}
    secret = of_kind("Secret", documents)
    assert endpoint["authorization"] == {"credentials": {"name": secret["metadata"]["name"], "key": "token"}}
    assert secret["type"] == "kubernetes.io/service-account-token"
    named(
        secret["metadata"]["annotations"]["kubernetes.io/service-account.name"], "ServiceAccount", documents
    )
    (port,) = proxy["spec"]["containers"][0]["ports"]
    assert (endpoint["port"], endpoint["scheme"]) == (port["name"], "https")
    assert {"targetLabel": "job", "replacement": "reactor"} in endpoint["relabelings"]
    policy = of_kind("NetworkPolicy", documents)["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port["containerPort"]}]
    (expression,) = policy["podSelector"]["matchExpressions"]
    pods = [each["spec"]["template"] for each in documents if each["kind"] in {"DaemonSet", "Job"}]
    names = {each["metadata"]["labels"]["app.kubernetes.io/name"] for each in pods}
    assert names == set(expression["values"])
    closed = {**EVERYTHING, "networkPolicy": {"enabled": True}}
    assert of_kind("NetworkPolicy", render(closed))["spec"]["ingress"] == []


def test_the_charts_rules_are_the_same_with_the_namespace_of_the_release_and_a_runbook_that_opens() -> None:
    plain = YAML(typ="safe", pure=True).load(ROOT / "deploy/monitoring/rules.yaml")["groups"]
    page = (ROOT / "docs/operations/alerts.md").read_text(encoding="utf-8")
    anchors = {name.lower() for name in re.findall(r"^## (.*)$", page, re.MULTILINE)}
    without = copy.deepcopy(EVERYTHING)
    del without["metrics"]["rules"]["runbookBase"]
    assert of_kind("PrometheusRule", render(without))["spec"]["groups"] == plain
    made = of_kind("PrometheusRule", render(EVERYTHING, namespace="guards"))["spec"]["groups"]
    for group in made:
        for rule in group["rules"]:
            link = rule.get("annotations", {}).pop("runbook_url", None)
            if "alert" in rule:
                base, _, anchor = str(link).partition("#")
                assert base == "https://wiki.example.com/reactor/alerts.md"
                assert anchor in anchors
            rule["expr"] = rule["expr"].replace('namespace="guards"', 'namespace="reactor-system"')
    for rule in (rule for group in plain for rule in group["rules"] if "alert" in rule):
        assert (
            rule["annotations"].pop("runbook_url") == f"{{{{ $externalURL }}}}/alerts?search={rule['alert']}"
        )
    assert made == plain


def test_the_charts_dashboard_is_the_file() -> None:
    config_map = named("reactor-dashboard", "ConfigMap", render(EVERYTHING))
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config_map["data"]["reactor.json"] == (ROOT / "deploy/monitoring/dashboard.json").read_text(
        encoding="utf-8"
    )


def test_the_namespace_has_the_labels_by_which_admission_lets_the_pods_in() -> None:
    labels = of_kind("Namespace", render(EVERYTHING))["metadata"]["labels"]
    assert labels == {
        f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")
    }
    assert "Namespace" not in {each["kind"] for each in render({})}
    assert "kubectl label namespace reactor-system pod-security.kubernetes.io/enforce=privileged" in notes({})


@pytest.mark.parametrize(
    ("section", "socket"),
    [
        ({"metrics": "off"}, "/run/reactor/reactor.sock"),
        ({"metrics": False}, "/run/reactor/reactor.sock"),
        ({"metrics": "0.0.0.0:9000", "socket": "/run/reactor/other.sock"}, "/run/reactor/other.sock"),
        (None, "/run/reactor/reactor.sock"),
    ],
)
def test_probes_follow_the_socket_and_not_the_address_of_the_metrics(
    section: dict[str, Any] | None, socket: str
) -> None:
    (daemon_set,) = daemon_sets(render({"config": {"reactor": section}}))
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    for name, words in (("livenessProbe", []), ("readinessProbe", ["--ready"])):
        assert not {"httpGet", "tcpSocket", "grpc"} & container[name].keys()
        command = container[name]["exec"]["command"]
        assert command == ["/usr/bin/python3", "-I", "-m", "reactor.healthz", *words, socket]


def test_helms_test_asks_for_every_daemon_set_and_may_do_nothing_else() -> None:
    documents = render(EVERYTHING)
    job = of_kind("Job", documents, "test")["spec"]["template"]["spec"]
    program, namespace, *names = job["containers"][0]["args"]
    assert program.strip() == (CHART / "files/test.py").read_text(encoding="utf-8").strip()
    compile(program, "test.py", "exec")
    assert namespace == NAMESPACE
    assert names == [each["metadata"]["name"] for each in daemon_sets(documents)]
    verbs = {verb for rule in of_kind("Role", documents, "test")["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list"}


class Answers:
    """What an API server answers: a DaemonSet of one pod on node-1, its Lease, and a pod of another owner."""

    def __init__(
        self, *, status: dict[str, Any], renewed_seconds_ago: float | None, lease: str = "node-1"
    ) -> None:
        self.daemon_set = {"metadata": {"uid": "u", "generation": 2}, "status": status}
        self.renewed_seconds_ago = renewed_seconds_ago
        self.lease = lease

    def leases(self) -> list[dict[str, Any]]:
        if self.renewed_seconds_ago is None:
            return []
        renewed = datetime.fromtimestamp(time.time() - self.renewed_seconds_ago, UTC).isoformat()
        spec = {"renewTime": renewed, "leaseDurationSeconds": 40}
        return [{"metadata": {"name": self.lease}, "spec": spec}]

    async def get(self, path: str, **_: str) -> dict[str, Any]:
        ours = {"metadata": {"name": "p", "ownerReferences": [{"uid": "u"}]}, "spec": {"nodeName": "node-1"}}
        other = {"metadata": {"name": "x"}, "spec": {"nodeName": "node-2"}}
        return {
            "/apis/apps/v1/namespaces/n/daemonsets/reactor": self.daemon_set,
            "/apis/coordination.k8s.io/v1/namespaces/n/leases": {"metadata": {}, "items": self.leases()},
            "/api/v1/namespaces/n/pods": {"metadata": {}, "items": [ours, other]},
        }[path]


_GOOD = {
    "observedGeneration": 2,
    "desiredNumberScheduled": 1,
    "updatedNumberScheduled": 1,
    "numberAvailable": 1,
}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (Answers(status=_GOOD, renewed_seconds_ago=5), []),
        (Answers(status={"observedGeneration": 2}, renewed_seconds_ago=5), []),  # no node to run on
        (
            Answers(status=_GOOD | {"numberAvailable": 0}, renewed_seconds_ago=5),
            ["DaemonSet reactor: 0 of 1 pods are available"],
        ),
        (
            Answers(status=_GOOD | {"updatedNumberScheduled": 0}, renewed_seconds_ago=5),
            ["DaemonSet reactor: 0 of 1 pods are up to date"],
        ),
        (
            Answers(status=_GOOD | {"observedGeneration": 1}, renewed_seconds_ago=5),
            ["DaemonSet reactor: its controller has not seen it yet"],
        ),
        (Answers(status=_GOOD, renewed_seconds_ago=50), ["node node-1: pod p keeps no Lease"]),
        (Answers(status=_GOOD, renewed_seconds_ago=None), ["node node-1: pod p keeps no Lease"]),
        (Answers(status=_GOOD, renewed_seconds_ago=5, lease="node-2"), ["node node-1: pod p keeps no Lease"]),
    ],
)
async def test_helms_test_names_what_is_missing(answers: Answers, expected: list[str]) -> None:
    program = runpy.run_path(str(CHART / "files/test.py"), run_name="helm_test")
    assert expected == [one async for one in program["problems"](answers, "n", ["reactor"])]


async def test_helms_test_asks_for_the_pods_of_a_large_cluster_page_by_page() -> None:
    """A pod is some 8 KB, and no answer is read beyond 4 MiB."""
    text = "x" * 8000
    pods = [
        {
            "metadata": {"name": f"p{number}", "ownerReferences": [{"uid": "u"}], "annotations": {"a": text}},
            "spec": {"nodeName": f"node-{number}"},
        }
        for number in range(600)
    ]
    daemon_set = {"metadata": {"uid": "u", "generation": 2}, "status": _GOOD}
    fresh = Answers(status=_GOOD, renewed_seconds_ago=5)
    leases = [one for number in range(599) for fresh.lease in [f"node-{number}"] for one in fresh.leases()]

    def answer(asked: Asked) -> Reply:
        if asked.path.endswith("/reactor"):
            return Reply(body=daemon_set)
        items = leases if asked.path.endswith("/leases") else pods
        start = int(asked.query.get("continue", "0"))
        end = start + int(asked.query.get("limit", str(len(items))))
        going_on = {"continue": str(end)} if end < len(items) else {}
        return Reply(body={"metadata": going_on, "items": items[start:end]})

    program = runpy.run_path(str(CHART / "files/test.py"), run_name="helm_test")
    async with served(answer) as (_, client):
        found = [one async for one in program["problems"](client, "n", ["reactor"])]
    assert ["node node-599: pod p599 keeps no Lease"] == found


def test_the_jobs_of_the_longest_release_have_names_that_a_server_takes() -> None:
    """A Job's name is a label of its pods: 63 characters at most. Helm's longest release has 53."""
    jobs = [each["metadata"]["name"] for each in render({}, release="x" * 53) if each["kind"] == "Job"]
    assert ["clean", "test"] == sorted(name.rsplit("-", 1)[1] for name in jobs)
    assert {name for name in jobs if len(name) > 63} == set()


def test_another_release_is_another_set_of_objects() -> None:
    documents = render(EVERYTHING, POLICY, release="second")
    names = {each["metadata"]["name"] for each in documents if each["kind"] != "Namespace"}
    assert {name for name in names if not name.startswith("second-reactor")} == set()
    assert "post-delete" in {hook_of(each) for each in documents}
    assert "accepted: one by which the DaemonSet's name" in refusal({"pools": [_LONG]}, release="x" * 50)
