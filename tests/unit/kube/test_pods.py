from __future__ import annotations

from typing import Any

import pytest
from api_faults import pod_document
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import ConfigError
from reactor.kube.pods import PodStore, read_pod
from reactor.model.pods import QosClass
from reactor.model.signals import Resource

_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_a_pod_is_read_with_its_spec_and_status() -> None:
    known = read_pod(
        pod_document(
            spec={"priority": 7},
            status={
                "phase": "Failed",
                "reason": "Evicted",
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"},
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "lastTransitionTime": "1970-01-01T00:02:00Z",
                    },
                ],
                "containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}],
            },
        )
    )
    assert ("default/web", 7, QosClass.BURSTABLE) == (known.pod.key, known.pod.priority, known.pod.qos_class)
    assert {Resource.MEMORY: 64 << 20} == known.pod.requests
    assert (60.0, 120.0) == (known.scheduled_at, known.evicted_at)
    assert known.is_evicted
    assert known.is_terminal
    assert known.has_started


def test_a_pending_pod_has_not_started_and_is_neither_evicted_nor_terminal() -> None:
    known = read_pod(
        pod_document(status={"phase": "Pending", "containerStatuses": [{"state": {"waiting": {}}}]})
    )
    assert not any((known.has_started, known.is_evicted, known.is_terminal, known.is_being_deleted))


def test_a_mirror_pod_is_known_by_the_uid_of_the_static_pods_cgroup() -> None:
    document = pod_document(metadata={"annotations": {"kubernetes.io/config.mirror": "f00d"}})
    known = read_pod(document)
    assert ("f00d", "uid-web") == (known.pod.uid, known.api_uid)
    assert "mirror pod" == known.pod.critical_because
    store = PodStore()
    store.take(document)
    store.drop(document)
    assert {} == dict(store.known)


def test_a_spec_that_becomes_unreadable_stays_as_it_last_was() -> None:
    before = read_pod(pod_document())
    known = read_pod(pod_document(spec={"priority": "high"}), before)
    assert before.pod == known.pod
    assert "pod default/web.spec.priority" in (known.unreadable_because or "")
    assert read_pod(pod_document(), known).unreadable_because is None


@given(_JSON)
def test_whatever_a_pod_is_made_of_nothing_else_is_raised(garbage: Any) -> None:
    store = PodStore()
    store.listing()
    store.take(garbage)
    store.drop(garbage)
    store.take(pod_document(spec={"containers": garbage}))
    assert {"uid-web"} == set(store.known)
    store.listed()
    assert {"uid-web"} == set(store.specs)


def test_a_pod_without_a_name_can_not_be_read() -> None:
    with pytest.raises(ConfigError, match=r"metadata\.name"):
        read_pod({"metadata": {"uid": "u"}})


async def test_a_change_is_told_and_what_stays_the_same_is_not() -> None:
    told: list[int] = []
    store = PodStore(lambda: told.append(1))
    store.take(pod_document())
    store.take(pod_document(metadata={"resourceVersion": "8", "labels": {"a": "b"}}))
    assert 1 == len(told)
    store.take(pod_document(status={"phase": "Succeeded"}))
    assert 2 == len(told)
    store.drop(pod_document("other"))
    assert 2 == len(told)


def test_what_a_list_lacks_is_gone_when_it_has_ended_and_not_before() -> None:
    store = PodStore()
    store.take(pod_document("web"))
    store.take(pod_document("db"))
    given_out = store.known
    store.listing()
    store.take(pod_document("db"))
    assert {"uid-web", "uid-db"} == set(store.known)
    store.listed()
    assert {"uid-db"} == set(store.known)
    assert {"uid-web", "uid-db"} == set(given_out)  # what was given out never changes
    assert store.is_complete
