"""Disks under the service as it is shipped: project quotas, volumes that it may empty, its read-only view."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded import Service, Tenant, eventually, run

from tests.support.mounting import mounted
from tests.support.processes import MIB

HERE = Path("/srv/reactor-test")
PROJECT = "4711"


@pytest.fixture
def disk() -> Iterator[Path]:
    """Return an ext4 of 200 MiB that counts by projects, where the service can see it."""
    (HERE / "pods").mkdir(parents=True)
    try:
        with mounted(HERE, "ext4", 200, "-O", "project,quota", mount="loop,prjquota") as point:
            yield point
    finally:
        shutil.rmtree(HERE)


def volume_of(tenant: str, disk: Path, size_limit: str) -> Path:
    """Make a directory with a project of its own, which a manifest has as the tenant's emptyDir."""
    volume = disk / tenant
    volume.mkdir()
    run("chattr", "-p", PROJECT, "+P", volume)
    annotations = {"reactor/unit": f"{tenant}.service", "reactor/volumes": f"scratch={volume}"}
    manifest = {
        "metadata": {"name": tenant, "annotations": annotations},
        "spec": {
            "containers": [{"name": "main"}],
            "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": size_limit}}],
        },
    }
    (HERE / "pods" / f"{tenant}.json").write_text(json.dumps(manifest))
    return volume


def guard(service: Service, disk: Path, *drop_in: str) -> None:
    service.configure(
        {"evictionHard": {"nodefs.available": "1Mi"}},
        {
            "filesystems": {"nodefs": str(disk)},
            "housekeepingInterval": "1s",
            "pods": {"manifests": str(HERE / "pods")},
        },
    )
    service.start(*drop_in)


def write(path: Path, mib: int) -> None:
    path.write_bytes(bytes(mib * MIB))
    os.sync()


def test_a_volume_is_held_to_its_limit_by_what_its_project_takes(service: Service, disk: Path) -> None:
    """The project's files outside the volume show who counts: a walk would not find them."""
    volume = volume_of("tenant", disk, "20Mi")
    write(volume / "file", 15)
    tenant = Tenant("tenant", "hold", "5")
    elsewhere = disk / "elsewhere"
    elsewhere.touch()
    run("chattr", "-p", PROJECT, elsewhere)
    guard(service, disk, f"ReadWritePaths={disk}")
    assert service.evicted() == []
    write(elsewhere, 10)
    decision = service.wait_for_eviction()
    assert (
        decision["evictions"][0]["message"] == 'Usage of EmptyDir volume "scratch" exceeds the limit "20Mi". '
    )
    eventually(lambda: not tenant.is_alive(), "the tenant's end")
    eventually(lambda: not (volume / "file").exists(), "the volume emptied")
    assert elsewhere.stat().st_size == 10 * MIB
    assert service.status()["problems"].keys() <= {"oom_score_adj"}


def test_a_volume_that_the_unit_may_not_write_to_is_told_and_stays(service: Service, disk: Path) -> None:
    volume = volume_of("tenant", disk, "20Mi")
    write(volume / "file", 25)
    tenant = Tenant("tenant", "hold", "5")
    guard(service, disk)
    service.wait_for_eviction()
    eventually(lambda: not tenant.is_alive(), "the tenant's end")
    eventually(lambda: "was not emptied: 'file': Read-only file system" in service.log(), "the warning")
    assert (volume / "file").exists()
