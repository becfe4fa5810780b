"""What a recording keeps is what decoding reads: `decode(record(x)) == decode(x)`, and no more than that."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.config.decode import decode, key_of
from reactor.config.pod import PodDocument, pod_from_document
from reactor.model.pods import Pod, PodUsage
from reactor.model.quantity import Quantity
from reactor.simulate.plain_node import summary_of
from reactor.simulate.recording import reduced_pod, reduced_summary, step_of
from reactor.simulate.replay import replay
from reactor.simulate.scenario import scenario_from_text
from reactor.simulate.summary import PodStats, Summary, working_sets, written_working_sets

MI = 1 << 20
_UNREAD = ("unread", "secretName", "password", 'image"', "labels", "podIP", "/var")

names = st.sampled_from(["a", "b", "c"])
counts = st.integers(0, 1 << 40)
amounts = st.sampled_from(["1", "100m", "1Mi", "2Gi", 0, 7])
resource_lists = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"]), amounts, max_size=3
)


def given_keys(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return mappings that have any of the keys, null here and there, and one that no part of ours reads."""
    optional = {key.replace("__", "-"): st.none() | value for key, value in keys.items()}
    return st.fixed_dictionaries({}, optional={**optional, "unread": st.just({"secret": "s"})})


def with_name(more: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda name, others: {**others, "name": name}, names, more)


resources = given_keys(requests=resource_lists, limits=resource_lists)
containers = st.lists(
    with_name(given_keys(resources=resources, restartPolicy=st.just("Always"), image=st.just("i"))),
    max_size=3,
)
statuses = st.lists(
    given_keys(name=names, allocatedResources=resource_lists, resources=resources), max_size=3
)
claims = st.lists(
    given_keys(
        containers=st.lists(names, max_size=2),
        resources=resource_lists,
        mapping=st.lists(given_keys(name=st.just("memory"), quantity=amounts), max_size=2),
        overhead=st.lists(
            given_keys(name=st.just("memory"), perPod=amounts, perContainer=amounts), max_size=2
        ),
    ),
    max_size=2,
)
volumes = st.lists(
    with_name(
        given_keys(
            emptyDir=given_keys(medium=st.sampled_from(["", "Memory"]), sizeLimit=amounts),
            hostPath=given_keys(path=st.just("/var")),
            configMap=given_keys(name=names),
            gitRepo=given_keys(),
            secret=given_keys(secretName=names),
        ).map(lambda kinds: {key: kind for key, kind in kinds.items() if key != "unread"})
    ),
    max_size=3,
)
pods = st.fixed_dictionaries(
    {
        "metadata": with_name(
            given_keys(
                namespace=names,
                uid=names,
                labels=st.just({"app": "x"}),
                annotations=st.dictionaries(
                    st.sampled_from(
                        ["kubernetes.io/config.source", "kubernetes.io/config.mirror", "password"]
                    ),
                    st.sampled_from(["api", "file"]),
                ),
            )
        )
    },
    optional={
        "spec": given_keys(
            priority=st.integers(-5, 2_000_000_000),
            terminationGracePeriodSeconds=st.integers(-1, 600),
            containers=containers,
            initContainers=containers,
            volumes=volumes,
            tolerations=st.lists(given_keys(key=names, operator=st.just("Exists"), effect=names), max_size=2),
            resources=resources,
            overhead=resource_lists,
        ),
        "status": given_keys(
            qosClass=st.sampled_from(["BestEffort", "Burstable", "Guaranteed"]),
            containerStatuses=statuses,
            initContainerStatuses=statuses,
            allocatedResources=resource_lists,
            nodeAllocatableResourceClaimStatuses=claims,
            podIP=st.just("10.0.0.1"),
        ),
    },
)

times = st.just("2026-01-31T12:00:00Z")
memory = given_keys(time=times, availableBytes=counts, workingSetBytes=counts, usageBytes=counts)
swap = given_keys(time=times, swapAvailableBytes=counts, swapUsageBytes=counts)
filesystem = given_keys(
    time=times,
    availableBytes=counts,
    capacityBytes=counts,
    usedBytes=counts,
    inodesFree=counts,
    inodes=counts,
    inodesUsed=counts,
)
container_statistics = st.lists(
    given_keys(name=names, memory=memory, rootfs=filesystem, logs=filesystem), max_size=2
)
summaries = given_keys(
    node=given_keys(
        memory=memory,
        swap=swap,
        fs=filesystem,
        runtime=given_keys(imageFs=filesystem, containerFs=filesystem),
        rlimit=given_keys(time=times, maxpid=counts, curproc=counts),
        systemContainers=container_statistics,
    ),
    pods=st.lists(
        given_keys(
            podRef=given_keys(name=names, namespace=names, uid=names),
            memory=memory,
            swap=swap,
            containers=container_statistics,
            volume=st.lists(given_keys(name=names, usedBytes=counts, inodesUsed=counts), max_size=2),
            ephemeral__storage=filesystem,
            process_stats=given_keys(process_count=counts),
        ),
        max_size=2,
    ),
)


