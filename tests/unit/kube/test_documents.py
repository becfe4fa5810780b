from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reactor.kube.documents import ObjectReference, Occurrence, event, event_name, failed_status

_POD = ObjectReference(kind="Pod", name="web", uid="u", namespace="shop")


def test_an_evicted_pods_status_is_upstreams() -> None:
    patch = failed_status("u", "The node was low on resource: memory.", 60.0, disrupted=True)
    assert {"uid": "u"} == patch["metadata"]
    status = patch["status"]
    assert ("Failed", "Evicted", "The node was low on resource: memory.") == (
        status["phase"],
        status["reason"],
        status["message"],
    )
    [condition] = [one for one in status["conditions"] if one["type"] == "DisruptionTarget"]
    assert ("True", "TerminationByKubelet", "1970-01-01T00:01:00Z") == (
        condition["status"],
        condition["reason"],
        condition["lastTransitionTime"],
    )
    assert "containerStatuses" not in status


def test_a_pod_that_was_never_admitted_was_not_disrupted() -> None:
    kinds = [one["type"] for one in failed_status("u", "no", 60.0, disrupted=False)["status"]["conditions"]]
    assert ["Ready", "ContainersReady"] == kinds


def test_conditions_say_which_generation_of_the_pod_they_are_of_where_it_has_one() -> None:
    patch = failed_status("u", "m", 60.0, disrupted=True, generation=3)
    assert [3, 3, 3] == [one["observedGeneration"] for one in patch["status"]["conditions"]]
    before = failed_status("u", "m", 60.0, disrupted=True)
    assert not any("observedGeneration" in one for one in before["status"]["conditions"])


def test_an_event_is_about_its_pod_in_its_namespace() -> None:
    annotations = {"starved_resource": "memory"}
    told = event(
        Occurrence(name="web.1", about=_POD, reason="Evicted", message="m" * 2000, annotations=annotations),
        "one",
        60.0,
    )
    assert {"name": "web.1", "namespace": "shop", "annotations": annotations} == told["metadata"]
    assert {"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": "u", "namespace": "shop"} == told[
        "involvedObject"
    ]
    assert ("Warning", "Evicted", 1024) == (told["type"], told["reason"], len(told["message"]))
    assert {"component": "reactor", "host": "one"} == told["source"]


def test_an_event_about_a_node_is_in_the_default_namespace() -> None:
    about = ObjectReference(kind="Node", name="one", uid="one")
    told = event(Occurrence(name="one.1", about=about, reason="SystemOOM", message="m"), "one", 60.0)
    assert "default" == told["metadata"]["namespace"]
    assert {"kind": "Node", "name": "one", "uid": "one"} == told["involvedObject"]


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,250}[a-z0-9])?", fullmatch=True), st.text(), st.text())
def test_an_events_name_is_the_same_for_the_same_and_fits(subject: str, one: str, other: str) -> None:
    assert event_name(subject, one) == event_name(subject, one)
    assert (event_name(subject, one) == event_name(subject, other)) == (one == other)
    assert len(event_name(subject, one)) <= 253
