from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.kernel import libc
from reactor.kernel.bpf.probes import MemoryProbe
from reactor.kernel.capabilities import capability_names
from reactor.kernel.features import (
    Feature,
    effective_capabilities,
    needed_capabilities,
    probe,
)
from tests.support.this_machine import open_descriptors

ALL = "000001ffffffffff"


def features(root: Path) -> dict[str, Feature]:
    return {feature.name: feature for feature in probe(root)}


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """Return a root whose memory controller is on v2, with one cgroup."""
    hierarchy = tmp_path / "sys/fs/cgroup"
    (hierarchy / "system.slice").mkdir(parents=True)
    (hierarchy / "cgroup.controllers").write_text("cpu memory pids\n")
    for name in ("memory.high", "cgroup.kill", "memory.pressure"):
        (hierarchy / "system.slice" / name).write_text("max\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/net").mkdir()
    (tmp_path / "proc/pressure").mkdir()
    (tmp_path / "proc/self/mounts").write_text(f"cgroup2 {hierarchy} cgroup2 rw 0 0\n")
    (tmp_path / "proc/self/status").write_text(f"Name:\tx\nThreads:\t1\nCapEff:\t{ALL}\n")
    (tmp_path / "proc/net/connector").write_text("Name            ID\ncn_proc         1:1\n")
    (tmp_path / "proc/pressure/memory").write_text("")
    return tmp_path


def test_v2_offers_what_v1_does_not(v2: Path) -> None:
    found = features(v2)
    assert found["cgroup memory controller"].detail.startswith("v2, memory at")
    for name in ("memory.high", "cgroup.kill", "pressure stall information", "capabilities"):
        assert found[name].available, found[name]
    assert "cgroups too" in found["pressure stall information"].detail
    assert not found["memcg eventfd"].available


@pytest.mark.parametrize(
    ("refusal", "available", "detail"),
    [
        (errno.EINVAL, True, "present"),
        (errno.EBADF, True, "PROCESS_MRELEASE_REAP_KILL, too, which is not used"),
        (errno.ENOSYS, False, "Function not implemented"),
    ],
)
def test_kernel_that_kills_and_releases_in_one_call_is_reported_by_what_it_refuses(
    v2: Path, monkeypatch: pytest.MonkeyPatch, refusal: int, detail: str, *, available: bool
) -> None:
    """No released kernel has the flag, hence the double."""

    def refuse(pidfd: int, flags: int = 0) -> None:
        assert (pidfd, flags) == (-1, libc.PROCESS_MRELEASE_REAP_KILL)
        raise OSError(refusal, os.strerror(refusal), "process_mrelease(pidfd -1)")

    monkeypatch.setattr(libc, "process_mrelease", refuse)
    found = features(v2)["process_mrelease"]
    assert (found.available, detail in found.detail) == (available, True), found


def test_this_kernel_says_whether_it_kills_and_releases_in_one_call() -> None:
    found = features(Path("/"))["process_mrelease"]
    assert found.detail.startswith("present") or not found.available


@pytest.mark.parametrize(
    ("delegated", "detail"), [(None, "is not there"), (False, "is not delegated"), (True, "is delegated")]
)
def test_steward_has_a_cgroup_where_the_unit_is_delegated(
    v2: Path, *, delegated: bool | None, detail: str
) -> None:
    unit = v2 / "sys/fs/cgroup/system.slice/reactor.service"
    if delegated is not None:
        unit.mkdir()
    if delegated:
        os.setxattr(unit, "user.delegate", b"1")
    found = features(v2)["steward's cgroup"]
    assert found.available is bool(delegated)
    assert detail in found.detail
    assert "Delegate=" in found.remedy or delegated


def test_kernel_without_control_files_says_so(v2: Path) -> None:
    (v2 / "sys/fs/cgroup/system.slice/cgroup.kill").unlink()
    found = features(v2)["cgroup.kill"]
    assert (False, "no cgroup has a cgroup.kill") == (found.available, found.detail)
    assert "5.14" in found.remedy


def test_missing_capability_is_named_with_its_use(v2: Path) -> None:
    (v2 / "proc/self/status").write_text("Name:\tx\nThreads:\t1\nCapEff:\t0000000000000020\n")
    found = features(v2)
    assert not found["capabilities"].available
    assert "CAP_SYS_NICE (realtime priority)" in found["capabilities"].detail
    assert "CAP_KILL" not in found["capabilities"].detail
    assert "CAP_NET_ADMIN" in found["process events"].detail