@given(pods)
def test_a_recorded_pod_is_decoded_as_the_pod_itself(document: dict[str, Any]) -> None:
    assert pod_from_document(document) == pod_from_document(reduced_pod(document))


@given(summaries)
def test_recorded_statistics_are_decoded_as_the_statistics_themselves(document: dict[str, Any]) -> None:
    assert decode(document, Summary) == decode(reduced_summary(document), Summary)


@given(pods, summaries)
def test_nothing_that_decoding_does_not_read_is_recorded(
    pod: dict[str, Any], summary: dict[str, Any]
) -> None:
    text = json.dumps([reduced_pod(pod), reduced_summary(summary)])
    assert [] == [word for word in _UNREAD if word in text]


_odd = st.sampled_from(
    ['"', "\\", '{"podRef":{"uid":"a"},"memory":{"workingSetBytes":1}', "]},", "a", "ä", ""]
)
_odd_counts = st.sampled_from([0, 5, 2**64, 1e3, -1, "1"])
_odd_pods = st.lists(
    given_keys(
        podRef=given_keys(name=_odd, namespace=_odd, uid=names | _odd),
        memory=given_keys(availableBytes=counts, workingSetBytes=_odd_counts),
        containers=st.lists(given_keys(name=_odd, memory=memory), max_size=1),
    ),
    max_size=3,
)


@given(_odd_pods)
def test_working_sets_read_from_a_line_are_those_that_decoding_it_gives(pods: list[Any]) -> None:
    summary = {"node": {}, **reduced_summary({"pods": pods})}
    line = json.dumps({"at": "1.0s", "summary": summary}, separators=(",", ":"))
    of_pods = [one for one in summary.get("pods", ()) if "podRef" in one]  # others are no pod's
    assert written_working_sets(line) in (None, working_sets({"pods": of_pods}))


def test_working_sets_are_read_from_a_line_of_what_a_kubelet_shows_and_of_a_plain_node() -> None:
    pods = [{**every_key(PodStats), "podRef": {"name": "a", "namespace": "b", "uid": uid}} for uid in "cd"]
    plain = Pod(name="a", namespace="b", uid="c")
    for summary, uids in (
        (reduced_summary({"pods": pods}), "cd"),
        (summary_of({}, [plain], {"c": PodUsage(memory_working_set_bytes=1, process_count=1)}), "c"),
    ):
        line = json.dumps({"at": "1.0s", "summary": summary}, separators=(",", ":"))
        assert dict.fromkeys(uids, 1) == written_working_sets(line)


def every_key(cls: Any) -> Any:
    """Return a document of a `cls` that has every key that is read, however deep."""
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        return {key_of(field): every_key(hints[field.name]) for field in dataclasses.fields(cls)}
    arguments = [one for one in typing.get_args(cls) if one not in {type(None), Ellipsis}]
    if typing.get_origin(cls) is tuple:
        return [every_key(arguments[0])]
    if len(arguments) == 2:
        return {"memory": 1} if arguments[1] is Quantity else {"kubernetes.io/config.source": "api"}
    return every_key(arguments[0]) if arguments else 1


@pytest.mark.parametrize(("cls", "reduce"), [(PodDocument, reduced_pod), (Summary, reduced_summary)])
def test_every_key_that_is_read_is_recorded_also_one_that_comes_later(cls: type, reduce: Any) -> None:
    document = every_key(cls)
    assert document == reduce(document)


def test_a_recording_judges_the_victim_that_the_daemon_judges_by_swap_and_by_resized_requests() -> None:
    def pod(name: str, request: str, allocated: str) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "uid": name},
            "spec": {"containers": [{"name": "m", "resources": {"requests": {"memory": request}}}]},
            "status": {"containerStatuses": [{"name": "m", "allocatedResources": {"memory": allocated}}]},
        }

    documents = [pod("granted", "1Gi", "1Gi"), pod("wished", "1Gi", "100Mi")]
    summary = {
        "node": {
            "memory": {"availableBytes": 10 * MI, "workingSetBytes": 4096 * MI},
            "swap": {"swapAvailableBytes": 10 * MI, "swapUsageBytes": 1024 * MI},
        },
        "pods": [
            {
                "podRef": {"name": name, "uid": name},
                "memory": {"workingSetBytes": 900 * MI},
                "swap": {"swapUsageBytes": swapped * MI},
            }
            for name, swapped in (("granted", 800), ("wished", 1))
        ],
    }

    def evicted(signal: str) -> list[str]:
        step = step_of(0.0, summary, [reduced_pod(one) for one in documents], None)
        scenario = {
            "apiVersion": "reactor/v1alpha1",
            "kind": "Scenario",
            "kubeletConfiguration": {"evictionHard": {signal: "100Mi"}},
            "steps": [step],
        }
        (line,) = replay(scenario_from_text(json.dumps(scenario), "recorded"))
        return [one["pod"] for one in line["evicted"]]

    assert ["default/wished"] == evicted("memory.available")
    assert ["default/granted"] == evicted("swap.available")
