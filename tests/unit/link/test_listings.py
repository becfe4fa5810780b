"""Listings of pods: what the steward writes is read as it was, and anything else is refused."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.config.pod import pod_from_document
from reactor.forms import FormError
from reactor.link.listings import (
    LONGEST_RECORD_BYTES,
    MOST_CONTAINERS,
    MOST_RECORDS,
    MOST_VOLUMES,
    FileNames,
    files_record,
    fitting,
    is_cut,
    joined,
    pieces,
    read_files,
    read_runtime,
    read_spec,
    runtime_record,
    spec_record,
    split_records,
)
from reactor.link.requests import MOST_LISTED_BYTES, PIECE_BYTES, Section
from reactor.model.pod_lists import MOST_LABEL_KEYS
from reactor.model.pods import Container, Pod, PodSource, QosClass, RuntimePod, Volume
from reactor.model.quantity import Quantity, parse_quantity
from reactor.model.signals import Resource

SPEC = {
    "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
    "spec": {
        "priority": 7,
        "terminationGracePeriodSeconds": 3,
        "resources": {"requests": {"memory": "2Gi"}},
        "containers": [
            {
                "name": "one",
                "resources": {"requests": {"memory": "1.5Gi"}, "limits": {"ephemeral-storage": "100Mi"}},
            },
            {"name": "two"},
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "settings", "configMap": {}},
            {"name": "token", "secret": {}},
        ],
        "tolerations": [{"operator": "Exists"}],
    },
}


def uncritical(_: PodSource, __: int) -> None:
    return None


def read(record: bytes | None) -> Pod:
    assert record is not None
    return read_spec(record, uncritical)[1]


def test_a_spec_is_read_as_it_was_but_for_what_the_guard_has_no_use_for():
    pod = pod_from_document(SPEC)
    volumes = tuple(one for one in pod.volumes if one.name != "token")

    found = read(spec_record(PodSource.API, pod))
    assert found == replace(pod, tolerations=(), volumes=volumes)
    limits = [found.own_memory_request, found.ephemeral_storage_limit, found.containers[0].requests["memory"]]
    assert [str(one) for one in limits] == ["2Gi", "100Mi", "1536Mi"]
    assert str(found.volumes[0].size_limit) == "1Gi"


@pytest.mark.parametrize("source", list(PodSource))
def test_where_a_pod_is_from_and_its_priority_decide_whether_it_is_critical(source):
    record = spec_record(source, Pod(name="a", namespace="b", uid="u", priority=-5))

    def critical_because(told: PodSource, priority: int) -> str:
        return f"{told} {priority}"

    assert read_spec(record or b"", critical_because)[1].critical_because == f"{source} -5"


names = st.from_regex(r"[0-9A-Za-z][0-9A-Za-z._-]{0,62}", fullmatch=True)
amounts = st.builds(
    lambda billionths, text: Quantity(Fraction(billionths, 10**9), text),
    st.integers(0, ((1 << 63) - 1) * 10**9),
    st.from_regex(r"[0-9A-Za-z.+-]{1,64}", fullmatch=True),
)
maybe = st.none() | amounts
resources = st.dictionaries(st.sampled_from([Resource.MEMORY, Resource.EPHEMERAL_STORAGE]), amounts)
pods = st.builds(
    Pod,
    name=names,
    namespace=names,
    uid=names,
    priority=st.integers(-(1 << 31), (1 << 31) - 1),
    qos_class=st.sampled_from(QosClass),
    termination_grace_period_seconds=st.integers(0, (1 << 32) - 1),
    requests=st.dictionaries(
        st.sampled_from([Resource.MEMORY, Resource.EPHEMERAL_STORAGE]), st.integers(0, (1 << 63) - 1)
    ),
    own_memory_request=maybe,
    ephemeral_storage_limit=maybe,
    containers=st.lists(
        st.builds(Container, name=names, requests=resources, ephemeral_storage_limit=maybe), max_size=4
    ).map(tuple),
    volumes=st.lists(
        st.builds(
            Volume, name=names, is_local=st.just(value=True), is_empty_dir=st.booleans(), size_limit=maybe
        ),
        max_size=4,
    ).map(tuple),
)


@given(pod=pods)
def test_any_spec_is_read_as_it_was_written(pod):
    found = read(spec_record(PodSource.API, pod))

    assert found == pod
    texts = [one.text for one in (pod.own_memory_request, pod.ephemeral_storage_limit) if one]
    assert texts == [one.text for one in (found.own_memory_request, found.ephemeral_storage_limit) if one]


@given(
    pod=st.builds(
        Pod,
        name=st.text(max_size=300),
        namespace=st.text(max_size=300),
        uid=names,
        priority=st.integers(),
        termination_grace_period_seconds=st.integers(),
        requests=st.dictionaries(st.just(Resource.MEMORY), st.integers()),
        own_memory_request=st.none() | st.builds(Quantity, st.fractions(), st.text(max_size=80)),
        containers=st.lists(st.builds(Container, name=st.text(max_size=300)), max_size=3).map(tuple),
    )
)
def test_whatever_a_tenant_got_past_the_api_server_is_written_in_the_fixed_form(pod):
    found = read(spec_record(PodSource.API, pod))
    assert found.uid == pod.uid
    assert found.requests.keys() == pod.requests.keys()


@pytest.mark.parametrize("uid", ["", "-u", "a/b", "ä", "u" * 254, "a b"])
def test_of_a_uid_that_no_cgroup_can_have_nothing_is_reported(uid):
    assert spec_record(PodSource.API, Pod(name="a", namespace="b", uid=uid)) is None
    assert runtime_record(uid, RuntimePod(name="a", namespace="b")) is None
    assert files_record(FileNames(uid, is_static=True)) is None


def test_of_many_containers_and_volumes_those_with_limits_are_reported():
    limit = parse_quantity("1Mi")
    containers = [Container(name=f"c{number}") for number in range(1000)]
    containers[900] = replace(containers[900], ephemeral_storage_limit=limit)
    volumes = [Volume(name=f"v{number}") for number in range(1000)]
    volumes[900] = replace(volumes[900], size_limit=limit)
    pod = Pod(name="a", namespace="b", uid="u", containers=tuple(containers), volumes=tuple(volumes))

    record = spec_record(PodSource.API, pod)
    found = read(record)
    assert is_cut(pod)
    assert len(record or b"") <= LONGEST_RECORD_BYTES
    assert (MOST_CONTAINERS, MOST_VOLUMES) == (len(found.containers), len(found.volumes))
    assert found.containers[-1] == containers[900]
    assert found.volumes[-1] == volumes[900]


@given(
    name=names,
    sandboxes=st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), max_size=16),
    containers=st.dictionaries(st.binary(min_size=32, max_size=32).map(bytes.hex), names, max_size=5),
    source=st.sampled_from([one for one in PodSource if one is not PodSource.MIRROR]),
)
def test_what_the_runtime_and_files_tell_is_read_as_it_was_written(name, sandboxes, containers, source):
    pod = RuntimePod(
        name=name, namespace="n", sandboxes=tuple(sandboxes), containers=containers, source=source
    )
    assert ("u", pod) == read_runtime(runtime_record("u", pod) or b"")
    for told in (FileNames("u", is_static=True, namespace="x", name=name), FileNames("u", is_static=False)):
        assert told == read_files(files_record(told) or b"")


def test_ids_that_no_runtime_makes_are_left_out():
    odd = RuntimePod(name="a", namespace="b", sandboxes=("x", "a" * 64), containers={"../../etc": "c"})
    _, found = read_runtime(runtime_record("u", odd) or b"")
    assert (("a" * 64,), {}) == (found.sandboxes, found.containers)


def test_no_pod_of_the_runtime_is_a_mirror():
    pod = RuntimePod(name="a", namespace="b", source=PodSource.MIRROR)
    with pytest.raises(FormError, match="accepted"):
        read_runtime(runtime_record("u", pod) or b"")


@given(raw=st.binary(max_size=200))
def test_any_bytes_are_a_record_or_refused(raw):
    for reader in (lambda: read_spec(raw, uncritical), lambda: read_runtime(raw), lambda: read_files(raw)):
        with suppress(FormError):
            reader()


@given(pod=pods, place=st.integers(0, 400), value=st.integers(0, 255))
def test_a_spec_with_another_byte_is_one_within_its_bounds_or_refused(pod, place, value):
    record = bytearray(spec_record(PodSource.API, pod) or b"")
    record[place % len(record)] = value
    with suppress(FormError):
        found = read(bytes(record))
        assert all(0 <= amount < 1 << 63 for amount in found.requests.values())
        assert len(found.containers) <= MOST_CONTAINERS
        assert found.uid.isascii()


@given(pod=pods, cut=st.integers(1, 400))
def test_a_spec_that_is_cut_short_or_too_long_is_refused(pod, cut):
    record = spec_record(PodSource.API, pod) or b""
    for wrong in (record[: -(cut % len(record)) or None] if cut % len(record) else b"", record + b"\0" * cut):
        with pytest.raises(FormError):
            read(wrong)


@given(
    records=st.lists(st.binary(min_size=1, max_size=3 * PIECE_BYTES), max_size=5), number=st.integers(1, 9)
)
def test_records_are_the_same_after_their_pieces(records, number):
    buffer, found = bytearray(), list[bytes]()
    told = list(pieces(Section.SPECS, number, records))
    for index, piece in enumerate(told):
        assert (number, index, len(joined(records))) == (piece.number, piece.index, piece.total_bytes)
        assert len(piece.content) <= PIECE_BYTES
        buffer += piece.content
        found += split_records(buffer)
    assert found == records
    assert not buffer
    assert [one.is_last for one in told] == [*(False for _ in told[1:]), True]


def test_records_that_do_not_fit_into_a_listing_are_left_out():
    assert len(fitting([b"x"] * (MOST_RECORDS + 5))) == MOST_RECORDS
    large = fitting([b"x" * LONGEST_RECORD_BYTES] * 100)
    assert len(joined(large)) <= MOST_LISTED_BYTES < len(joined([*large, large[0]]))


@pytest.mark.parametrize("length", [0, LONGEST_RECORD_BYTES + 1])
def test_a_record_of_no_or_too_many_bytes_is_refused(length):
    with pytest.raises(FormError, match="accepted"):
        list(split_records(bytearray(struct.pack("=I", length) + b"x" * 10)))


LABEL_KEYS = st.text(alphabet="aZ9./-_", max_size=252).map(lambda rest: f"k{rest}")
LABEL_VALUES = st.just("") | st.text(alphabet="aZ9.-_", max_size=62).map(lambda rest: f"v{rest}")


@given(st.dictionaries(LABEL_KEYS, LABEL_VALUES, max_size=MOST_LABEL_KEYS))
def test_labels_are_read_as_they_were(labels: dict[str, str]) -> None:
    pod = replace(pod_from_document(SPEC), labels=labels)
    assert read(spec_record(PodSource.API, pod)).labels == labels


def test_of_a_pods_labels_so_many_are_sent_and_of_the_servers_form_alone() -> None:
    odd = {"": "a", "-a": "b", "a" * 254: "b", "b": "c" * 64, "c": "\x1b[2J", "d": "ö"}
    many = {f"k{number:02}": "v" for number in range(20)}
    found = read(spec_record(PodSource.API, Pod(name="a", namespace="b", uid="u", labels=odd | many))).labels
    assert list(found) == [f"k{number:02}" for number in range(MOST_LABEL_KEYS)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(b"k1v", b"k2v"), (b"k1v", b"-1v"), (b"k1v", b"k1\x1b")],
    ids=["twice", "key", "value"],
)
def test_labels_that_are_none_are_refused(wanted: bytes, found: bytes) -> None:
    pod = Pod(name="a", namespace="b", uid="u", labels={"k1": "v", "k2": "v"})
    record = spec_record(PodSource.API, pod) or b""
    assert wanted in record
    with pytest.raises(FormError, match="accepted"):
        read(record.replace(wanted, found))


def test_the_longest_spec_with_labels_fits_into_a_record() -> None:
    amount = Quantity(Fraction(1, 10**9), "1" * 64)
    asked = {Resource.MEMORY: amount, Resource.EPHEMERAL_STORAGE: amount}
    pod = Pod(
        name="n" * 253,
        namespace="s" * 253,
        uid="u" * 253,
        own_memory_request=amount,
        ephemeral_storage_limit=amount,
        containers=tuple(
            Container(name="c" * 253, requests=asked, ephemeral_storage_limit=amount)
            for _ in range(MOST_CONTAINERS)
        ),
        volumes=tuple(Volume(name="v" * 253, size_limit=amount) for _ in range(MOST_VOLUMES)),
        labels={f"{number:02}" + "k" * 251: "v" * 63 for number in range(MOST_LABEL_KEYS)},
    )
    record = spec_record(PodSource.API, pod) or b""
    assert len(record) <= LONGEST_RECORD_BYTES
    assert read(record).labels == pod.labels
