from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import ConfigError
from reactor.kube.pods import PodStore, read_pod
from reactor.model.pods import PodSource, QosClass
from reactor.model.settings import PodOrigin
from reactor.model.signals import Resource
from tests.support.api_faults import mirror_document, pod_document

pytestmark = pytest.mark.suite("hostile objects")

HASH = "8ef1c1bd3a0b4f5a9d2e7c6b5a493827"
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
    assert 120.0 == known.evicted_at
    assert known.is_evicted
    assert known.is_terminal
    assert known.has_started


def test_a_pending_pod_has_not_started_and_is_neither_evicted_nor_terminal() -> None:
    known = read_pod(
        pod_document(status={"phase": "Pending", "containerStatuses": [{"state": {"waiting": {}}}]})
    )
    assert not any((known.has_started, known.is_evicted, known.is_terminal, known.is_being_deleted))


def store_of(*documents: Any, origin: PodOrigin = PodOrigin.API, node_uid: str = "uid-node-a") -> PodStore:
    """Return the store of a node whose pods have been listed."""
    store = PodStore(node_name="node-a", origin=origin)
    store.node_is(node_uid)
    store.listing()
    for document in documents:
        store.take(document)
    store.listed()
    return store


def test_a_mirror_pod_is_known_by_the_uid_of_the_static_pods_cgroup() -> None:
    document = mirror_document(HASH)
    store = store_of(document)
    (known,) = store.known.values()
    assert (HASH, "uid-etcd-node-a") == (known.pod.uid, known.api_uid)
    assert {HASH: known.pod} == dict(store.specs)
    assert "mirror pod" == known.pod.critical_because
    store.take(mirror_document(HASH, labels={"a": "b"}))
    assert known.pod is store.specs[HASH]
    store.drop(document)
    assert {} == dict(store.known)


def test_a_mirror_is_known_where_the_nodes_uid_is_not() -> None:
    assert {HASH} == set(store_of(mirror_document(HASH), node_uid="").specs)


def test_a_mirror_of_a_recreated_node_is_none() -> None:
    store = store_of(mirror_document(HASH))
    store.node_is("another")
    assert {"uid-etcd-node-a": None} == critical(store)
    store.node_is("uid-node-a")
    assert {HASH: "mirror pod"} == critical(store)


def test_no_mirror_counts_before_all_pods_have_been_listed() -> None:
    store = PodStore(node_name="node-a")
    store.listing()
    store.take(mirror_document(HASH))
    assert {"uid-etcd-node-a": None} == critical(store)
    store.listed()
    assert {HASH: "mirror pod"} == critical(store)


def _owned_by(**changes: Any) -> dict[str, Any]:
    (owner,) = mirror_document(HASH)["metadata"]["ownerReferences"]
    return {"ownerReferences": [{**owner, **changes}]}


def _annotated(**changes: Any) -> dict[str, Any]:
    annotations = mirror_document(HASH)["metadata"]["annotations"]
    return {
        "annotations": {**annotations, **{f"kubernetes.io/config.{key}": it for key, it in changes.items()}}
    }


@pytest.mark.parametrize(
    "metadata",
    [
        _annotated(mirror="another"),
        _annotated(mirror=""),
        _annotated(hash=None),
        _annotated(mirror=["list"], hash=["list"]),
        _annotated(mirror="", hash=""),
        {"annotations": [HASH]},
        {"ownerReferences": None},
        {"ownerReferences": "node-a"},
        _owned_by(kind="ReplicaSet"),
        _owned_by(apiVersion="apps/v1"),
        _owned_by(name="node-b"),
        _owned_by(name=None),
        _owned_by(uid="another"),
        _owned_by(controller=False),
        _owned_by(controller="true"),
        {"ownerReferences": 2 * _owned_by()["ownerReferences"]},
        {"ownerReferences": [*_owned_by()["ownerReferences"], *[{"name": "x"}] * 20]},
        {"name": "etcd-node-b"},
        {"name": "etcdnode-a"},
    ],
)
def test_what_lacks_anything_of_a_mirror_is_a_pod_like_any_other(metadata: dict[str, Any]) -> None:
    store = store_of(mirror_document(HASH, **metadata))
    assert {"uid-etcd-node-a": None} == critical(store)


def critical(store: PodStore) -> dict[str, str | None]:
    """Return why each pod is critical, by the uid of its cgroup."""
    return {uid: pod.critical_because for uid, pod in store.specs.items()}


