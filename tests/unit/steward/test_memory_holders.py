"""Who holds the node's memory, in numbers and in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reactor.guard.reports import memory_held
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.pods import PodUsage
from reactor.steward.memory import memory_holders
from tests.support.builders import make_observation, make_pod

MIB = 1 << 20


@pytest.fixture
def tree(make_tree):
    tree = make_tree(CgroupVersion.V2)
    tree.add("/node")
    tree.add("/node/a")
    tree.file(
        "/node", "memory.stat", f"anon {130 * MIB}\nshmem 5\nactive_file {200 * MIB}\nkernel {45 * MIB}\n"
    )
    tree.file("/node/a", "memory.stat", f"anon {120 * MIB}\nshmem 0\nactive_file 0\nkernel 0\n")
    return tree.tree


class Usages(dict[str, PodUsage]):
    """What an observer of pods has seen."""

    def of(self, uids):
        return {uid: self[uid] for uid in uids if uid in self}


def used(mib: int | None):
    return Usages({"uid-a": PodUsage(memory_working_set_bytes=None if mib is None else mib * MIB)})


async def test_what_belongs_to_no_pod_is_reported_by_its_kinds(tree) -> None:
    pods = (make_pod("a"),)
    holders = memory_holders(tree, "/node", await memory_held(make_observation(137 * MIB), pods, used(120)))
    assert holders["message"] == (
        "375Mi used, 120Mi by pods; 255Mi belong to no pod "
        "(anonymous 10Mi, active file 200Mi, slab and other kernel memory 45Mi)"
    )
    assert (holders["used_bytes"], holders["pods_bytes"], holders["outside_bytes"]) == (
        375 * MIB,
        120 * MIB,
        255 * MIB,
    )
    assert holders["outside"]["shared_bytes"] == 5


async def test_what_pods_hold_that_are_never_evicted_is_named_with_the_largest(tree) -> None:
    pods = (
        make_pod("a"),
        *(replace(make_pod(name), critical_because="never list") for name in ("b", "c", "d", "e", "gone")),
    )
    sizes = {"uid-b": 20, "uid-c": 56, "uid-d": 0, "uid-e": 1}
    usages = used(40)
    usages |= {uid: PodUsage(memory_working_set_bytes=mib * MIB) for uid, mib in sizes.items()}
    held = await memory_held(make_observation(137 * MIB), pods[:-1], usages)

    holders = memory_holders(tree, "/node", held)

    assert holders["message"].endswith(
        "; 77Mi are held by pods that are never evicted (cgroup/c 56Mi, cgroup/b 20Mi, cgroup/e 1Mi)"
    )
    assert 77 * MIB == holders["never_evicted"]["bytes"]
    assert {"pod": "cgroup/c", "bytes": 56 * MIB} == holders["never_evicted"]["largest"][0]


async def test_pods_that_are_never_evicted_and_hold_next_to_nothing_are_not_mentioned(tree) -> None:
    held = await memory_held(
        make_observation(137 * MIB), (replace(make_pod("a"), critical_because="omit"),), used(0)
    )
    assert "never" not in memory_holders(tree, "/node", held)["message"]


@pytest.mark.parametrize("version", list(CgroupVersion))
async def test_what_the_kernel_holds_is_no_part_of_what_the_machine_uses(
    make_tree, tmp_path, version
) -> None:
    tree = make_tree(version)
    for cgroup in ("/", "/a"):
        tree.add(cgroup)
    shown = f"anon {10 * MIB}\nkernel {45 * MIB}\ntotal_rss {10 * MIB}\n"
    tree.file("/", "memory.stat", shown)
    tree.file("/", "memory.kmem.usage_in_bytes", f"{45 * MIB}\n")
    (tmp_path / "meminfo").write_text(
        "MemTotal: 524288 kB\nSReclaimable: 10240 kB\nSUnreclaim: 70656 kB\nPageTables: 3072 kB\n"
    )
    held = await memory_held(make_observation(382 * MIB), (make_pod("a"),), used(120))

    holders = memory_holders(tree.tree, "/", held, proc=tmp_path)

    assert holders["message"] == (
        "130Mi used, 120Mi by pods; 10Mi belong to no pod (anonymous 10Mi); "
        "72Mi of the kernel itself count as available"
    )
    assert (holders["outside"]["kernel_bytes"], holders["kernel_bytes"]) == (0, 72 * MIB)


async def test_kernel_memory_of_a_machine_that_is_not_known_is_not_reported(make_tree, tmp_path) -> None:
    held = await memory_held(make_observation(382 * MIB), (make_pod("a"),), used(120))
    holders = memory_holders(make_tree(CgroupVersion.V2).tree, "/", held, proc=tmp_path)
    assert (holders["kernel_bytes"], holders["outside"]) == (None, None)


async def test_pod_that_goes_meanwhile_and_kinds_that_are_not_known_are_left_out(tree) -> None:
    unknown = await memory_held(make_observation(137 * MIB), (make_pod("a"), make_pod("b")), used(120))
    assert unknown is None  # what b holds is not known
    held = await memory_held(make_observation(137 * MIB), (make_pod("a"),), used(120))
    holders = memory_holders(tree, "/other", held)
    assert (holders["outside"], holders["message"]) == (
        None,
        "375Mi used, 120Mi by pods; 255Mi belong to no pod",
    )


@pytest.mark.parametrize("available", [None, 600 * MIB])
async def test_nothing_is_reported_where_memory_is_not_observed_or_absurd(available) -> None:
    seen = None if available is None else make_observation(available)
    assert await memory_held(seen, (make_pod("a"),), used(120)) is None


async def test_nothing_is_reported_where_a_pods_memory_is_not_known() -> None:
    assert await memory_held(make_observation(1), (make_pod("a"),), used(None)) is None