@pytest.mark.parametrize(
    ("modes", "available", "detail"),
    [
        (b"none [integrity] confidentiality\n", True, "integrity"),
        (b"none integrity [confidentiality]\n", False, "confidentiality"),
        (b"[none] integrity confidentiality\n", True, "none"),
        (b"\xff\xfe", True, "none"),
    ],
)
def test_lockdown_is_reported_by_its_mode(v2: Path, modes: bytes, detail: str, *, available: bool) -> None:
    (v2 / "sys/kernel/security").mkdir(parents=True)
    (v2 / "sys/kernel/security/lockdown").write_bytes(modes)
    found = features(v2)["lockdown"]
    assert available == found.available
    assert found.detail.startswith(detail)


@pytest.mark.parametrize(("magic", "available"), [(b"\x9f\xeb\x01", True), (b"ELF", False), (b"", False)])
def test_btf_is_reported_by_its_magic_number(v2: Path, magic: bytes, *, available: bool) -> None:
    (v2 / "sys/kernel/btf").mkdir(parents=True)
    (v2 / "sys/kernel/btf/vmlinux").write_bytes(magic)
    assert available == features(v2)["BTF"].available


def test_empty_machine_has_every_answer_and_a_remedy_for_what_is_missing(tmp_path: Path) -> None:
    found = features(tmp_path)
    for name in ("cgroup memory controller", "BTF", "pressure stall information", "process events"):
        assert not found[name].available
    assert all(feature.detail for feature in found.values())
    assert all(feature.remedy for feature in found.values() if not feature.available)


def test_what_an_installation_lacks_has_its_remedy_in_one_place_and_not_in_each_detail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four features are missing for it: a detail with the remedy would say it four times."""

    def look() -> str:
        with MemoryProbe(directory=tmp_path):
            return "loaded"

    names = {
        "eBPF watches": "memory_watches",
        "eBPF process counts": "process_watches",
        "eBPF OOM kills": "oom_kills",
        "eBPF warrants": "warrants",
    }
    for function in names.values():
        monkeypatch.setattr(f"reactor.kernel.bpf.loaders.{function}", look)

    found = features(Path("/"))

    assert {"eBPF object memory.bpf.o: not in this installation"} == {found[name].detail for name in names}
    [remedy] = {found[name].remedy for name in names}
    assert remedy.startswith("install the Debian package or a wheel")


def test_probing_leaves_this_process_as_it_was() -> None:
    before = (open_descriptors(), os.sched_getscheduler(0))
    first, second = probe(), probe()
    assert first == second
    assert before == (open_descriptors(), os.sched_getscheduler(0))


def test_what_is_asked_for_are_names_of_capabilities() -> None:
    named = needed_capabilities(for_others=True).items()
    assert all(name.startswith("CAP_") and use for name, use in named)


def test_where_no_file_of_others_is_written_no_capability_is_asked_for_it(v2: Path) -> None:
    (v2 / "proc/self/status").write_text("Name:\tx\nThreads:\t1\nCapEff:\t0000000000000020\n")
    for for_others in (True, False):
        found = {feature.name: feature for feature in probe(v2, for_others=for_others)}
        assert for_others == ("CAP_DAC_OVERRIDE" in found["capabilities"].detail)


def test_what_follows_for_the_oom_killers_order_is_said_of_both_capabilities_that_it_takes(v2: Path) -> None:
    (v2 / "proc/self/status").write_text("Name:\tx\nThreads:\t1\nCapEff:\t0000000000000020\n")
    detail = features(v2)["capabilities"].detail
    assert "can't get a lower score than a kubelet or systemd gave them" in detail
    assert "oomOrder: processes of users other than root" in detail


@pytest.mark.parametrize(
    ("number", "name"), [(0, "CAP_CHOWN"), (5, "CAP_KILL"), (12, "CAP_NET_ADMIN"), (24, "CAP_SYS_RESOURCE"),
                         (34, "CAP_SYSLOG"), (39, "CAP_BPF"), (40, "CAP_CHECKPOINT_RESTORE")]
)  # fmt: skip
def test_capabilities_have_the_kernels_numbers(number: int, name: str) -> None:
    assert {name} == capability_names(1 << number)


@given(st.integers(0, 2**64 - 1))
def test_any_mask_has_names(mask: int) -> None:
    assert (mask & ((1 << 41) - 1)).bit_count() == len(capability_names(mask))


def test_effective_capabilities_are_read_from_the_status(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tx\nThreads:\t1\nCapEff:\t0000000000000021\n")
    assert {"CAP_CHOWN", "CAP_KILL"} == effective_capabilities(tmp_path)
