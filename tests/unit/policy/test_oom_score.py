import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.pods import QosClass
from reactor.policy.admission import oom_score_adj, requested_bytes

GI = 1 << 30


@pytest.mark.parametrize(
    ("qos", "request_bytes", "score"),
    [
        (QosClass.GUARANTEED, GI, -997),
        (QosClass.BEST_EFFORT, 0, 1000),
        (QosClass.BURSTABLE, GI, 750),  # a quarter of the node
        (QosClass.BURSTABLE, 0, 999),  # never as expendable as a BestEffort pod's
        (QosClass.BURSTABLE, 4 * GI, 3),  # never as safe as a Guaranteed pod's
        (QosClass.BURSTABLE, 9 * GI, 3),
    ],
)
def test_the_score_goes_by_class_and_request(qos: QosClass, request_bytes: int, score: int) -> None:
    assert score == oom_score_adj(qos, request_bytes, 4 * GI)


def test_a_node_critical_pod_is_as_safe_as_a_guaranteed_one() -> None:
    assert -997 == oom_score_adj(QosClass.BEST_EFFORT, 0, GI, node_critical=True)


def test_a_node_without_capacity_has_no_score() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        oom_score_adj(QosClass.BURSTABLE, 1, 0)


@given(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(1, 2**50))
def test_who_asked_for_more_is_never_more_expendable(one: int, other: int, capacity: int) -> None:
    less, more = sorted((one, other))
    scores = [oom_score_adj(QosClass.BURSTABLE, request, capacity) for request in (less, more)]
    assert scores[0] >= scores[1]
    assert all(2 < score < 1000 for score in scores)


@given(st.integers(10**9, 2**50), st.data())
def test_what_was_asked_for_is_found_in_the_score_to_half_a_thousandth_of_the_node(
    capacity: int, data: st.DataObject
) -> None:
    request = data.draw(st.integers(capacity // 500 + 1, capacity * 996 // 1000))
    found = requested_bytes(oom_score_adj(QosClass.BURSTABLE, request, capacity), capacity)
    assert found is not None
    assert abs(found - request) <= capacity // 2000 + 1


@pytest.mark.parametrize(
    ("score", "expected"), [(1000, 0), (999, GI // 1000), (-997, None), (0, None), (-998, None)]
)
def test_a_score_shows_a_request_only_between_the_classes(score: int, expected: int | None) -> None:
    assert expected == requested_bytes(score, GI)
