from typing import Any

import pytest

from reactor.config.pod import pod_from_document
from reactor.errors import ConfigError
from reactor.model.pods import Pod, PodUsage, QosClass
from reactor.model.quantity import parse_quantity
from reactor.model.signals import Layout, Resource, Signal
from reactor.policy.rank import rank

MI = 1 << 20


def _pod(spec: dict[str, Any] | None = None, **metadata: object) -> Pod:
    return pod_from_document({"metadata": {"name": "p", **metadata}, "spec": spec or {}})


def _container(
    requests: dict[str, object] | None = None, limits: dict[str, object] | None = None, **more: object
) -> dict[str, object]:
    return {"name": "c", "resources": {"requests": requests, "limits": limits}, **more}


BOTH = {"cpu": 1, "memory": "1Gi"}


@pytest.mark.parametrize(
    ("spec", "qos"),
    [
        ({"containers": [_container()]}, QosClass.BEST_EFFORT),
        ({"containers": [_container({"cpu": 0, "memory": "0"})]}, QosClass.BEST_EFFORT),
        ({"containers": [_container({"ephemeral-storage": "1Gi"})]}, QosClass.BEST_EFFORT),
        ({"containers": [_container(limits=BOTH)]}, QosClass.GUARANTEED),
        ({"containers": [_container(BOTH, BOTH)]}, QosClass.GUARANTEED),
        ({"containers": [_container({"memory": "1024Mi"}, BOTH)]}, QosClass.GUARANTEED),
        ({"containers": [_container({"memory": "1Mi"}, BOTH)]}, QosClass.BURSTABLE),
        ({"containers": [_container(limits={"memory": "1Gi"})]}, QosClass.BURSTABLE),
        ({"containers": [_container({"cpu": "1m"})]}, QosClass.BURSTABLE),
        ({"containers": [_container(limits=BOTH), _container()]}, QosClass.BURSTABLE),
        ({"containers": [_container(limits=BOTH)], "initContainers": [_container()]}, QosClass.BURSTABLE),
        ({"containers": [_container()], "resources": {"limits": BOTH}}, QosClass.GUARANTEED),
        ({"containers": [_container({"memory": "1Mi"})], "resources": {"limits": BOTH}}, QosClass.BURSTABLE),
        ({"containers": [_container()], "resources": {"requests": {"cpu": 1}}}, QosClass.BURSTABLE),
    ],
)
def test_qos_class_is_by_requests_and_limits_of_cpu_and_memory(spec: dict[str, Any], qos: QosClass) -> None:
    assert qos is _pod(spec).qos_class


def test_the_qos_class_in_the_status_is_taken_as_it_is() -> None:
    document = {"metadata": {"name": "p"}, "status": {"qosClass": "Guaranteed"}}
    assert QosClass.GUARANTEED is pod_from_document(document).qos_class


@pytest.mark.parametrize(
    ("spec", "memory_mi"),
    [
        ({"containers": [_container({"memory": "1Mi"}), _container({"memory": "2Mi"})]}, 3),
        ({"containers": [_container(limits={"memory": "4Mi"})]}, 4),
        # An init container runs alone, or beside the sidecars that were started before it.
        (
            {
                "containers": [_container({"memory": "1Mi"})],
                "initContainers": [_container({"memory": "9Mi"})],
            },
            9,
        ),
        (
            {
                "containers": [_container({"memory": "1Mi"})],
                "initContainers": [
                    _container({"memory": "4Mi"}, restartPolicy="Always"),
                    _container({"memory": "3Mi"}),
                ],
            },
            7,
        ),
        (
            {
                "containers": [_container({"memory": "5Mi"})],
                "initContainers": [
                    _container({"memory": "3Mi"}),
                    _container({"memory": "4Mi"}, restartPolicy="Always"),
                ],
            },
            9,
        ),
        ({"containers": [_container({"memory": "1Mi"})], "overhead": {"memory": "8Mi", "cpu": 1}}, 9),
        ({"containers": [_container({"memory": 0})], "overhead": {"memory": "8Mi"}}, 0),
        # The pod's own request stands for its containers'; theirs together before its limit.
        ({"containers": [_container({"memory": "1Mi"})], "resources": {"requests": {"memory": "2Mi"}}}, 2),
        ({"containers": [_container({"memory": "1Mi"})], "resources": {"limits": {"memory": "2Mi"}}}, 1),
        ({"containers": [_container()], "resources": {"limits": {"memory": "2Mi"}}}, 2),
        ({"containers": [_container({"memory": "1Mi"})], "resources": {"requests": {"cpu": 1}}}, 1),
    ],
)
def test_memory_request_of_a_pod(spec: dict[str, Any], memory_mi: int) -> None:
    assert memory_mi * MI == _pod(spec).requests[Resource.MEMORY]


