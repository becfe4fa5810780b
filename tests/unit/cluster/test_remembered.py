from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from reactor.cluster.remembered import RememberedSpecs
from reactor.config.pod import pod_from_document
from reactor.model.pods import Pod, StorageKind, StoragePlace

SPEC = {
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "uid": "u",
        "annotations": {"kubernetes.io/config.hash": "h"},
    },
    "spec": {
        "priority": 7,
        "terminationGracePeriodSeconds": 3,
        "containers": [
            {
                "name": "one",
                "resources": {"requests": {"memory": "1.5Gi"}, "limits": {"ephemeral-storage": "100Mi"}},
            }
        ],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        "tolerations": [{"operator": "Exists"}],
    },
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "pods.json"


def loaded(path: Path) -> RememberedSpecs:
    found = RememberedSpecs(path)
    found.load()
    return found


def test_what_was_shown_last_is_known_after_a_restart(path: Path) -> None:
    pod = pod_from_document(SPEC)
    before = RememberedSpecs(path)
    before.show({"u": pod})
    before.flush()
    after = loaded(path)
    assert {"u": pod} == after.specs
    assert str(after.specs["u"].volumes[0].size_limit) == "1Gi"
    assert after.problem is None
    assert path.stat().st_mode & 0o777 == 0o600


def test_where_a_pods_files_and_cgroups_lie_is_not_remembered(path: Path) -> None:
    place = StoragePlace(kind=StorageKind.LOGS, name="one", path="/logs")
    before = RememberedSpecs(path)
    before.show({"u": Pod(name="a", namespace="b", uid="u", cgroup="/c", storage=(place,))})
    before.flush()
    assert loaded(path).specs == {"u": Pod(name="a", namespace="b", uid="u")}


def test_without_a_file_nothing_is_known_and_nothing_is_wrong(path: Path) -> None:
    assert loaded(path).specs == {}
    assert loaded(path).problem is None


_BROKEN = st.sampled_from(
    [b"{}", b"[]", b'{"version": 3}', b'{"version":2,"pods":[{}]}', b'{"version":1,"pods":[]}']
)


@given(raw=_BROKEN | st.binary(max_size=100))
def test_a_broken_file_is_a_problem_and_not_a_crash(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("remembered") / "pods.json"
    path.write_bytes(raw)
    found = loaded(path)
    assert found.specs == {}
    assert str(path) in (found.problem or "")


async def saved(path: Path, uids: set[str]) -> None:
    with trio.fail_after(30):
        while set(loaded(path).specs) != uids:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.01)


async def test_specs_are_saved_soon_and_the_latest_wins(path: Path, nursery: trio.Nursery) -> None:
    remembered = RememberedSpecs(path, between_seconds=0.01)
    nursery.start_soon(remembered.run)
    for uid in ("a", "b"):
        remembered.show({uid: Pod(name=uid, namespace="n", uid=uid)})
    await saved(path, {"b"})
    remembered.show({})
    await saved(path, set())


def test_a_directory_that_can_not_be_written_is_a_problem(path: Path) -> None:
    if os.geteuid() == 0:
        path.parent.parent.joinpath("run").write_text("a file where the directory should be")
    else:
        path.parent.mkdir(mode=0o500)
    remembered = RememberedSpecs(path)
    remembered.show({})
    remembered.flush()
    assert remembered.problem is not None
