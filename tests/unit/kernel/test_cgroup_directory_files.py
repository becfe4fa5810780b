from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError, RefusedError
from reactor.kernel.cgroup import parse_cgroup_mounts, parse_own_cgroup
from reactor.kernel.cgroup_directory import CgroupVersion, cgroup_components, parse_limit, parse_processes

HYBRID = b"""\
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/with\\040space cgroup rw,relatime,memory 0 0
cgroup /elsewhere cgroup rw,relatime,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
cut
"""


def test_mounts_are_found_by_controller_and_the_first_counts() -> None:
    v1, v2 = parse_cgroup_mounts(HYBRID)
    assert Path("/sys/fs/cgroup/with space") == v1["memory"]
    assert Path("/sys/fs/cgroup/cpu,cpuacct") == v1["cpu"] == v1["cpuacct"]
    assert Path("/sys/fs/cgroup/unified") == v2


def test_own_cgroup_is_that_of_the_memory_hierarchy() -> None:
    raw = b"9:name=systemd:/a\n4:cpu,memory:/pods/x:y\n0::/unified\n"
    assert "/pods/x:y" == parse_own_cgroup(raw, CgroupVersion.V1)
    assert "/unified" == parse_own_cgroup(raw, CgroupVersion.V2)
    assert parse_own_cgroup(b"0::/unified\n", CgroupVersion.V1) is None


@pytest.mark.parametrize(
    ("raw", "limit"),
    [
        (b"max\n", None),
        (b"9223372036854771712\n", None),
        (b"9223372036854710272\n", None),  # 64 KiB pages
        (b"0\n", 0),
        (b"536870912\n", 512 << 20),
    ],
)
def test_limits_and_their_absence_are_distinguished(raw: bytes, limit: int | None) -> None:
    assert limit == parse_limit(raw, "memory.max")


def test_processes_of_other_namespaces_are_left_out() -> None:
    """Their pid shows as 0, and kill(0) is the caller's own process group."""
    assert [12, 7] == parse_processes(b"12\n0\n7\n")


@pytest.mark.parametrize("raw", [b"12\n-1\n", b"12\nx", b"1 2\n"])
def test_list_of_processes_with_a_line_that_is_no_pid_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError, match=r"cgroup\.procs"):
        parse_processes(raw)


@pytest.mark.parametrize(
    "cgroup",
    ["", "a", "a/b", "//", "/a/", "/a//b", "/..", "/a/../b", "/a/..", "/./a", "/a\0b", "/\ud800"],
)
def test_path_that_is_not_plain_is_refused(cgroup: str) -> None:
    with pytest.raises(RefusedError, match="cgroup "):
        cgroup_components(cgroup)


@pytest.mark.parametrize(("cgroup", "parts"), [("/", ()), ("/a", ("a",)), ("/a/..b/c", ("a", "..b", "c"))])
def test_plain_path_is_taken_apart(cgroup: str, parts: tuple[str, ...]) -> None:
    assert parts == cgroup_components(cgroup)


@given(st.text())
def test_no_accepted_path_climbs(cgroup: str) -> None:
    try:
        parts = cgroup_components(cgroup)
    except RefusedError:
        return
    assert "/" + "/".join(parts) == cgroup
    assert not {"", ".", ".."} & set(parts)


@given(st.binary())
def test_arbitrary_bytes_break_no_parser(raw: bytes) -> None:
    parse_cgroup_mounts(raw)
    parse_cgroup_mounts(b"cgroup " + raw + b" cgroup rw,memory 0 0\n")
    parse_own_cgroup(raw, CgroupVersion.V1)
    parse_own_cgroup(b"0::/" + raw, CgroupVersion.V2)
    for parse in (parse_processes, lambda raw: parse_limit(raw, "x")):
        try:
            parse(raw)
        except KernelInterfaceError:
            continue
