import pytest

from reactor.config.pod import pod_from_document
from reactor.errors import ConfigError
from reactor.model.pods import StorageKind, StoragePlace
from reactor.workloads.manifests import storage_places

POD = pod_from_document(
    {
        "metadata": {"name": "batch"},
        "spec": {
            "containers": [{"name": "main"}],
            "volumes": [
                {"name": "scratch"},
                {"name": "cache", "emptyDir": {}},
                {"name": "data", "hostPath": {}},
            ],
        },
    }
)


def test_annotations_name_the_directories() -> None:
    annotations = {
        "reactor/volumes": "scratch=/srv/batch/scratch, cache=/srv/batch//cache/,data=/srv/batch/data",
        "reactor/rootfs": "main=/var/lib/machines/batch",
        "reactor/logs": "main=/var/log/batch",
    }
    assert (
        StoragePlace(kind=StorageKind.VOLUME, name="scratch", path="/srv/batch/scratch", ends_with_pod=True),
        StoragePlace(kind=StorageKind.VOLUME, name="cache", path="/srv/batch/cache", ends_with_pod=True),
        StoragePlace(kind=StorageKind.VOLUME, name="data", path="/srv/batch/data"),
        StoragePlace(kind=StorageKind.WRITABLE_LAYER, name="main", path="/var/lib/machines/batch"),
        StoragePlace(kind=StorageKind.LOGS, name="main", path="/var/log/batch"),
    ) == storage_places(POD, annotations, "batch.yaml")


def test_pod_without_them_has_no_place() -> None:
    assert () == storage_places(POD, {"reactor/cgroup": "/x"}, "batch.yaml")


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("reactor/volumes", "srv=/srv/batch", "one of the pod's volumes: scratch, cache, data"),
        ("reactor/volumes", "/srv/batch", "NAME=/PATH"),
        ("reactor/volumes", "scratch=srv/batch", "absolute path"),
        ("reactor/volumes", "scratch=/srv/../etc", "without .."),
        ("reactor/volumes", "scratch=/var", "two directories"),
        ("reactor/volumes", "scratch=//./var/", "two directories"),
        ("reactor/volumes", "scratch=/srv/a,scratch=/srv/b", "each name once"),
        ("reactor/volumes", "scratch=/srv/a,cache=/srv/a/b", "a directory outside '/srv/a'"),
        ("reactor/rootfs", "sidecar=/srv/a", "one of the pod's containers: main"),
    ],
)
def test_wrong_one_is_reported_with_what_is_accepted(key: str, value: str, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        storage_places(POD, {key: value}, "batch.yaml")
    (problem,) = caught.value.problems
    assert accepted in problem.accepted
    assert problem.path.startswith("batch.yaml")
