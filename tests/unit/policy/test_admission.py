import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.pods import Pod, QosClass, Toleration
from reactor.model.signals import NodeCondition
from reactor.policy.admission import refusal

MEMORY = (NodeCondition.MEMORY_PRESSURE,)
KEY = "node.kubernetes.io/memory-pressure"


def _pod(qos: QosClass = QosClass.BEST_EFFORT, *tolerations: Toleration, critical: str | None = None) -> Pod:
    return Pod(
        name="p", namespace="n", uid="u", qos_class=qos, tolerations=tolerations, critical_because=critical
    )


@pytest.mark.parametrize("qos", QosClass)
def test_everybody_may_start_without_pressure(qos: QosClass) -> None:
    assert refusal(_pod(qos), ()) is None


@given(st.sampled_from(QosClass), st.sets(st.sampled_from(NodeCondition)))
def test_a_critical_pod_always_may(qos: QosClass, conditions: set[NodeCondition]) -> None:
    assert refusal(_pod(qos, critical="mirror pod"), tuple(conditions)) is None


def test_memory_pressure_keeps_out_best_effort_pods_only() -> None:
    answers = {qos: refusal(_pod(qos), MEMORY) is None for qos in QosClass}
    assert {QosClass.GUARANTEED: True, QosClass.BURSTABLE: True, QosClass.BEST_EFFORT: False} == answers


@pytest.mark.parametrize("qos", QosClass)
@pytest.mark.parametrize(
    "conditions",
    [
        (NodeCondition.DISK_PRESSURE,),
        (NodeCondition.PID_PRESSURE,),
        (NodeCondition.MEMORY_PRESSURE, NodeCondition.DISK_PRESSURE),
    ],
)
def test_any_other_condition_keeps_out_everybody(
    qos: QosClass, conditions: tuple[NodeCondition, ...]
) -> None:
    tolerating = _pod(qos, Toleration(operator="Exists"))
    assert refusal(tolerating, conditions) is not None


def test_the_refusal_says_which_conditions() -> None:
    refused = refusal(_pod(), (NodeCondition.MEMORY_PRESSURE, NodeCondition.PID_PRESSURE))
    assert ("Evicted", "The node had condition: [MemoryPressure PIDPressure]. ") == refused


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration(key=KEY, operator="Exists", effect="NoSchedule"), True),
        (Toleration(key=KEY, operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key=KEY), True),
        (Toleration(key=KEY, operator="Equal", value=""), True),
        (Toleration(key=KEY, operator="Equal", value="yes"), False),
        (Toleration(key=KEY, operator="Exists", effect="NoExecute"), False),
        (Toleration(key="node.kubernetes.io/disk-pressure", operator="Exists"), False),
        (Toleration(key=KEY, operator="Gt", value=""), False),
    ],
)
def test_a_best_effort_pod_may_where_it_tolerates_the_taint(
    toleration: Toleration, *, tolerates: bool
) -> None:
    assert tolerates is (refusal(_pod(QosClass.BEST_EFFORT, toleration), MEMORY) is None)


@pytest.mark.parametrize("pod", [_pod(), _pod(critical="static pod")])
def test_a_node_that_shuts_down_admits_no_pod_in_upstreams_words(pod: Pod) -> None:
    refused = refusal(pod, (), is_shutting_down=True)
    assert ("NodeShutdown", "Pod was rejected as the node is shutting down.") == refused