def test_what_is_not_requested_is_absent() -> None:
    assert {} == _pod({"containers": [_container({"cpu": 1})], "overhead": {"memory": "1Mi"}}).requests


def test_storage_limits_add_up_and_init_containers_have_none_of_their_own() -> None:
    limited = {"ephemeral-storage": "10Mi"}
    pod = _pod(
        {
            "containers": [_container(limits=limited), _container(), _container(limits=limited)],
            "initContainers": [_container(limits=limited)],
            "overhead": {"ephemeral-storage": "1Mi"},
        }
    )
    assert "21Mi" == str(pod.ephemeral_storage_limit)
    assert [True, False, True, False] == [
        container.ephemeral_storage_limit is not None for container in pod.containers
    ]
    assert _pod({"containers": [_container()]}).ephemeral_storage_limit is None


@pytest.mark.parametrize(
    ("annotations", "priority", "reason"),
    [
        ({}, 0, None),
        ({"kubernetes.io/config.source": "api"}, 1_999_999_999, None),
        ({"kubernetes.io/config.source": "file"}, 0, "static pod (source file)"),
        ({"kubernetes.io/config.source": "http"}, 0, "static pod (source http)"),
        ({"kubernetes.io/config.mirror": ""}, 0, "mirror pod"),
        ({}, 2_000_000_000, "priority 2000000000"),
    ],
)
def test_static_mirror_and_critical_pods_say_why(
    annotations: dict[str, str], priority: int, reason: str | None
) -> None:
    assert reason == _pod({"priority": priority}, annotations=annotations).critical_because


@pytest.mark.parametrize(
    ("volume", "is_local", "limit"),
    [
        ({"emptyDir": {}}, True, None),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, True, "1Gi"),
        ({"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}, False, "1Gi"),
        ({"hostPath": {"path": "/x"}}, True, None),
        ({"configMap": {"name": "x"}}, True, None),
        ({"gitRepo": {"repository": "x"}}, True, None),
        ({"secret": {"secretName": "x"}}, False, None),
        ({"persistentVolumeClaim": {"claimName": "x"}}, False, None),
        ({}, True, None),  # nothing at all is an emptyDir
        ({"emptyDir": None}, True, None),
    ],
)
def test_local_volumes_are_charged_to_the_pod(
    volume: dict[str, Any], *, is_local: bool, limit: str | None
) -> None:
    (found,) = _pod({"volumes": [{"name": "v", **volume}]}).volumes
    assert is_local is found.is_local
    assert limit == (None if found.size_limit is None else str(found.size_limit))


def test_a_pod_without_a_uid_is_known_by_namespace_and_name() -> None:
    assert "default/p" == _pod().uid
    assert "u" == _pod(uid="u").uid
    assert "shop/p" == _pod(namespace="shop").key


def test_defaults_are_upstreams() -> None:
    pod = _pod()
    assert (30, 0, "default") == (pod.termination_grace_period_seconds, pod.priority, pod.namespace)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({}, "pods[0].metadata"),
        ({"metadata": {}}, "pods[0].metadata.name"),
        ({"metadata": {"name": "p"}, "spec": {"priority": "high"}}, "pods[0].spec.priority"),
        ({"metadata": {"name": "p"}, "spec": {"containers": {}}}, "pods[0].spec.containers"),
        (
            {"metadata": {"name": "p"}, "spec": {"containers": [_container({"memory": "-1Mi"})]}},
            "pods[0].spec.containers[0].resources.requests.memory",
        ),
        ({"metadata": {"name": "p"}, "spec": {"volumes": [{}]}}, "pods[0].spec.volumes[0].name"),
        ({"metadata": {"name": "p"}, "status": {"qosClass": "Best"}}, "pods[0].status.qosClass"),
    ],
)
def test_a_wrong_pod_is_reported_by_path(document: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pod_from_document(document, root="pods[0]")
    assert [path] == [problem.path for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("given", "seconds"), [(-1, 1), (-(2**63), 1), (0, 0), (2**63 - 1, 2**63 - 1), (5.0, 5)]
)
def test_a_negative_grace_period_is_one_second(given: float, seconds: int) -> None:
    assert seconds == _pod({"terminationGracePeriodSeconds": given}).termination_grace_period_seconds


@pytest.mark.parametrize(
    ("given", "priority"), [(2**40, 2**31 - 1), (-(2**40), -(2**31)), (2**31 - 1, 2**31 - 1), (-5, -5)]
)
def test_a_priority_beyond_32_bits_is_the_nearest_that_there_is(given: int, priority: int) -> None:
    assert priority == _pod({"priority": given}).priority


def test_requests_are_the_allocated_ones_where_the_status_tells_them() -> None:
    found = pod_from_document(
        {
            "metadata": {"name": "p"},
            "spec": {
                "containers": [
                    {"name": "c", "resources": {"requests": {"memory": "8Gi"}}},
                    {"name": "d", "resources": {"requests": {"memory": "1Mi"}}},
                ],
                "initContainers": [
                    {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}}
                ],
            },
            "status": {
                "containerStatuses": [
                    {"name": "c", "allocatedResources": {"memory": "2Mi", "cpu": "1"}},
                    {"name": "d"},
                ],
                "initContainerStatuses": [{"name": "s", "allocatedResources": {"memory": "4Mi"}}],
            },
        }
    )
    assert {Resource.MEMORY: 7 << 20} == found.requests
    assert "2Mi" == str(found.containers[0].requests[Resource.MEMORY])
    assert QosClass.BURSTABLE == found.qos_class


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"requests": {"memory": "8Gi"}}, 3 << 20),
        ({"limits": {"memory": "8Gi"}}, 3 << 20),
        ({}, 1 << 20),
    ],
    ids=["a request of its own", "a limit of its own", "none of its own"],
)
def test_of_a_pod_with_requests_of_its_own_the_allocated_ones_count_too(own: dict, expected: int) -> None:
    found = pod_from_document(
        {
            "metadata": {"name": "p"},
            "spec": {
                "resources": own,
                "containers": [{"name": "c", "resources": {"requests": {"memory": "1Mi"}}}],
            },
            "status": {"allocatedResources": {"memory": "3Mi", "cpu": "1"}},
        }
    )
    assert {Resource.MEMORY: expected} == found.requests


