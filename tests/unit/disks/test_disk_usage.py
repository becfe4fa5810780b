from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest

from reactor.config.pod import pod_from_document
from reactor.disks.walk_messages import Drop, Kind, Report
from reactor.disks.walker import GivenUpError, Pace
from reactor.guard.usage_facts import UsageFacts
from reactor.model.pods import (
    FilesystemUsage,
    Pod,
    PodUsage,
    StorageKind,
    StoragePlace,
    Volume,
)
from reactor.model.quantity import parse_quantity
from reactor.model.signals import Layout
from reactor.policy.decide import storage_limit_evictions
from tests.support.counted import Counted

SPEC = {
    "containers": [{"name": "main"}, {"name": "side"}],
    "volumes": [
        {"name": "scratch", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ],
}


def pod(tmp_path: Path, name: str, **places: StorageKind) -> Pod:
    found = pod_from_document({"metadata": {"name": name, "uid": name}, "spec": SPEC})
    storage = []
    for place, kind in places.items():
        directory = tmp_path / name / place
        directory.mkdir(parents=True, exist_ok=True)
        storage.append(StoragePlace(kind=kind, name=place.partition("_")[0], path=str(directory)))
    return dataclasses.replace(found, storage=tuple(storage))


@pytest.fixture
def full_pod(tmp_path: Path) -> Pod:
    """Return a pod that has 1 MB in its layer, 2 in its logs, 3 in a volume on disk, 4 in one in memory."""
    found = pod(
        tmp_path,
        "full",
        main_layer=StorageKind.WRITABLE_LAYER,
        main_logs=StorageKind.LOGS,
        scratch=StorageKind.VOLUME,
        shm=StorageKind.VOLUME,
    )
    for number, place in enumerate(found.storage, 1):
        Path(place.path, "file").write_bytes(b"x" * (1 << 20) * number)
    return found


def counted(**options: Any) -> Counted:
    return Counted(UsageFacts(**options), **options)


def look(disk: Counted, *pods: Pod) -> dict[str, PodUsage]:
    disk.look(pods)
    return disk.storage.usages(pods)


def mib(usage: FilesystemUsage | None) -> float:
    return round((usage.used_bytes or 0) / (1 << 20), 1) if usage is not None else -1


def test_what_a_pod_takes_is_reported_by_layer_logs_and_volumes(full_pod: Pod) -> None:
    found = look(counted(), full_pod)["full"]
    (container,) = found.containers
    assert ("main", 1.0, 2.0) == (container.name, mib(container.rootfs), mib(container.logs))
    assert {"scratch": 3.0, "shm": 4.0} == {name: mib(usage) for name, usage in found.volumes.items()}
    assert 2 == found.volumes["scratch"].inodes_used


def test_volume_in_memory_is_no_ephemeral_storage(full_pod: Pod) -> None:
    found = look(counted(), full_pod)["full"]
    assert 6 == found.ephemeral_storage_bytes // (1 << 20)


def test_pod_without_a_place_of_its_own_takes_nothing_and_one_never_looked_at_is_unknown(
    full_pod: Pod, tmp_path: Path
) -> None:
    bare = pod(tmp_path, "bare")
    assert {"bare": PodUsage(ephemeral_storage_bytes=0)} == UsageFacts().usages([bare, full_pod])


def test_place_that_is_not_there_takes_nothing_and_is_no_problem(full_pod: Pod) -> None:
    place = dataclasses.replace(full_pod.storage[0], path="/nowhere/at/all")
    disk = counted()
    found = look(disk, dataclasses.replace(full_pod, storage=(place,)))
    assert 0 == found["full"].ephemeral_storage_bytes
    assert {} == disk.usage.problems


def test_place_that_can_not_be_read_is_a_problem_and_costs_no_other_one(
    full_pod: Pod, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    wrong = dataclasses.replace(full_pod.storage[2], path=str(tmp_path / "file"))
    disk = counted()
    found = look(disk, dataclasses.replace(full_pod, storage=(wrong, full_pod.storage[1])))
    assert 2.0 == mib(found["full"].containers[0].logs)
    assert "Not a directory" in disk.usage.problems[f"storage {tmp_path}/file"]


def test_pods_that_are_gone_are_forgotten(full_pod: Pod) -> None:
    disk = counted()
    look(disk, full_pod)
    disk.look(())
    assert ({}, 0, 0) == (disk.storage.usages([full_pod]), len(disk.storage), len(disk.usage))


def test_filesystem_on_which_nothing_happened_is_not_looked_at_again(
    full_pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, shown = [1000.0], [(1, 2, 3)]
    monkeypatch.setattr("reactor.disks.walker._shown", lambda _: shown[0])
    disk = counted(clock_seconds=lambda: now[0])
    look(disk, full_pod)
    Path(full_pod.storage[2].path, "more").write_bytes(b"x" * (5 << 20))
    assert 3.0 == mib(look(disk, full_pod)["full"].volumes["scratch"])
    shown[0] = (1, 2, 4)
    assert 8.0 == mib(look(disk, full_pod)["full"].volumes["scratch"])
    Path(full_pod.storage[2].path, "more").unlink()
    now[0] += 301
    assert 3.0 == mib(look(disk, full_pod)["full"].volumes["scratch"])


def test_look_that_is_stopped_is_given_up(full_pod: Pod) -> None:
    pace = Pace()
    pace.stopped = True
    with pytest.raises(GivenUpError):
        counted().look([full_pod], pace)


def test_what_was_counted_stands_when_the_walker_is_gone_for_as_long_as_it_is_fresh(full_pod: Pod) -> None:
    now = [1000.0]
    disk = counted(clock_seconds=lambda: now[0])
    known = look(disk, full_pod)
    disk.usage.forget_walker()
    now[0] += 299
    disk.tell()
    assert known == disk.storage.usages([full_pod])
    now[0] += 2
    assert {} == disk.storage.usages([full_pod])


def test_what_a_held_pod_took_stands_while_its_files_are_removed(full_pod: Pod) -> None:
    disk = counted()
    before = look(disk, full_pod)
    disk.storage.hold("full")
    for place in full_pod.storage:
        Path(place.path, "file").unlink()
    assert before == look(disk, full_pod)
    disk.storage.release("full")
    assert before != look(disk, full_pod)


def test_count_from_before_its_files_were_removed_is_not_believed_when_it_is_heard_of_after(
    full_pod: Pod,
) -> None:
    disk = counted()
    before = look(disk, full_pod)
    Path(full_pod.storage[0].path, "file").unlink()
    disk.usage.round_begins()
    disk.usage.round_ended()  # what is told now is of the numbers that the places had
    disk.storage.hold("full")
    disk.storage.release("full")
    disk.storage.assign([full_pod])
    late = [one.place for usages in disk.usage.news() for one in usages.places]
    assert late
    assert before == disk.storage.usages([full_pod])
    after = look(disk, full_pod)["full"]
    assert 0.0 == mib(after.containers[0].rootfs)


class Walked:
    """What is known of one pod, by what a walker says of its one volume."""

    def __init__(self, pod: Pod) -> None:
        self.now = 1000.0
        self.pod = pod
        self.disk = counted(clock_seconds=lambda: self.now)
        self.usage = self.disk.usage
        self.disk.name([pod])
        (self.add,) = self.usage.assign()
        self.usage.round_begins()

    def says(self, kind: Kind, **told: int) -> None:
        self.usage.take(Report(kind=kind, place=self.add.place, **told))

    def used(self) -> dict[str, PodUsage]:
        self.disk.tell()
        return self.disk.storage.usages([self.pod])

    def used_mib(self) -> float | None:
        known = self.used().get("full")
        return None if known is None else mib(known.volumes["scratch"])


@pytest.fixture
def walked(full_pod: Pod) -> Walked:
    (scratch,) = [place for place in full_pod.storage if place.name == "scratch"]
    return Walked(dataclasses.replace(full_pod, storage=(scratch,)))


def test_place_that_the_walker_is_not_to_come_to_is_asked_about_again_later(walked: Walked) -> None:
    (drop,) = walked.usage.assign(without=[walked.add.path])
    assert Drop(walked.add.place) == drop
    walked.says(Kind.COUNTED, used_bytes=5 << 20, inodes=7)  # too late
    assert walked.used_mib() is None
    (walked.add,) = walked.usage.assign()
    walked.says(Kind.COUNTED, used_bytes=1 << 20, inodes=2)
    assert 1 == walked.used_mib()
    assert [] == walked.usage.assign()


def test_new_walker_is_told_nothing_of_what_the_one_before_it_was_to_drop(walked: Walked) -> None:
    walked.disk.name([])
    walked.usage.forget_walker()
    assert [] == walked.usage.assign()


def test_whole_count_is_told_although_the_next_one_has_found_something_by_then(walked: Walked) -> None:
    walked.says(Kind.COUNTED, used_bytes=8 << 20)
    walked.says(Kind.SO_FAR, used_bytes=9 << 20)
    assert 9 == walked.used_mib()
    assert walked.disk.storage.is_whole(walked.pod)
    walked.says(Kind.SO_FAR, used_bytes=10 << 20)
    walked.says(Kind.COUNTED, used_bytes=7 << 20)
    assert 7 == walked.used_mib()


def test_what_a_count_under_way_has_found_counts_no_longer_when_the_walker_is_gone(walked: Walked) -> None:
    walked.says(Kind.SO_FAR, used_bytes=5 << 20)
    assert 5 == walked.used_mib()
    walked.usage.forget_walker()
    assert walked.used_mib() is None


def test_path_that_is_too_long_is_a_problem_and_no_matter_for_the_walker(full_pod: Pod) -> None:
    place = dataclasses.replace(full_pod.storage[0], path="/x" * 2048)
    disk = counted()
    found = look(disk, dataclasses.replace(full_pod, storage=(place, full_pod.storage[1])))
    assert 2.0 == mib(found["full"].containers[0].logs)
    assert "File name too long" in str(disk.usage.problems)


def test_pod_whose_count_is_overdue_is_named_with_how_far_it_has_come(walked: Walked) -> None:
    walked.says(Kind.SO_FAR, used_bytes=5 << 20, inodes=7, directories=600_000)
    walked.now += 119
    assert ({}, 0) == (walked.usage.problems, walked.usage.overdue)
    walked.now += 1
    assert 1 == walked.usage.overdue
    assert {
        f"storage of pod {walked.pod.key}": "not counted for 120 s: 600000 directories so far"
    } == walked.usage.problems
    walked.says(Kind.COUNTED, used_bytes=6 << 20, inodes=8)
    assert ({}, 0) == (walked.usage.problems, walked.usage.overdue)


def test_pod_that_the_walker_never_came_to_is_overdue_too(walked: Walked) -> None:
    walked.now += 60
    walked.usage.forget_walker()
    walked.usage.assign()
    walked.usage.round_begins()
    walked.now += 60
    assert 1 == walked.usage.overdue


def test_count_under_way_is_a_lower_bound_beside_the_last_whole_one_while_that_is_fresh(
    walked: Walked,
) -> None:
    assert walked.used_mib() is None
    walked.says(Kind.SO_FAR, used_bytes=5 << 20)
    assert 5 == walked.used_mib()
    walked.says(Kind.COUNTED, used_bytes=8 << 20)
    walked.says(Kind.SO_FAR, used_bytes=1 << 20)
    assert 8 == walked.used_mib()
    walked.says(Kind.SO_FAR, used_bytes=9 << 20)
    assert 9 == walked.used_mib()
    walked.says(Kind.SO_FAR, used_bytes=2 << 20)
    walked.now += 301
    assert 2 == walked.used_mib()


def test_what_is_found_so_far_may_exceed_a_limit(walked: Walked) -> None:
    limited = dataclasses.replace(
        walked.pod, volumes=(Volume(name="scratch", is_empty_dir=True, size_limit=parse_quantity("10Mi")),)
    )
    for used_mib, expected in ((9, 0), (11, 1)):
        walked.says(Kind.SO_FAR, used_bytes=used_mib << 20)
        used = walked.used()
        assert expected == len(storage_limit_evictions([limited], used, Layout.SINGLE))


def test_place_that_fails_keeps_its_last_number_while_that_is_fresh_with_a_problem(walked: Walked) -> None:
    walked.says(Kind.COUNTED, used_bytes=8 << 20)
    assert 8 == walked.used_mib()
    walked.now += 200
    walked.usage.round_begins()
    walked.says(Kind.FAILED, error_number=errno.EIO)
    walked.usage.round_ended()
    assert 8 == walked.used_mib()
    assert "Input/output error" in str(walked.usage.problems)
    walked.now += 101
    assert walked.used_mib() is None


def test_place_of_which_nothing_is_said_in_a_look_is_as_it_was(walked: Walked) -> None:
    walked.says(Kind.COUNTED, used_bytes=8 << 20)
    for _ in range(5):
        walked.now += 200
        walked.usage.round_begins()
        walked.usage.round_ended()
        assert 8 == walked.used_mib()
    assert 0 == walked.usage.overdue
