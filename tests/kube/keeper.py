"""Hold a machine within the machine for the tests, and leave nothing of it behind.

usage: unshare --mount --propagation private python3 keeper.py [--remove|--systemd] STATE NAME

A process of its own, so that whatever becomes of the tests (a failure, Ctrl-C, SIGKILL) it takes away what
was made: it makes the place, says "ready", and waits for its standard input to end. With --remove it only
takes away what an earlier one has left. With --systemd pods are made by the machine's systemd, below
kubepods.slice, which goes with the rest: for a machine that is the tests' alone. The place is
- a mount namespace, this process's: STATE/run, STATE/log and STATE/lib are /run, /var/log and /var/lib in it,
  so that containerd and the kubelet use their usual paths and touch none of the machine's. What the kubelet
  would set through /proc/sys it sets in files of ours.
- in each hierarchy of control groups NAME, below which the pods live, and NAME-system, for the programs.

Only the standard library: it runs with nothing but a Python. Exit status 0, or 1 and a line for each thing
that could not be taken away.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_BOUND = {"run": "/run", "log": "/var/log", "lib": "/var/lib"}
# The kubelet's container manager writes these at its start.
_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_SYSTEMDS = ("systemd", "dbus")  # what systemd is spoken to through
_GONE_SECONDS = 60.0


def hierarchies() -> tuple[list[Path], list[Path]]:
    """Return the roots of the hierarchies to use, and of all.

    On a hybrid machine only those of version 1 are used; but runc makes its cgroups in the other one, too.
    """
    found: dict[str, list[Path]] = {"cgroup": [], "cgroup2": []}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, directory, kind, *_ = line.split()
        if kind in found:
            found[kind].append(Path(directory))
    return found["cgroup"] or found["cgroup2"][:1], found["cgroup"] + found["cgroup2"]


def main() -> int:
    """Make the place, wait, take it away."""
    state, name = Path(sys.argv[-2]), sys.argv[-1]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what they end is the tests; their end is what is waited for
    used, every = hierarchies()
    by_systemd = sys.argv[1] == "--systemd"
    cgroups = [root / f"{name}{suffix}" for root in every for suffix in ("", "-system")]
    try:
        if sys.argv[1] != "--remove":
            _mount(state, _SYSTEMDS if by_systemd else ())
            for cgroup in cgroups:
                if cgroup.parent in used:
                    _make(cgroup)
            print("ready", flush=True)
            sys.stdin.read()
    finally:
        made_by_systemd = [root / "kubepods.slice" for root in every] if by_systemd else []
        problems = [*_end_processes([*cgroups, *made_by_systemd]), *_unmount(state)]
        if not problems:
            shutil.rmtree(state)
        for problem in problems:
            print(f"keeper: {problem}", file=sys.stderr, flush=True)
    return 1 if problems else 0


def _mount(state: Path, kept: Iterable[str]) -> None:
    """Make the place; what is `kept` of /run is the machine's own there, too."""
    for name in kept:
        _bind(Path("/run", name), state / "run" / name, is_directory=True)
    for name, target in _BOUND.items():
        _bind(state / name, Path(target), is_directory=True)
    for sysctl in _SYSCTLS:
        ours, kernels = state / "sysctl" / sysctl, Path("/proc/sys") / sysctl
        ours.parent.mkdir(parents=True, exist_ok=True)
        ours.write_bytes(kernels.read_bytes())
        _bind(ours, kernels, is_directory=False)
    # As systemd leaves it on every machine: what is mounted later shows in pods that ask for that. It doesn't
    # show outside, from which the namespace was cut off before.
    subprocess.run(["mount", "--make-rshared", "/"], check=True)


def _bind(source: Path, target: Path, *, is_directory: bool) -> None:
    for directory in (source, target) if is_directory else ():
        directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--rbind", str(source), str(target)], check=True)


def _make(cgroup: Path) -> None:
    every = cgroup.parent / "cgroup.controllers"
    if every.exists():  # v2: the kubelet wants each of them in its root
        for name in every.read_text().split():
            with suppress(OSError):  # one that is busy (cpu beside real-time processes) can do without
                (cgroup.parent / "cgroup.subtree_control").write_text(f"+{name}")
    cgroup.mkdir()
    if cgroup.name.endswith("-system"):
        with suppress(OSError):  # v1 with CONFIG_RT_GROUP_SCHED: without it no program may be real-time
            (cgroup / "cpu.rt_runtime_us").write_text("300000")
    for name in ("cpuset.cpus", "cpuset.mems"):  # v1: empty at first, and then nothing may enter
        if (cgroup.parent / name).exists() and not (cgroup / name).read_text().strip():
            (cgroup / name).write_text((cgroup.parent / name).read_text())


def _end_processes(cgroups: list[Path]) -> Iterator[str]:
    """End all that lives in the cgroups and remove them; yield what resists."""
    deadline = time.monotonic() + _GONE_SECONDS
    while left := [cgroup for cgroup in cgroups if not _removed(cgroup)]:
        if time.monotonic() > deadline:
            yield from (f"{cgroup} can't be removed" for cgroup in left)
            return
        time.sleep(0.02)


def _removed(cgroup: Path) -> bool:
    """Kill what is in the cgroup and below; return whether all of it could be removed."""
    for directory, _, files in os.walk(cgroup, topdown=False):
        if "freezer.state" in files:
            with suppress(OSError):  # frozen processes don't die
                Path(directory, "freezer.state").write_text("THAWED")
        for pid in _pids(Path(directory)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):  # EBUSY: it has not died yet
            os.rmdir(directory)
    return not cgroup.exists()


def _pids(cgroup: Path) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in (cgroup / "cgroup.procs").read_text().split() if word != "0"]
    return []


def _unmount(state: Path) -> Iterator[str]:
    """Unmount what was mounted below our directories, so that removing them removes nothing else."""
    ours = (*_BOUND.values(), str(state))
    for target in reversed(_mounted(ours)):
        subprocess.run(["umount", "--lazy", target], check=False, stderr=subprocess.DEVNULL)
    yield from (f"{target} is still mounted" for target in _mounted(ours))


def _mounted(ours: Iterable[str]) -> list[str]:
    targets = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [
        target
        for target in targets
        if any(target == bound or target.startswith(f"{bound}/") for bound in ours)
    ]


if __name__ == "__main__":
    sys.exit(main())
