"""The machine's memory by the kernel's own figures, and what takes of it: page cache, slab."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from reactor.kernel.cgroup import CgroupTree
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.observe.node import NodeObserver

MIB: Final = 1 << 20
_CGROUPS: Final = Path("/sys/fs/cgroup")
_STAT: Final = _CGROUPS / "memory.stat"
_MEMINFO: Final = Path("/proc/meminfo")
_BLOCK: Final = Path("/sys/block")
_ZONEINFO: Final = Path("/proc/zoneinfo")
_NAME_CHARS: Final = 200  # beyond 40 a dentry's name is allocated by itself: 512 bytes in all
_DENTRY_BYTES: Final = 448


@dataclass(frozen=True, kw_only=True)
class KernelFigures:
    """What the kernel says, in bytes: the root's memory.stat as the kubelet adds it up, and meminfo.

    `free_bytes` is with the free pages that each CPU keeps for itself, which MemFree is without: up to an
    eighth of the memory since 6.7.
    """

    working_set_bytes: int
    free_bytes: int
    total_bytes: int
    slab_bytes: int
    swap_cache_bytes: int


def kernel_figures() -> KernelFigures:
    """Return them now, with what each CPU has counted for itself added up first."""
    with suppress(OSError):  # EINVAL where a counter is below zero; they are added up all the same
        Path("/proc/sys/vm/stat_refresh").write_text("1")
    stat = dict(line.split() for line in _STAT.read_text().splitlines())
    meminfo = {line.split(":")[0]: int(line.split()[1]) << 10 for line in _MEMINFO.read_text().splitlines()}
    return KernelFigures(
        working_set_bytes=int(stat["anon"]) + int(stat["file"]) - int(stat["inactive_file"]),
        free_bytes=meminfo["MemFree"] + kept_bytes(),
        total_bytes=meminfo["MemTotal"],
        slab_bytes=meminfo["Slab"],
        swap_cache_bytes=meminfo["SwapCached"],
    )


def kept_bytes() -> int:
    """Return the free pages that each CPU keeps for itself, which the kernel does not count as free."""
    pages = map(int, re.findall(r"^ +count: +(\d+)$", _ZONEINFO.read_text(), re.MULTILINE))
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def observed() -> Observation:
    """Return memory.available of the machine as a pass observes it."""
    node = NodeObserver(CgroupTree.discover(), Settings())
    try:
        return node.memory()[Signal.MEMORY_AVAILABLE]
    finally:
        node.close()


class PageCache:
    """A file on a disk (/tmp may be a tmpfs), whose pages are cached; removed at the end.

    Its pages are charged to a cgroup of its own: where memory was reclaimed before, multi-generational LRU
    lists may have only the two generations left that count as active, and take a new page for active.
    """

    def __init__(self, directory: Path = Path("/var/tmp")) -> None:
        self._directory = tempfile.TemporaryDirectory(dir=directory)
        self.path = Path(self._directory.name) / "file"
        self._cgroup = _CGROUPS / f"page-cache-{Path(self._directory.name).name}"
        self._cgroup.mkdir()

    def write(self, mib: int) -> None:
        """Write so much, to the disk too: then the pages are clean, inactive and free to be reclaimed."""
        self._copy("if=/dev/zero", f"of={self.path}", f"count={mib}", "conv=fsync")

    def use(self) -> None:
        """Read all of it, twice: the kernel takes its pages for active."""
        for _ in range(2):
            self._copy(f"if={self.path}", "of=/dev/null")

    def _copy(self, *arguments: str) -> None:
        enter = f'echo 0 > {self._cgroup}/cgroup.procs && exec dd bs=1M status=none "$@"'
        subprocess.run(["sh", "-c", enter, "sh", *arguments], check=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.cleanup()
        self._cgroup.rmdir()


class SwapFile:
    """A file on a disk that the machine swaps to, while this is entered."""

    def __init__(self, mib: int) -> None:
        self._mib = mib
        self._directory = tempfile.TemporaryDirectory(dir="/var/tmp")
        self._path = Path(self._directory.name) / "swap"

    def __enter__(self) -> Self:
        self._path.touch(mode=0o600)
        with self._path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self._mib * MIB)
        for command in (["mkswap", "--quiet"], ["swapon"]):
            subprocess.run([*command, self._path], check=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["swapoff", self._path], check=True)
        self._directory.cleanup()


class ZramSwap:
    """A compressed disk in memory that the machine swaps to, while this is entered."""

    def __init__(self, mib: int) -> None:
        self._mib = mib
        self._device = ""

    @staticmethod
    def missing_because() -> str | None:
        """Return what it lacks on this machine, None where it can be had."""
        done = subprocess.run(["modprobe", "zram", "num_devices=1"], capture_output=True, check=False)
        if done.returncode:
            return (
                "this kernel has no module zram: install linux-image-amd64 in the place of the cloud kernel"
            )
        return None

    def __enter__(self) -> Self:
        number = Path("/sys/class/zram-control/hot_add").read_text().strip()
        self._device = f"zram{number}"
        (_BLOCK / self._device / "disksize").write_text(f"{self._mib}M")
        for command in (["mkswap", "--quiet"], ["swapon"]):
            subprocess.run([*command, f"/dev/{self._device}"], check=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["swapoff", f"/dev/{self._device}"], check=True)
        Path("/sys/class/zram-control/hot_remove").write_text(self._device.removeprefix("zram"))


class NegativeDentries:
    """Names that were looked up and are not there: the kernel keeps them in slab, with their directory."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(dir="/var/tmp")
        self._made = 0

    def make(self, mib: int) -> None:
        """Look so many MiB of names up."""
        for _ in range(mib * MIB // _DENTRY_BYTES):
            self._made += 1
            with suppress(FileNotFoundError):
                os.stat(f"{self._directory.name}/{self._made:0{_NAME_CHARS}}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.cleanup()
