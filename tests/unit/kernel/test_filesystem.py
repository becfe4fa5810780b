from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.kernel.filesystem import (
    Mount,
    layout_of,
    mount_of,
    nodefs_path,
    parse_mountinfo,
    parse_upper_directory,
    project_of,
    project_usage,
    read_mounts,
    read_space,
    read_upper_directory,
    same_filesystem,
)
from reactor.model.signals import Filesystem, Layout

MOUNTINFO = b"""\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /var/lib/images rw - overlay overlay rw
31 22 254:16 / /var/lib/with\\040space rw shared:1 master:2 - xfs /dev/vdb rw
32 30 254:17 / /var/lib/images rw - xfs /dev/vdc rw
cut 22 0:1
"""

OVERLAY = (
    b"509 430 0:52 / / rw,relatime master:1 - overlay overlay "
    b"rw,lowerdir=/s/10/fs:/s/9/fs,upperdir=/s/a\\040b/fs,workdir=/s/11/work\n"
)
OTHER = b"510 509 0:53 / /proc rw - proc proc rw\n"


def test_mounts_are_read_in_their_order() -> None:
    mounts = parse_mountinfo(MOUNTINFO)
    assert ["/", "/var/lib/images", "/var/lib/with space", "/var/lib/images"] == [
        mount.mount_point for mount in mounts
    ]
    assert Mount(mount_point="/", device="254:0", kind="ext4", source="/dev/vda") == mounts[0]


@pytest.mark.parametrize(
    ("options", "is_sized"),
    [("rw,size=1024k,inode64", True), ("rw,inode64", False), ("rw,pagesize=2M", False), ("size=4k", True)],
)
def test_a_mount_shows_a_size_only_if_it_was_given_one(options: str, *, is_sized: bool) -> None:
    (mount,) = parse_mountinfo(f"31 22 0:40 / /v rw,size=1k - tmpfs tmpfs {options}\n".encode())
    assert is_sized is mount.is_sized


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("/", "254:0"),
        ("/var/lib", "254:0"),
        ("/var/lib/images2", "254:0"),
        ("/var/lib/images/a", "254:17"),
        ("/var/lib/with space", "254:16"),
    ],
)
def test_path_lies_on_the_longest_and_last_mount_above_it(path: str, device: str) -> None:
    mount = mount_of(path, parse_mountinfo(MOUNTINFO))
    assert mount is not None
    assert device == mount.device


def test_filesystem_is_read_only_by_its_own_options_and_not_by_one_mounts() -> None:
    lines = b"1 0 8:1 / /a ro - ext4 /dev/vda rw\n2 0 8:2 / /b ro - ext4 /dev/vdb ro,errors=remount-ro\n"
    assert [False, True] == [mount.read_only for mount in parse_mountinfo(lines)]


def test_paths_lie_on_one_filesystem_where_their_devices_are_one(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(MOUNTINFO)
    assert same_filesystem("/var/lib", "/etc", table)
    assert not same_filesystem("/var/lib/images/a", "/var/lib", table)
    table.write_bytes(b"")
    assert not same_filesystem("/", "/", table)


def test_path_lies_nowhere_without_mounts() -> None:
    assert mount_of("/var", ()) is None


@pytest.mark.parametrize(
    ("imagefs", "containerfs", "layout"),
    [
        ("/opt", "/opt", Layout.SINGLE),
        ("/var/lib/images/x", "/var/lib/images", Layout.DEDICATED),
        ("/var/lib/images/x", "/opt", Layout.SPLIT),
        ("/var/lib/images/x", None, None),
    ],
)
def test_layout_is_reported_by_the_devices(
    imagefs: str, containerfs: str | None, layout: Layout | None
) -> None:
    paths = {Filesystem.NODEFS: "/", Filesystem.IMAGEFS: imagefs}
    if containerfs is not None:
        paths[Filesystem.CONTAINERFS] = containerfs
    assert layout == layout_of(paths, parse_mountinfo(MOUNTINFO))


def test_layout_without_mounts_is_unknown() -> None:
    assert layout_of(dict.fromkeys(Filesystem, "/"), ()) is None


def test_space_is_what_an_unprivileged_user_could_write(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    space = read_space(str(tmp_path))
    assert found.f_blocks * found.f_frsize == space.capacity_bytes
    assert 0 < space.available_bytes <= space.capacity_bytes


def test_filesystem_that_counts_no_inodes_has_none() -> None:
    """/proc shows 0 of 0, as btrfs does."""
    space = read_space("/proc")
    assert (None, None) == (space.inodes, space.inodes_free)


def test_missing_path_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        read_space("/nowhere")


def test_this_machine_is_understood() -> None:
    assert mount_of("/proc/self", read_mounts()) is not None


@given(st.binary())
def test_arbitrary_bytes_break_no_mount_table(raw: bytes) -> None:
    mounts = parse_mountinfo(raw) + parse_mountinfo(b"1 2 3 4 " + raw + b" - " + raw)
    mount_of("/a", mounts)


def test_the_nodes_filesystem_is_the_kubelets_where_there_is_one(tmp_path: Path) -> None:
    kubelet = tmp_path / "kubelet"
    assert "/" == nodefs_path((str(kubelet), "/"))
    kubelet.mkdir()
    assert str(kubelet) == nodefs_path((str(kubelet), "/"))
    (kubelet / "pods").mkdir()
    assert str(kubelet / "pods") == nodefs_path((str(kubelet / "pods"), str(kubelet), "/"))


def test_directory_without_a_project_has_none(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/proc")):
        fd = os.open(path, os.O_RDONLY)
        try:
            assert project_of(fd) is None
        finally:
            os.close(fd)


def test_filesystem_without_quotas_refuses(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="quotactl_fd"):
            project_usage(fd, 1)
    finally:
        os.close(fd)


def test_what_a_container_writes_lies_in_the_upper_directory_of_its_root() -> None:
    assert parse_upper_directory(OVERLAY + OTHER) == "/s/a b/fs"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        OTHER,
        OTHER.replace(b"/proc rw", b"/ rw"),
        OVERLAY.replace(b" / / ", b" / /mnt "),
        OVERLAY.replace(b",upperdir=/s/a\\040b/fs", b""),
        OVERLAY + OTHER.replace(b"/proc rw", b"/ rw"),  # hidden by what was mounted over it
    ],
)
def test_a_root_that_is_no_writable_overlay_has_none(raw: bytes) -> None:
    assert parse_upper_directory(raw) is None


@given(st.binary(max_size=200))
def test_no_mount_table_is_too_broken_to_be_read(raw: bytes) -> None:
    assert parse_upper_directory(raw) is None  # none of so few bytes, drawn blindly, is an overlay


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_what_stands_around_an_overlay_does_not_change_where_it_is(before: bytes, after: bytes) -> None:
    broken = [raw.replace(b" / ", b" /x ") + b"\n" for raw in (before, after)]
    assert parse_upper_directory(broken[0] + OVERLAY + broken[1]) == parse_upper_directory(OVERLAY)


def test_a_process_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_upper_directory(1, tmp_path)
