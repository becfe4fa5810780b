"""What `config check` says of `systemdOomd: replace`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reactor.doctor.managed_oom import managed_oom_findings
from reactor.kernel.cgroup import CgroupVersion
from reactor.link.managed_oom import write_report
from reactor.model.managed_oom import ManagedOomKind, ManagedOomReport, ManagedOomUnit
from reactor.model.settings import Settings, SystemdOomd

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker

Find = Callable[..., list[str]]


@pytest.fixture
def on_v2(make_tree: FakeTreeMaker) -> FakeTree:
    return make_tree(CgroupVersion.V2)


@pytest.fixture
def find(tmp_path: Path) -> Find:
    def found(fake: FakeTree | None, mode: SystemdOomd = SystemdOomd.REPLACE) -> list[str]:
        settings = Settings(pod_parents=("/system.slice",), systemd_oomd=mode)
        tree = None if fake is None else fake.tree
        findings = managed_oom_findings(
            settings, tree, proc=tmp_path / "proc", path=tmp_path / "units", root=tmp_path
        )
        return [f"{where}: {why}" for where, why in findings]

    return found


def report(directory: Path, *cgroups: str, problem: str = "") -> None:
    units = tuple(ManagedOomUnit(kind=ManagedOomKind.SWAP, cgroup=one) for one in cgroups)
    (directory / "units").write_bytes(write_report(ManagedOomReport(units=units, problem=problem)))


def test_nothing_is_said_where_all_is_well_or_it_is_not_asked_for(
    on_v2: FakeTree, find: Find, tmp_path: Path
) -> None:
    assert [] == find(on_v2, SystemdOomd.IGNORE)
    assert [] == find(None)
    report(tmp_path, "/", "/system.slice")
    assert [] == find(on_v2)


def test_a_process_that_is_not_there_or_can_not_hear_systemd_is_told(
    on_v2: FakeTree, find: Find, tmp_path: Path
) -> None:
    (missing,) = find(on_v2)
    assert "reactor.systemdOomd: has no effect on this machine now" in missing
    assert "systemd-oomd.service does not run reactor" in missing
    (tmp_path / "units").write_bytes(b"garbage")
    (wrong,) = find(on_v2)
    assert "accepted" in wrong
    report(tmp_path, "/", problem="systemd is away")
    (away,) = find(on_v2)
    assert away.endswith("units: systemd is away")


def test_systemd_oomd_itself_is_told_and_what_to_do(on_v2: FakeTree, find: Find, tmp_path: Path) -> None:
    report(tmp_path, "/")
    unit = on_v2.directory("/system.slice/systemd-oomd.service")
    unit.mkdir(parents=True)
    (unit / "cgroup.procs").write_text("11\n12\n")
    for pid, comm in (("11", "reactor"), ("12", "reactor")):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "comm").write_text(f"{comm}\n")
    assert [] == find(on_v2)
    (tmp_path / "proc/12/comm").write_text("systemd-oomd\n")
    (running,) = find(on_v2)
    assert "systemctl disable --now systemd-oomd" in running


def test_units_beside_the_parents_and_a_wrong_oomd_conf_are_told(
    on_v2: FakeTree, find: Find, tmp_path: Path
) -> None:
    report(tmp_path, "/system.slice", *(f"/machine{number}.slice" for number in range(5)))
    conf = tmp_path / "etc/systemd/oomd.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[OOM]\nSwapUsedLimit=x\n")
    found = find(on_v2)
    assert "SwapUsedLimit: got 'x'" in found[0]
    assert "does not count: /machine0.slice" in found[1]
    assert "does not count: 2 more units" in found[-1]
    assert 5 == len(found)


def test_on_cgroup_v1_swap_alone_counts(make_tree: FakeTreeMaker, find: Find, tmp_path: Path) -> None:
    report(tmp_path, "/")
    (only,) = find(make_tree(CgroupVersion.V1))
    assert "only ManagedOOMSwap= counts" in only
