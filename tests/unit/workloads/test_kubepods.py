from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.pods import QosClass
from reactor.workloads.kubepods import (
    container_cgroups,
    is_config_hash,
    partition_of,
    pod_cgroups,
    uid_of,
)

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree

UID = "0e4a3c0a-1111-4222-8333-0123456789ab"
ID = "0123456789abcdef" * 4


def test_pods_of_the_cgroupfs_driver_are_found_by_their_class(fake: FakeTree) -> None:
    for cgroup in (f"pod{UID}", "besteffort/podb", "burstable/podc", "burstable", "other"):
        fake.add(f"/k/kubepods/{cgroup}")
    found = {(one.uid, one.qos_class, one.cgroup) for one in pod_cgroups(fake.tree, "/k/kubepods")}
    assert {
        (UID, QosClass.GUARANTEED, f"/k/kubepods/pod{UID}"),
        ("b", QosClass.BEST_EFFORT, "/k/kubepods/besteffort/podb"),
        ("c", QosClass.BURSTABLE, "/k/kubepods/burstable/podc"),
    } == found


def test_pods_of_the_systemd_driver_are_found_by_their_class(fake: FakeTree) -> None:
    root = "/a.slice/a-kubepods.slice"
    written = UID.replace("-", "_")
    for cgroup in (
        f"a-kubepods-pod{written}.slice",
        "a-kubepods-besteffort.slice/a-kubepods-besteffort-podb.slice",
        "a-kubepods-burstable.slice/a-kubepods-burstable-podc_d.slice",
        "other.slice",
    ):
        fake.add(f"{root}/{cgroup}")
    found = {(one.uid, one.qos_class) for one in pod_cgroups(fake.tree, root)}
    assert {
        (UID, QosClass.GUARANTEED),
        ("b", QosClass.BEST_EFFORT),
        ("c-d", QosClass.BURSTABLE),
    } == found


@pytest.mark.parametrize(
    ("root", "partition", "places"),
    [
        ("/k/kubepods", "system", ("podg", "besteffort/podb", "burstable/podc")),
        (
            "/kubepods.slice",
            "kubepods-system.slice",
            (
                "kubepods-system-podg.slice",
                "kubepods-system-besteffort.slice/kubepods-system-besteffort-podb.slice",
                "kubepods-system-burstable.slice/kubepods-system-burstable-podc.slice",
            ),
        ),
    ],
)
def test_pods_of_the_system_partition_are_found_and_told_from_the_others(
    fake: FakeTree, root: str, partition: str, places: tuple[str, ...]
) -> None:
    for place in places:
        fake.add(f"{root}/{partition}/{place}")
    fake.add(f"{root}/podx")
    found = {one.uid: one for one in pod_cgroups(fake.tree, root)}
    assert {
        "g": QosClass.GUARANTEED,
        "b": QosClass.BEST_EFFORT,
        "c": QosClass.BURSTABLE,
        "x": QosClass.GUARANTEED,
    } == {uid: one.qos_class for uid, one in found.items()}
    assert {"g", "b", "c"} == {
        uid for uid, one in found.items() if partition_of(one.cgroup, (root,)) == f"{root}/{partition}"
    }
    # For a daemon whose pods' parent it is, it is no partition.
    own = list(pod_cgroups(fake.tree, f"{root}/{partition}"))
    assert {"g", "b", "c"} == {one.uid for one in own}
    assert all(partition_of(one.cgroup, (f"{root}/{partition}",)) is None for one in own)


def test_a_pod_that_is_called_system_is_no_partition(fake: FakeTree) -> None:
    fake.add("/kubepods/podsystem/system")
    assert ["system"] == [one.uid for one in pod_cgroups(fake.tree, "/kubepods")]
    assert partition_of("/kubepods/podsystem", ("/kubepods",)) is None
    assert partition_of("/kubepods/burstable/podsystem", ("/kubepods",)) is None
    assert partition_of("/elsewhere/system/poda", ("/kubepods",)) is None


def test_a_tree_that_is_not_there_is_an_error_and_not_an_empty_one(fake: FakeTree) -> None:
    with pytest.raises(FileNotFoundError):
        list(pod_cgroups(fake.tree, "/kubepods"))


@pytest.mark.parametrize(
    ("name", "is_monitor"),
    [
        (ID, False),
        (f"cri-containerd-{ID}.scope", False),
        (f"crio-{ID}.scope", False),
        (f"crio-{ID}", False),
        (f"docker-{ID}.scope", False),
        (f"crio-conmon-{ID}.scope", True),
        (f"crio-conmon-{ID}", True),
    ],
)
def test_a_containers_cgroup_is_known_by_the_id_at_its_end(
    fake: FakeTree, name: str, *, is_monitor: bool
) -> None:
    fake.add(f"/pod/{name}")
    (found,) = container_cgroups(fake.tree, "/pod")
    assert (ID, f"/pod/{name}", is_monitor) == found


@pytest.mark.parametrize("name", ["init.scope", ID[:-1], f"{ID}x", "system.slice"])
def test_what_is_no_containers_cgroup_is_left_out(fake: FakeTree, name: str) -> None:
    fake.add(f"/pod/{name}")
    assert container_cgroups(fake.tree, "/pod") == ()


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        ("podabc", "abc"),
        ("pod", None),
        ("burstable", None),
        ("x-podabc", None),  # only slices carry their parents' names
        ("poda_b", "a_b"),
        ("kubepods-podabc.slice", "abc"),
        ("podabc.slice", None),
        ("kubepods-burstable.slice", None),
        ("kubepods-burstable-poda_b-pod1_2.slice", "1-2"),
        ("pod..", None),
    ],
)
def test_a_uid_is_what_follows_pod_in_the_cgroups_name(name: str, uid: str | None) -> None:
    assert uid == uid_of(name)


@given(st.text(max_size=40))
def test_no_name_is_too_strange_to_be_no_pods(name: str) -> None:
    uid = uid_of(name)
    # The cgroupfs driver writes a uid as it is, the systemd driver with "_" for "-".
    assert uid is None or f"pod{uid}" in (name.replace("_", "-") if name.endswith(".slice") else name)


def test_the_hash_of_a_manifest_is_distinguished_from_a_uuid() -> None:
    assert is_config_hash("8ef1c1bd3a0b4f5a9d2e7c6b5a493827")
    assert not is_config_hash(UID)
    assert not is_config_hash("8ef1c1bd3a0b4f5a9d2e7c6b5a49382")