@pytest.mark.parametrize(
    ("annotations", "spec"),
    [
        ({"config.source": "file"}, {}),
        ({"config.source": "file", "config.hash": "uid-hog"}, {}),
        ({"config.mirror": "uid-hog", "config.hash": "uid-hog"}, {}),
        ({"config.mirror": "uid-web", "config.hash": "uid-web"}, {}),
        ({"config.hash": "uid-web"}, {}),
        ({}, {"terminationGracePeriodSeconds": -1}),
        ({}, {"priority": 1_999_999_999}),
        ({}, {"priorityClassName": "system-node-critical"}),
        ({}, {"containers": "none"}),
    ],
)
def test_a_hog_is_made_immune_by_nothing_that_its_tenant_writes(
    annotations: dict[str, str], spec: dict[str, Any]
) -> None:
    web = pod_document("web", spec={"priority": 2_000_001_000})
    before = store_of(web).specs["uid-web"]
    metadata = {"annotations": {f"kubernetes.io/{key}": value for key, value in annotations.items()}}
    store = store_of(pod_document("hog", metadata=metadata, spec=spec), web)
    assert {"uid-hog": None, "uid-web": "priority 2000001000"} == critical(store)
    assert before == store.specs["uid-web"]


@pytest.mark.parametrize("source", ["file", "http"])
def test_a_pod_of_the_api_servers_is_no_static_one_by_what_the_kubelet_writes_of_those(source: str) -> None:
    """Its tenant knows its uid once it is created, and may annotate it then."""
    annotations = {"kubernetes.io/config.source": source, "kubernetes.io/config.hash": "uid-hog-node-a"}
    store = store_of(pod_document("hog-node-a", metadata={"annotations": annotations}))
    assert {"uid-hog-node-a": None} == critical(store)
    assert PodSource.API is store.known["uid-hog-node-a"].source


@pytest.mark.parametrize("order", [1, -1])
def test_a_mirror_claims_no_cgroup_of_a_pod_that_has_its_uid(order: int) -> None:
    """Of a tenant who knows all that there is to know of the node."""
    hog = pod_document("hog")
    store = store_of(*[hog, mirror_document("uid-hog")][::order])
    assert {"uid-hog": None, "uid-etcd-node-a": None} == critical(store)
    (problem,) = store.problems.values()
    assert "default/etcd-node-a, default/hog, whose uid it is" in problem
    store.drop(mirror_document("uid-hog"))
    assert {"uid-hog": None} == critical(store)
    assert {} == store.problems


def test_of_two_mirrors_that_claim_one_cgroup_neither_counts_and_that_is_reported() -> None:
    store = store_of(mirror_document(HASH), mirror_document(HASH, "forged"))
    assert {"uid-etcd-node-a": None, "uid-forged-node-a": None} == critical(store)
    assert HASH in "".join(store.problems)
    store.drop(mirror_document(HASH, "forged"))
    assert {HASH: "mirror pod"} == critical(store)


