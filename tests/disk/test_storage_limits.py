"""Limits of local storage: 100 MiB exceeded by 1 MiB, and kept by 1 MiB, in three forms each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import after_housekeeping
from tests.support.disks import Guarded, occupied_bytes
from tests.support.processes import fill
from tests.support.waiting import eventually

LIMIT = "100Mi"
AMPLE = {"evictionHard": {"nodefs.available": "1Mi"}}

FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "an emptyDir": (
        {"volume": {"sizeLimit": LIMIT}},
        'Usage of EmptyDir volume "scratch" exceeds the limit "100Mi". ',
    ),
    "a container's writable layer": (
        {"limits": {"ephemeral-storage": LIMIT}, "where": "reactor/rootfs"},
        # Upstream looks at the pod's total, which is its containers' limits, before at each container.
        "Pod ephemeral local storage usage exceeds the total limit of containers 100Mi. ",
    ),
    "a container's limit, in a volume": (
        {"limits": {"ephemeral-storage": LIMIT}},
        "Pod ephemeral local storage usage exceeds the total limit of containers 100Mi. ",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_mebibyte_too_much_is_evicted_with_upstreams_message(guarded: Guarded, form: str) -> None:
    settings, message = FORMS[form]
    path = guarded.add_pod("over", **settings)
    guarded.start(AMPLE)
    guarded.run("over", fill(path, mib=101)).wait(60)
    eventually(lambda: guarded.evicted() == ["over"], "the line in the journal")
    assert [message] == guarded.messages()
    assert not guarded.under_pressure()


@pytest.mark.parametrize("form", FORMS)
def test_one_mebibyte_less_is_left_alone(guarded: Guarded, form: str) -> None:
    path = guarded.add_pod("within", **FORMS[form][0])
    guarded.start(AMPLE)
    process = guarded.run("within", fill(path, mib=99))
    eventually(lambda: occupied_bytes(path / "file") >= 99 << 20, "the file")
    after_housekeeping(guarded.daemon, 3)
    assert process.poll() is None
    assert [] == guarded.evicted()


@pytest.fixture
def memory_volume(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "shm"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150m", "tmpfs", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


@pytest.mark.parametrize(("mib", "goes"), [(101, True), (99, False)])
def test_emptydir_in_memory_has_its_limit_too_and_its_files_are_memory(
    guarded: Guarded, memory_volume: Path, mib: int, *, goes: bool
) -> None:
    guarded.add_pod("pod", volume={"medium": "Memory", "sizeLimit": LIMIT}, path=memory_volume)
    guarded.start({**AMPLE, "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi"}})
    process = guarded.run("pod", fill(memory_volume, mib=mib))
    if goes:
        process.wait(60)
        eventually(lambda: guarded.evicted() == ["pod"], "the line in the journal")
    else:
        eventually(lambda: _used_memory(guarded) > 90 << 20, "the files in the pod's memory")
        after_housekeeping(guarded.daemon, 3)
        assert [] == guarded.evicted()


def _used_memory(guarded: Guarded) -> int:
    found = guarded.daemon.ask("explain", "pod", "--output", "json")
    return json.loads(found.stdout)["ranking"][0]["usage"] or 0


def test_limits_are_not_held_where_that_is_switched_off(guarded: Guarded) -> None:
    path = guarded.add_pod("over", volume={"sizeLimit": LIMIT})
    guarded.start({**AMPLE, "localStorageCapacityIsolation": False})
    process = guarded.run("over", fill(path, mib=101))
    eventually(lambda: occupied_bytes(path / "file") >= 101 << 20, "the file")
    after_housekeeping(guarded.daemon, 3)
    assert process.poll() is None
    assert [] == guarded.evicted()
