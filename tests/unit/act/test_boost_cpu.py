from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reactor.act.cgroup_changes import boost_cpu
from reactor.kernel.cgroup_directory import CgroupVersion
from tests.support.this_machine import lift_quotas

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTreeMaker


@pytest.mark.parametrize(
    ("version", "name", "most"),
    [(CgroupVersion.V1, "cpu.shares", "262144"), (CgroupVersion.V2, "cpu.weight", "10000")],
)
def test_quota_goes_from_all_of_the_cgroup_and_it_outweighs_its_siblings(
    make_tree: FakeTreeMaker, version: CgroupVersion, name: str, most: str
) -> None:
    fake = make_tree(version)
    for cgroup in ("/pods/a", "/pods/a/container", "/pods/b"):
        fake.add(cgroup)
        fake.file(cgroup, name, "2\n", "cpu")
        fake.tree.set_cpu_quota(cgroup, 1000)
    with fake.tree.open("/pods/a", "cpu") as directory:
        boost_cpu(directory, version)
    assert [most, "2\n", "2\n"] == [
        fake.read(cgroup, name, "cpu") for cgroup in ("/pods/a", "/pods/a/container", "/pods/b")
    ]
    assert [0, 1] == [lift_quotas(fake.tree, cgroup) for cgroup in ("/pods/a", "/pods/b")]


def test_where_there_is_no_cgroup_weight_or_controller_there_is_nothing_to_do(
    make_tree: FakeTreeMaker,
) -> None:
    fake = make_tree(CgroupVersion.V1)
    fake.add("/pods/a")  # without cpu.shares
    with fake.tree.open("/pods/a", "cpu") as directory:
        boost_cpu(directory, CgroupVersion.V1)
    boost_cpu(None, CgroupVersion.V1)
    assert not (fake.directory("/pods/a", "cpu") / "cpu.shares").exists()


def test_what_is_refused_is_raised(make_tree: FakeTreeMaker) -> None:
    fake = make_tree(CgroupVersion.V1)
    fake.add("/pods/a")
    (fake.directory("/pods/a", "cpu") / "cpu.shares").mkdir()
    fake.tree.set_cpu_quota("/pods/a", 1000)
    with fake.tree.open("/pods/a", "cpu") as directory, pytest.raises(IsADirectoryError):
        boost_cpu(directory, CgroupVersion.V1)
    assert 0 == lift_quotas(fake.tree, "/pods/a")  # lifted all the same
