from __future__ import annotations

import pytest

from reactor.config.kubepods import kubepods_cgroups


@pytest.mark.parametrize(
    ("root", "cgroupfs", "systemd"),
    [
        ("/", "/kubepods", "/kubepods.slice"),
        ("", "/kubepods", "/kubepods.slice"),
        ("/kubelet", "/kubelet/kubepods", "/kubelet.slice/kubelet-kubepods.slice"),
        ("/a/b", "/a/b/kubepods", "/a.slice/a-b.slice/a-b-kubepods.slice"),
        ("/a-b/", "/a-b/kubepods", "/a_b.slice/a_b-kubepods.slice"),
    ],
)
def test_the_cgroup_of_all_pods_is_named_as_either_driver_names_it(
    root: str, cgroupfs: str, systemd: str
) -> None:
    assert (cgroupfs, systemd) == kubepods_cgroups(root)