def _claim(*containers: str, **amounts: Any) -> dict[str, Any]:
    return {"resourceClaimName": "node-allocatable-claim", "containers": list(containers), **amounts}


def _mapped(memory: str) -> list[dict[str, str]]:
    return [{"name": "cpu", "quantity": "3"}, {"name": "memory", "quantity": memory}]


@pytest.mark.parametrize(
    ("asked", "claims", "expected"),
    [
        (["1Gi"], [], "1Gi"),
        (["100Mi"], [_claim("c1", mapping=_mapped("50Mi"))], "150Mi"),
        (
            ["1Gi"],
            [
                _claim("c1", mapping=[{"name": "cpu", "quantity": "50m"}]),
                _claim("c1", mapping=_mapped("512Mi")),
            ],
            "1536Mi",
        ),
        (["100Mi", "200Mi"], [_claim("c1", "c2", mapping=_mapped("50Mi"))], "350Mi"),
        (
            ["100Mi", "200Mi"],
            [_claim("c1", mapping=_mapped("50Mi")), _claim("c2", mapping=_mapped("25Mi"))],
            "375Mi",
        ),
        (
            ["1Gi", "1Gi"],
            [_claim("c1", "c2", overhead=[{"name": "memory", "perPod": "1Gi", "perContainer": "500Mi"}])],
            "4072Mi",
        ),
        (["1Gi"], [_claim("c1", overhead=[{"name": "memory", "perPod": "1Gi"}])], "2Gi"),
        (["1Gi"], [_claim("c1", overhead=[{"name": "memory", "perContainer": "500Mi"}])], "1524Mi"),
        (["1Gi"], [_claim(overhead=[{"name": "memory", "perContainer": "500Mi"}])], "1Gi"),
        (["1Gi"], [_claim("c1", resources={"memory": "8Gi"})], "9Gi"),
        (["1Gi"], [_claim("c1", mapping=[{"name": "memory"}])], "1Gi"),
    ],
    ids=[
        "no claims",
        "a claim of one container",
        "several claims of one container",
        "one claim of several containers",
        "different claims of several containers",
        "overhead of the pod and of each container",
        "overhead of the pod alone",
        "overhead of each container alone",
        "overhead of each of no containers",
        "as 1.36 writes it",
        "a claim without an amount",
    ],
)
def test_what_claims_take_of_the_node_is_requested_too(
    asked: list[str], claims: list[dict[str, Any]], expected: str
) -> None:
    """Upstream's table (TestPodResourceRequestsWithDRANodeAllocatableClaims), its CPUs as memory."""
    containers = [
        {"name": f"c{number}", "resources": {"requests": {"memory": memory}}}
        for number, memory in enumerate(asked, 1)
    ]
    document = {
        "metadata": {"name": "p"},
        "spec": {"containers": containers},
        "status": {"nodeAllocatableResourceClaimStatuses": claims},
    }
    assert {Resource.MEMORY: parse_quantity(expected).value} == pod_from_document(document).requests


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # max(100Mi, 50Mi) + 25Mi: a claim of an init container counts for as long as the pod is there.
        (
            {
                "containers": [{"name": "c1", "resources": {"requests": {"memory": "50Mi"}}}],
                "initContainers": [{"name": "ic1", "resources": {"requests": {"memory": "100Mi"}}}],
            },
            "125Mi",
        ),
        # What the pod requests as a whole covers its claims.
        (
            {
                "resources": {"requests": {"memory": "2Gi"}},
                "containers": [{"name": "c1", "resources": {"requests": {"memory": "1Gi"}}}],
            },
            "2Gi",
        ),
        ({"containers": [{"name": "c1"}], "overhead": {"memory": "10Mi"}}, "35Mi"),
    ],
    ids=["an init container's", "with requests of the pod's own", "beside a sandbox"],
)
def test_what_claims_take_adds_to_what_containers_request(spec: dict[str, Any], expected: str) -> None:
    document = {
        "metadata": {"name": "p"},
        "spec": spec,
        "status": {"nodeAllocatableResourceClaimStatuses": [_claim("ic1", mapping=_mapped("25Mi"))]},
    }
    assert {Resource.MEMORY: parse_quantity(expected).value} == pod_from_document(document).requests