def test_the_kubelets_own_list_shows_static_pods_by_what_the_kubelet_writes() -> None:
    static = pod_document(
        "etcd-node-a",
        metadata={
            "uid": HASH,
            "annotations": {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": HASH},
        },
    )
    normal = pod_document("web-node-a", metadata={"annotations": {"kubernetes.io/config.source": "api"}})
    forged = mirror_document("uid-web-node-a", "forged")
    store = store_of(static, normal, forged, origin=PodOrigin.KUBELET)
    assert {HASH: "static pod (source file)", "uid-web-node-a": None, "uid-forged-node-a": None} == critical(
        store
    )
    assert {"uid": None} == critical(
        store_of({**static, "metadata": {**static["metadata"], "uid": "uid"}}, origin=PodOrigin.KUBELET)
    )


def test_what_can_be_read_of_a_spec_counts_and_the_rest_is_reported() -> None:
    document = pod_document(
        spec={
            "priority": "high",
            "terminationGracePeriodSeconds": -5,
            "containers": [
                {"name": "a", "resources": {"requests": {"memory": "-1Gi", "ephemeral-storage": "1Gi"}}},
                {"resources": {"requests": {"memory": "1Gi"}}},
                "odd",
                {"name": "b", "resources": {"requests": {"memory": "64Mi"}, "limits": 7}},
            ],
            "volumes": [{"name": "v"}, {"name": "w", "emptyDir": {"sizeLimit": "much"}}, None],
            "tolerations": {"key": "x"},
        },
        status={"phase": "Running", "qosClass": "Odd", "conditions": [{"type": 1}, 2]},
    )
    store = store_of(document)
    (known,) = store.known.values()
    pod = known.pod
    assert (0, 1, QosClass.BURSTABLE, None) == (
        pod.priority,
        pod.termination_grace_period_seconds,
        pod.qos_class,
        pod.critical_because,
    )
    assert {Resource.MEMORY: 64 << 20, Resource.EPHEMERAL_STORAGE: 1 << 30} == pod.requests
    assert ["a", "b"] == [container.name for container in pod.containers]
    assert [("v", True), ("w", True)] == [(volume.name, volume.is_empty_dir) for volume in pod.volumes]
    assert "Running" == known.phase
    (problem,) = store.problems.values()
    assert "spec.priority: got 'high'" in problem


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
    assert {"uid-web": None} == critical(store)


_UIDS = [HASH, "uid-a", "uid-b", "uid-a-node-a", "0e4a3c0a-1111-4222-8333-0123456789ab"]
_ODD = _JSON | st.sampled_from(
    [2**63, -(2**63), 2**31, -1, 1e308, "-5Gi", "9" * 300, "1e999", "\udcff", "\x1b[2J"]
)
_OWNERS = st.fixed_dictionaries(
    {},
    optional={
        "apiVersion": st.sampled_from(["v1", "v2"]) | _ODD,
        "kind": st.sampled_from(["Node", "Pod"]) | _ODD,
        "name": st.sampled_from(["node-a", "node-b"]) | _ODD,
        "uid": st.sampled_from(["uid-node-a", "other"]) | _ODD,
        "controller": st.booleans() | _ODD,
    },
)
_MIRROR_OWNERS = st.just(mirror_document(HASH)["metadata"]["ownerReferences"])
_METADATA = st.fixed_dictionaries(
    {
        "annotations": st.dictionaries(
            st.sampled_from([f"kubernetes.io/config.{key}" for key in ("source", "hash", "mirror")]),
            st.sampled_from([*_UIDS, "file"]) | _ODD,
        )
        | st.sampled_from(_UIDS).map(
            lambda uid: dict.fromkeys(("kubernetes.io/config.hash", "kubernetes.io/config.mirror"), uid)
        )
        | _ODD,
        "ownerReferences": _MIRROR_OWNERS | st.lists(_OWNERS, max_size=2) | _ODD,
    },
    optional={"labels": _ODD, "deletionTimestamp": _ODD, "namespace": st.just("kube-system")},
)
_LISTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage"]) | st.text(max_size=3),
    st.sampled_from(["1Gi", "-1Gi", "0", 5, "1e3"]) | _ODD,
)
_RESOURCES = st.fixed_dictionaries({}, optional={"requests": _LISTS | _ODD, "limits": _LISTS | _ODD})
_CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b"]) | _ODD},
        optional={"resources": _RESOURCES | _ODD, "restartPolicy": st.just("Always") | _ODD},
    )
    | _ODD,
    max_size=3,
)
_SPEC = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers() | _ODD,
        "priorityClassName": st.just("system-node-critical"),
        "terminationGracePeriodSeconds": st.integers() | _ODD,
        "containers": _CONTAINERS | _ODD,
        "initContainers": _CONTAINERS | _ODD,
        "volumes": st.lists(
            st.fixed_dictionaries({"name": st.just("v") | _ODD}, optional={"emptyDir": _ODD}) | _ODD,
            max_size=2,
        ),
        "tolerations": _ODD,
        "resources": _RESOURCES | _ODD,
        "overhead": _LISTS | _ODD,
    },
)
_AMOUNT = st.sampled_from(["1Gi", "-1", "1e400", 5]) | _ODD
_CLAIM = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.lists(st.just("c") | _ODD, max_size=3) | _ODD,
        "resources": _LISTS | _ODD,
        "mapping": st.lists(
            st.fixed_dictionaries({"name": st.just("memory"), "quantity": _AMOUNT}), max_size=2
        )
        | _ODD,
        "overhead": st.lists(
            st.fixed_dictionaries({"name": st.just("memory"), "perPod": _AMOUNT, "perContainer": _AMOUNT}),
            max_size=2,
        )
        | _ODD,
    },
)
_STATUS = st.fixed_dictionaries(
    {},
    optional={
        "qosClass": st.sampled_from(["Guaranteed", "Odd"]) | _ODD,
        "phase": _ODD,
        "conditions": st.lists(
            st.fixed_dictionaries({"type": st.just("PodScheduled"), "status": st.just("True")}), max_size=1
        )
        | _ODD,
        "containerStatuses": _ODD,
        "nodeAllocatableResourceClaimStatuses": st.lists(_CLAIM | _ODD, max_size=2) | _ODD,
    },
)


