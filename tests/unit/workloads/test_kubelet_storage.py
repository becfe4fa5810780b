from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reactor.model.pods import Container, Pod, StorageKind, Volume
from reactor.model.quantity import parse_quantity
from reactor.workloads.kubelet_storage import KubeletStorage, NodePaths

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree


class Places:
    """A node whose directories lie below a temporary one."""

    def __init__(self, fake: FakeTree, directory: Path) -> None:
        self.fake = fake
        self.directory = directory
        paths = NodePaths(proc=directory / "proc", logs=directory / "logs", kubelet=directory / "kubelet")
        self.storage = KubeletStorage(fake.tree, paths)
        fake.add("/pod/one")
        fake.file("/pod/one", "cgroup.procs", "7\n8\n")
        self.mount(7, self.make("layer"))

    def make(self, path: str) -> str:
        (self.directory / path).mkdir(parents=True)
        return str(self.directory / path)

    def mount(self, pid: int, layer: str) -> None:
        (self.directory / "proc" / str(pid)).mkdir(parents=True)
        line = f"1 2 0:3 / / rw - overlay overlay rw,lowerdir=/l,upperdir={layer},workdir=/w\n"
        (self.directory / "proc" / str(pid) / "mountinfo").write_text(line)

    def of(self, pod: Pod) -> set[tuple[StorageKind, str, str]]:
        (places,) = self.storage.places({pod.uid: pod}).values()
        return {(one.kind, one.name, one.path) for one in places}


@pytest.fixture
def places(fake: FakeTree, tmp_path: Path) -> Places:
    return Places(fake, tmp_path / "node")


POD = Pod(
    name="web",
    namespace="shop",
    uid="u",
    containers=(Container(name="one"),),
    volumes=(
        Volume(name="scratch", is_empty_dir=True),
        Volume(name="shm", is_empty_dir=True, is_local=False),
        Volume(name="config"),
        Volume(name="token", is_local=False),
        Volume(name="host"),
    ),
    container_cgroups={"one": "/pod/one"},
)


def test_a_pods_places_are_its_layers_its_logs_and_its_local_volumes(places: Places) -> None:
    logs = places.make("logs/shop_web_u/one")
    volumes = "kubelet/pods/u/volumes"
    scratch, shm, config = (
        places.make(f"{volumes}/{name}")
        for name in (
            "kubernetes.io~empty-dir/scratch",
            "kubernetes.io~empty-dir/shm",
            "kubernetes.io~configmap/config",
        )
    )
    places.make(f"{volumes}/kubernetes.io~secret/token")
    assert {
        (StorageKind.WRITABLE_LAYER, "one", str(places.directory / "layer")),
        (StorageKind.LOGS, "one", logs),
        (StorageKind.VOLUME, "scratch", scratch),
        (StorageKind.VOLUME, "shm", shm),
        (StorageKind.VOLUME, "config", config),
    } == places.of(POD)


def test_what_is_not_there_is_no_place(places: Places) -> None:
    (places.directory / "layer").rmdir()
    assert places.of(POD) == set()


def test_a_containers_layer_is_looked_for_once_and_again_for_another_container(places: Places) -> None:
    assert len(places.of(POD)) == 1
    places.fake.file("/pod/one", "cgroup.procs", "")
    assert len(places.of(POD)) == 1
    places.storage.places({})
    assert places.of(POD) == set()


@pytest.mark.parametrize("odd", ["../../../v", "..", "", "a/../../kubernetes.io~empty-dir/scratch", "a\0b"])
def test_names_that_are_paths_lead_nowhere(places: Places, odd: str) -> None:
    places.make("kubelet/pods/u/volumes/kubernetes.io~empty-dir/scratch")
    places.make("kubelet/pods/u/v")
    places.make("logs/shop_web_u")
    pod = Pod(
        name="web",
        namespace="shop",
        uid="u",
        containers=(Container(name=odd),),
        volumes=(Volume(name=odd, is_empty_dir=True),),
    )
    assert set() == places.of(pod)
    other = Pod(name="web/../../kubelet/pods", namespace="shop", uid="u", containers=(Container(name="v"),))
    assert set() == places.of(other)


@pytest.mark.parametrize(("options", "is_sized"), [("rw,size=10240k", True), ("rw,inode64", False)])
def test_a_volume_in_memory_is_sized_if_its_mount_is(places: Places, options: str, *, is_sized: bool) -> None:
    limited = Volume(name="shm", is_empty_dir=True, is_local=False, size_limit=parse_quantity("5Mi"))
    pod = replace(POD, volumes=(limited, Volume(name="scratch", is_empty_dir=True)))
    volumes = "kubelet/pods/u/volumes/kubernetes.io~empty-dir"
    shm, scratch = places.make(f"{volumes}/shm"), places.make(f"{volumes}/scratch")
    places.make("proc/self")
    lines = (
        f"31 22 0:40 / {shm} rw - tmpfs tmpfs {options}\n32 22 0:41 / {scratch} rw - ext4 /dev/x rw,size=1k\n"
    )
    (places.directory / "proc/self/mountinfo").write_text(lines)
    (found,) = places.storage.places({"u": pod}).values()
    assert {"shm": is_sized, "scratch": False} == {
        one.name: one.is_sized for one in found if one.kind is StorageKind.VOLUME
    }


def test_without_a_mount_table_no_volume_counts_as_sized(places: Places) -> None:
    limited = Volume(name="shm", is_empty_dir=True, is_local=False, size_limit=parse_quantity("5Mi"))
    places.make("kubelet/pods/u/volumes/kubernetes.io~empty-dir/shm")
    (found,) = places.storage.places({"u": replace(POD, volumes=(limited,))}).values()
    assert [False] == [one.is_sized for one in found if one.kind is StorageKind.VOLUME]