def test_a_pod_within_its_claims_ranks_behind_one_above_its_request() -> None:
    gpu = pod_from_document(
        {
            "metadata": {"name": "gpu"},
            "spec": {"containers": [{"name": "c"}], "priority": -1},
            "status": {"nodeAllocatableResourceClaimStatuses": [_claim("c", mapping=_mapped("8Gi"))]},
        }
    )
    plain = pod_from_document({"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "c"}]}})
    used = {
        gpu.uid: PodUsage(memory_working_set_bytes=7 << 30),
        plain.uid: PodUsage(memory_working_set_bytes=1 << 20),
    }
    ranking = rank([gpu, plain], used, Signal.MEMORY_AVAILABLE, Layout.SINGLE)
    assert [plain, gpu] == [one.pod for one in ranking]


def test_a_request_of_half_a_byte_is_exceeded_by_one() -> None:
    found = pod_from_document(
        {
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "500m"}}}]},
        }
    )
    assert {Resource.MEMORY: 0} == found.requests


def test_a_sidecar_is_held_to_its_storage_limit_and_an_init_container_is_not() -> None:
    limited = {"resources": {"limits": {"ephemeral-storage": "1Mi"}}}
    found = pod_from_document(
        {
            "metadata": {"name": "p"},
            "spec": {
                "containers": [{"name": "c"}],
                "initContainers": [
                    {"name": "ends", **limited},
                    {"name": "runs-on", "restartPolicy": "Always", **limited},
                ],
            },
        }
    )
    limits = {container.name: container.ephemeral_storage_limit for container in found.containers}
    assert limits["c"] is None
    assert limits["ends"] is None
    assert "1Mi" == str(limits["runs-on"])


def test_what_a_pod_requests_as_a_whole_is_known_where_it_does() -> None:
    own = {"resources": {"requests": {"memory": "3Mi"}}, "containers": [{"name": "c"}]}
    assert "3Mi" == str(pod_from_document({"metadata": {"name": "p"}, "spec": own}).own_memory_request)
    bare = {"containers": [{"name": "c", "resources": {"requests": {"memory": "3Mi"}}}]}
    assert pod_from_document({"metadata": {"name": "p"}, "spec": bare}).own_memory_request is None