def documents(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return pods of these names as a tenant may have them: all but the uid is the tenant's to write."""
    return st.builds(
        lambda name, metadata, spec, status: {
            "metadata": {"namespace": "shop", **metadata, "name": name, "uid": f"uid-{name}"},
            "spec": spec,
            "status": status,
        },
        st.sampled_from(names),
        _METADATA,
        _SPEC | _ODD,
        _STATUS | _ODD,
    )


@given(documents("a", "a-node-a"), documents("b", "b-node-a"))
def test_no_field_of_one_pod_changes_another_pods_spec(a: dict[str, Any], b: dict[str, Any]) -> None:
    """But for a mirror's claim, which does not count where another pod is, or mirrors, what it claims."""
    both = store_of(a, b)
    ((uid, alone),) = store_of(b).known.items()
    if uid == alone.api_uid:
        assert alone == both.known[uid]
    elif alone != both.known.get(uid):
        assert both.known[alone.api_uid].pod.critical_because != "mirror pod"
        assert any("pods claim it" in problem for problem in both.problems.values())
    assert {alone.api_uid, a["metadata"]["uid"]} == {known.api_uid for known in both.known.values()}


@given(documents("a", "a-node-a"))
def test_only_a_mirror_or_its_priority_makes_a_pod_critical(document: dict[str, Any]) -> None:
    (known,) = store_of(document).known.values()
    metadata, spec = document["metadata"], document["spec"]
    priority = spec.get("priority") if isinstance(spec, dict) else None
    annotations = metadata["annotations"] if isinstance(metadata["annotations"], dict) else {}
    may_be_mirror = (
        metadata["name"].endswith("-node-a")
        and annotations.get("kubernetes.io/config.mirror")
        and annotations.get("kubernetes.io/config.mirror") == annotations.get("kubernetes.io/config.hash")
        and isinstance(metadata["ownerReferences"], list)
    )
    if known.pod.critical_because == "mirror pod":
        assert may_be_mirror
        assert known.pod.uid != known.api_uid
    elif known.pod.critical_because is not None:
        assert isinstance(priority, int)
        assert priority >= 2_000_000_000
    assert known.pod.termination_grace_period_seconds >= 0
    assert all(amount >= 0 for amount in known.pod.requests.values())
    assert -(2**31) <= known.pod.priority < 2**31


def test_a_pod_without_a_name_can_not_be_read() -> None:
    with pytest.raises(ConfigError, match=r"metadata\.name"):
        read_pod({"metadata": {"uid": "u"}})


async def test_a_change_is_reported_and_what_stays_the_same_is_not() -> None:
    told: list[int] = []
    store = PodStore(lambda: told.append(1))
    store.take(pod_document())
    store.take(pod_document(metadata={"resourceVersion": "8", "labels": {"a": "b"}}))
    assert 1 == len(told)
    assert {"a": "b"} == next(iter(store.known.values())).labels
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


def test_a_label_that_is_asked_for_is_news_and_of_many_or_odd_ones_only_the_first_are_held() -> None:
    told: list[int] = []
    store = PodStore(lambda: told.append(1))
    store.label_keys = frozenset({"app"})

    def take(labels: object) -> dict[str, str]:
        store.take(pod_document(metadata={"labels": labels}))
        return dict(store.labels_of(next(iter(store.known.values()))))

    assert [{}, {"app": "a"}, {"app": "a"}, {"app": ""}] == [
        take(labels) for labels in (None, {"app": "a"}, {"app": "a", "b": "c"}, {"app": ""})
    ]
    assert 3 == len(told)
    many = {f"k{number}": "v" for number in range(64)}
    odd = {"app": 5}, {"app": "\n"}, {"app": ["a"]}, ["app"], "app", {5: "a"}, {**many, "app": "a"}
    assert [{}] * 7 == [take(labels) for labels in odd]
    assert all(len(one.labels) <= 64 for one in store.known.values())


def _ended(name: str, reason: str = "", phase: str = "Failed") -> dict[str, Any]:
    return pod_document(name, status={"phase": phase, "reason": reason})


def test_of_pods_that_have_ended_a_thousand_are_held_and_all_others_with_them() -> None:
    """The control plane leaves 12,500 of them, and a tenant may have all of them on one node."""
    names = [f"ended-{number}" for number in range(1001)]
    store = store_of(*map(_ended, names), pod_document("web"), pod_document("db"))
    assert {f"uid-{name}" for name in ("web", "db", *names[:-1])} == set(store.known)
    store.take(_ended("web"))  # which was held: of the others one goes, that ended first
    assert {f"uid-{name}" for name in ("web", "db", *names[1:-1])} == set(store.known)
    store.take(pod_document(names[0]))
    store.take(_ended(names[0], phase="Succeeded"))
    assert {f"uid-{name}" for name in ("web", "db", names[0], *names[2:-1])} == set(store.known)
    store.drop(_ended(names[0]))
    store.take(_ended(names[-1]))
    assert {f"uid-{name}" for name in ("web", "db", *names[2:])} == set(store.known)


def test_evicted_pods_are_held_rather_than_others_that_have_ended() -> None:
    names = [f"evicted-{number}" for number in range(1001)]
    evicted = [_ended(name, "Evicted") for name in names]
    store = store_of(*(_ended(f"ended-{number}") for number in range(1000)), pod_document("web"))
    for document in evicted:
        store.take(document)
    assert {"uid-web", *(f"uid-{name}" for name in names[:-1])} == set(store.known)
    store.take(_ended("web", "Evicted"))
    assert {"uid-web", *(f"uid-{name}" for name in names[1:-1])} == set(store.known)
