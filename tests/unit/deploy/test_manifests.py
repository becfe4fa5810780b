"""What deploy/ gives the DaemonSet: the host's paths, and the policy that holds a token to its own node.

The kustomize base is read; it is generated from the chart, to which test_chart.py holds it.

The policy is held to the schema of admissionregistration.k8s.io/v1 field by field. No API server that knows
the kind is to be had here (1.20.2 does not); its expressions are evaluated by a CEL library where that is
installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from reactor.kernel.features import needed_capabilities
from reactor.kernel.filesystem import NODEFS_PATHS

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
BASE = DEPLOY / "kustomize/base"
COMPONENT = DEPLOY / "kustomize/components/own-node-only"
NODE_NAME = "authentication.kubernetes.io/node-name"

# Each field: a type, a set of the values that it may have, or a tuple of a list's element. "!": required.
NAMED_EXPRESSION = {"name!": str, "expression!": str}
SCHEMA: dict[str, dict[str, Any]] = {
    "ValidatingAdmissionPolicy": {
        "failurePolicy!": {"Fail", "Ignore"},
        "matchConstraints!": {
            "resourceRules!": (
                {
                    "apiGroups!": (str,),
                    "apiVersions!": (str,),
                    "operations!": ({"CREATE", "UPDATE", "DELETE", "CONNECT", "*"},),
                    "resources!": (str,),
                    "scope": {"*", "Cluster", "Namespaced"},
                },
            ),
            "matchPolicy": {"Exact", "Equivalent"},
        },
        "matchConditions": (NAMED_EXPRESSION,),
        "variables": (NAMED_EXPRESSION,),
        "validations!": (
            {
                "expression!": str,
                "message": str,
                "messageExpression": str,
                "reason": {"Unauthorized", "Forbidden", "Invalid", "RequestEntityTooLarge"},
            },
        ),
    },
    "ValidatingAdmissionPolicyBinding": {
        "policyName!": str,
        "validationActions!": ({"Deny", "Warn", "Audit"},),
    },
}


def documents(text: str) -> list[Any]:
    return [document for document in YAML(typ="safe", pure=True).load_all(text) if document]


@pytest.fixture
def policy_and_binding() -> list[Any]:
    return documents((COMPONENT / "policy.yaml").read_text())


def misfits(value: Any, schema: Any, path: str) -> list[str]:
    """Return where a document leaves its schema."""
    if isinstance(schema, tuple):
        if not isinstance(value, list) or not value:
            return [f"{path}: no list"]
        return [
            one for index, each in enumerate(value) for one in misfits(each, schema[0], f"{path}[{index}]")
        ]
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{path}: no mapping"]
        known = {name.removesuffix("!"): each for name, each in schema.items()}
        found = [f"{path}.{name}: unknown" for name in value.keys() - known.keys()]
        needed = {name.removesuffix("!") for name in schema if name.endswith("!")}
        found += [f"{path}.{name}: missing" for name in needed - value.keys()]
        return found + [
            one
            for name in value.keys() & known.keys()
            for one in misfits(value[name], known[name], f"{path}.{name}")
        ]
    fits = value in schema if isinstance(schema, set) else isinstance(value, schema)
    return [] if fits else [f"{path}: {value!r}"]


def test_policy_and_binding_fit_their_schema(policy_and_binding: list[Any]) -> None:
    assert [document["kind"] for document in policy_and_binding] == list(SCHEMA)
    for document in policy_and_binding:
        assert document["apiVersion"] == "admissionregistration.k8s.io/v1"
        assert document["metadata"]["name"] == "reactor"
        assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert [] == misfits(document["spec"], SCHEMA[document["kind"]], "spec")
    policy, binding = policy_and_binding
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == ("Fail", ["Deny"])


def test_schema_check_sees_what_does_not_fit() -> None:
    (policy, _) = documents((COMPONENT / "policy.yaml").read_text())
    policy["spec"]["failurePolicy"] = "fail"
    policy["spec"]["validation"] = policy["spec"].pop("validations")
    policy["spec"]["variables"][0]["expresion"] = "true"
    assert sorted(misfits(policy["spec"], SCHEMA[policy["kind"]], "spec")) == [
        "spec.failurePolicy: 'fail'",
        "spec.validation: unknown",
        "spec.validations: missing",
        "spec.variables[0].expresion: unknown",
    ]


def test_policy_covers_all_that_the_reactor_may_change_but_events(policy_and_binding: list[Any]) -> None:
    roles = [each for each in documents((BASE / "rbac.yaml").read_text()) if "rules" in each]
    assert ["ClusterRole", "Role"] == [role["kind"] for role in roles]
    rules = [rule for role in roles for rule in role["rules"]]
    rules.append({"resources": ["pods"], "verbs": ["delete"]})  # evictedPodTTL
    operation = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}
    granted = {
        (operation[verb], resource)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb in operation and resource != "events"
    }
    constraints = policy_and_binding[0]["spec"]["matchConstraints"]["resourceRules"]
    covered = {
        (each, resource)
        for rule in constraints
        for each in rule["operations"]
        for resource in rule["resources"]
    }
    assert covered == granted


def test_policy_is_about_the_service_account_that_the_pods_run_as(policy_and_binding: list[Any]) -> None:
    (binding,) = [
        each for each in documents((BASE / "rbac.yaml").read_text()) if each["kind"] == "ClusterRoleBinding"
    ]
    (subject,) = binding["subjects"]
    name = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    (condition,) = policy_and_binding[0]["spec"]["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username == '{name}'"


@pytest.mark.parametrize(
    ("resource", "token_of", "of_node", "is_allowed"),
    [
        ("nodes", "mine", "mine", True),
        ("nodes", "mine", "other", False),
        ("nodes", None, "mine", False),
        ("nodes", "", "", False),
        ("pods", "mine", "mine", True),
        ("pods", "mine", "other", False),
        ("leases", "mine", "mine", True),
        ("leases", "mine", "other", False),
        ("pods", "mine", None, False),
        ("pods", None, "mine", False),
        ("pods", None, None, False),
    ],
)
def test_a_token_may_change_its_own_node_and_its_pods_and_nothing_else(
    policy_and_binding: list[Any],
    resource: str,
    token_of: str | None,
    of_node: str | None,
    is_allowed: bool,  # noqa: FBT001
) -> None:
    """What is written says nothing of whose it is, but for a Lease, which may be new."""
    why = "no CEL to evaluate the policy with: pip install cel-expr-python"
    cel = pytest.importorskip("cel_expr_python.cel", reason=why)
    optional = pytest.importorskip("cel_expr_python.ext.ext_optional", reason=why)
    if resource in {"nodes", "leases"}:
        before: dict[str, Any] = {"metadata": {"name": of_node}, "spec": {}}
    else:
        before = {"metadata": {"name": "web"}, "spec": {} if of_node is None else {"nodeName": of_node}}
    claimed: dict[str, Any] = {"metadata": {"name": "mine"}, "spec": {"nodeName": "mine"}}
    extra = {"some/other": ["x"], **({} if token_of is None else {NODE_NAME: [token_of]})}
    known: dict[str, Any] = {
        "request": {"resource": {"resource": resource}, "userInfo": {"extra": extra}},
        "oldObject": before,
        "object": before if resource == "leases" else claimed,
        "variables": {},
    }
    environment = cel.NewEnv(
        variables=dict.fromkeys(known, cel.Type.DYN), extensions=[optional.ExtOptional()]
    )

    def value(expression: str) -> Any:
        return environment.compile(expression).eval(data=known).plain_value()

    spec = policy_and_binding[0]["spec"]
    for variable in spec["variables"]:
        known["variables"][variable["name"]] = value(variable["expression"])
    assert is_allowed is all(value(each["expression"]) is True for each in spec["validations"])
    for each in spec["validations"]:
        assert "messageExpression" not in each or isinstance(value(each["messageExpression"]), str)


def test_the_hosts_paths_are_these_and_no_wider() -> None:
    (daemon_set,) = documents((BASE / "daemonset.yaml").read_text())
    spec = daemon_set["spec"]["template"]["spec"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    read_only = {
        mount["mountPath"]: mount.get("readOnly", False)
        for mount in spec["containers"][0]["volumeMounts"]
        if mount["name"] in paths
    }
    assert read_only == {
        "/sys/fs/cgroup": False,
        "/run/reactor/node": False,
        "/var/log/reactor": False,
        "/run/containerd": True,
        "/var/lib/kubelet/pods": True,
        "/var/lib/containerd": True,
        "/var/log/pods": False,
    }
    assert sorted(paths.values()) == sorted({*read_only, "/run/reactor"} - {"/run/reactor/node"})
    # What is looked for first is what is mounted: the directory above it is the image's own.
    assert paths["kubelet-pods"] == NODEFS_PATHS[0]


def test_the_base_grants_the_capabilities_that_are_used_and_no_other() -> None:
    used = {name.removeprefix("CAP_") for name in needed_capabilities(for_others=True)}
    (daemon_set,) = documents((BASE / "daemonset.yaml").read_text())
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    granted = container["securityContext"]["capabilities"]
    assert granted["drop"] == ["ALL"]
    assert sorted(used) == sorted(granted["add"])


def test_probes_ask_the_daemons_own_socket_and_no_port_that_others_could_take() -> None:
    text = (BASE / "daemonset.yaml").read_text()
    (daemon_set,) = documents(text)
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    found = {name: container[name] for name in ("livenessProbe", "readinessProbe")}
    assert [name for name in container if name.endswith("Probe")] == list(found)
    for probe in found.values():
        assert {"exec", "periodSeconds", "timeoutSeconds"} <= probe.keys()
        assert not {"httpGet", "tcpSocket", "grpc"} & probe.keys()
        python, *options, socket = probe["exec"]["command"]
        assert ["-I", "-m", "reactor.healthz"] == options[:3]
        assert ("/usr/bin/python3", "/run/reactor/reactor.sock") == (python, socket)
    ready, live = (found[name]["exec"]["command"] for name in ("readinessProbe", "livenessProbe"))
    assert ("--ready" in ready, "--ready" in live) == (True, False)  # it guards with what was right last
    assert "9753" not in text
    # Under pressure a late answer is better than a restart.
    assert found["livenessProbe"]["failureThreshold"] * found["livenessProbe"]["periodSeconds"] >= 60


def test_probes_are_answered_while_others_want_all_cpus() -> None:
    """A pod has what it requests then: tenants had the kubelet kill a guard by computing, with 20m."""
    (daemon_set,) = documents((BASE / "daemonset.yaml").read_text())
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    cpus = int(container["resources"]["requests"]["cpu"].removesuffix("m")) / 1000
    probes = [container[name] for name in ("livenessProbe", "readinessProbe")]
    cpu_seconds = 0.1  # by the pod's cgroup: the start of the runtime's process and of the interpreter
    assert all(cpu_seconds / cpus <= probe["timeoutSeconds"] / 4 for probe in probes)
    assert sum(cpu_seconds / probe["periodSeconds"] for probe in probes) <= cpus / 4
    live = container["livenessProbe"]
    start_cpu_seconds = 2.0
    assert start_cpu_seconds / cpus <= live["failureThreshold"] * live["periodSeconds"] / 2


def test_kubernetes_before_1_22_is_given_no_surge() -> None:
    overlay = DEPLOY / "kustomize/overlays/before-1.22"
    (kustomization,) = documents((overlay / "kustomization.yaml").read_text())
    assert kustomization["bases"] == ["../../base"]
    (patch,) = kustomization["patchesJson6902"]
    ((operation,),) = documents((overlay / patch["path"]).read_text())
    (daemonset,) = documents((BASE / "daemonset.yaml").read_text())
    assert "maxSurge" in daemonset["spec"]["updateStrategy"]["rollingUpdate"]
    assert (operation["path"], operation["value"]) == (
        "/spec/updateStrategy/rollingUpdate",
        {"maxUnavailable": 1},
    )


def test_what_cleans_nodes_may_do_that_alone() -> None:
    found = documents((DEPLOY / "kustomize/clean/clean.yaml").read_text())
    by_kind = {one["kind"]: one for one in found}
    allowed = {
        (resource, verb)
        for rule in by_kind["ClusterRole"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {
        ("nodes", "get"),
        ("nodes", "list"),
        ("nodes", "patch"),
        ("nodes/status", "patch"),
    } == allowed
    pod = by_kind["Job"]["spec"]["template"]["spec"]
    assert [{"operator": "Exists"}] == pod["tolerations"]
    (container,) = pod["containers"]
    assert ["cluster", "clean", "--all"] == container["args"]
    assert container["securityContext"]["runAsNonRoot"]
    names = {one["metadata"]["name"] for one in (by_kind["ServiceAccount"], by_kind["Job"])}
    assert names == {pod["serviceAccountName"]}
