"""Figures of the disks: how soon a crossing is answered, what counting costs, and how true the counts are.

    python -m bench.disk [RESULTS]      (root, loop devices, mkfs.ext4)

Everything happens on ext4 in sparse image files. Space is taken by fallocate(2), since it has to be taken at
a gibibyte a second whatever the disk below can write; statvfs shows it alike.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.figures import collected
from reactor.disks.usage import DiskUsage
from reactor.disks.walk_messages import Add, Drop
from reactor.disks.walker import Pace, Places
from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.link.orders import CountedPlace
from reactor.link.requests import PlaceUsage
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.crossing import about, summary
from reactor.testbed.daemon_process import DaemonProcess
from reactor.testbed.virtual_node import VirtualNode, ended_by_signals

MIB: Final = 1 << 20
_DISK_MIB: Final = 6144
_THRESHOLD_MIB: Final = 1024
_RUNS: Final = 10
_RATES_MIB: Final = {"100 MiB/s": 100, "1 GiB/s": 1024}
_STEP_SECONDS: Final = 0.01
_RAMP_SECONDS: Final = 3.0
_AT_REST_SECONDS: Final = 2.5
_PODS: Final = 110
_FILES: Final = 1_000_000
_FILES_PER_DIRECTORY: Final = 100
_LOOKS: Final = 16
# The daemon looks at each housekeeping; after a long look only once it has rested (steward/storage.py).
_LOOKS_EVERY_SECONDS: Final = (10.0, 60.0)
_REST_PER_WORK: Final = 200
_SETTLED_SECONDS: Final = 65.0  # from then on what was just created is no longer looked at each time


@contextmanager
def mounted(directory: Path, mib: int, *options: str) -> Iterator[Path]:
    """Make an ext4 in an image file and mount it. Raises RefusedError where that is not to be had."""
    image, point = directory / "disk.image", directory / "disk"
    point.mkdir(exist_ok=True)
    with image.open("wb") as file:
        file.truncate(mib * MIB)
    _run("mkfs.ext4", "-q", "-m", "0", *options, str(image))
    _run("mount", "-o", "loop", str(image), str(point))
    try:
        yield point
    finally:
        _run("umount", str(point))
        image.unlink()


def crossing_to_reclaim_ms(directory: Path, rate_mib: int, runs: int) -> list[float]:
    """Return the time from each crossing of nodefs.available to the configured command having started."""
    tree, tool = CgroupTree.discover(), compiled_tool()
    started = directory / "started"
    script = directory / "reclaim.sh"
    script.write_text(f"date +%s%N >> {started}\nrm -f {directory}/disk/growing\n", encoding="ascii")
    with (
        mounted(directory, _DISK_MIB) as disk,
        VirtualNode(tree, 512 * MIB, f"reactor-bench-{os.getpid()}") as node,
        DaemonProcess(
            tool,
            directory,
            node.cgroup,
            {"evictionHard": {"nodefs.available": f"{_THRESHOLD_MIB}Mi"}},
            {
                "filesystems": {"nodefs": str(disk)},
                "reclaim": {"nodefs": ["/bin/sh", str(script)]},
                "reclaimPause": "2s",
            },
        ) as daemon,
    ):
        found = []
        for _ in range(runs):
            time.sleep(_AT_REST_SECONDS)
            started.unlink(missing_ok=True)  # of a pass that still saw what the run before had taken
            crossed_ns = _grow(disk, rate_mib, started)
            if crossed_ns is None:
                log = daemon.log()[-2000:]
                raise RefusedError(f"a run failed: the command did not start in time:\n{log}")
            found.append((int(started.read_text().split()[-1]) - crossed_ns) / 1e6)
        return found


def _grow(disk: Path, rate_mib: int, started: Path) -> int | None:
    """Fill the disk at a rate until the command has started; return when the threshold was crossed, in ns.

    The clock is the realtime one, which a shell can tell as well.
    """
    ballast = disk / "ballast"
    spare_bytes = _available(disk) - (_THRESHOLD_MIB + int(rate_mib * _RAMP_SECONDS)) * MIB
    if not ballast.exists():
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(MIB, spare_bytes))
        time.sleep(_AT_REST_SECONDS)
    crossed_ns = None
    taken_ns = time.time_ns()
    began = time.monotonic()
    with (disk / "growing").open("wb") as file:
        taken = 0
        while not started.exists() or not started.read_text().strip():
            wanted = int((time.monotonic() - began) * rate_mib * MIB)
            if wanted > taken and _available(disk) > 64 * MIB:
                taken_ns = time.time_ns()
                os.posix_fallocate(file.fileno(), taken, wanted - taken)
                taken = wanted
            if crossed_ns is None and _available(disk) < _THRESHOLD_MIB * MIB:
                crossed_ns = taken_ns
            if crossed_ns is not None and time.time_ns() - crossed_ns > 10 * 10**9:
                return None
            time.sleep(_STEP_SECONDS)
    return crossed_ns or taken_ns  # answered before we had looked ourselves


class LooksHere:
    """Looks for one DiskUsage in this process, without a walker, and tells it what it finds."""

    def __init__(self, usage: DiskUsage, *, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._usage = usage
        self._places = Places(usage.take, clock_seconds=clock_seconds)

    def look(self, pace: Pace | None = None) -> None:
        """Look at all places that are known, and return when everything is counted. Raises GivenUpError."""
        for request in self._usage.assign():
            match request:
                case Add(place, pod, path):
                    self._places.add(place, pod, path)
                case Drop(place):
                    self._places.drop(place)
        self._usage.round_begins()
        self._places.due()
        pace = pace or Pace()
        while not self._places.is_idle:
            self._places.turn(pace)
        self._usage.round_ended()


def counting(directory: Path) -> dict[str, Any]:
    """Return what counting a million files of 110 pods costs, and how it differs from du."""
    with mounted(directory, 3072, "-N", str(_FILES + _FILES // 5 + 5000)) as disk:
        places = _pods_with_files(disk)
        _run("umount", str(disk))  # so that nothing of it is in memory
        _run("mount", "-o", "loop", str(directory / "disk.image"), str(disk))
        usage = DiskUsage()
        usage.know(places)
        looks_here = LooksHere(usage)
        first = _look(looks_here)
        time.sleep(_SETTLED_SECONDS)
        looks = []
        for number in range(2 * _LOOKS):
            for place in places:
                (Path(place.path) / "growing").write_bytes(bytes(4096 * (1 + number % 2)))
            looks.append(_look(looks_here))
        steady = looks[_LOOKS:]
        idle = _look(looks_here)
        counted = {one.place: one for usages in usage.news() for one in usages.places}
        return {
            "files": _FILES,
            "pods": len(places),
            "first_look": first,
            "steady_look_cpu_ms": summary(look["cpu_ms"] for look in steady),
            "steady_cpu_percent": _cpu_percent([look["cpu_ms"] for look in steady]),
            "steady_read_bytes": sum(look["read_bytes"] for look in steady),
            "idle_look_cpu_ms": idle["cpu_ms"],
            "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            "against_du": _against_du([(place.path, counted[place.number]) for place in places]),
        }


def _cpu_percent(looks_ms: Sequence[float]) -> float:
    """Return what looks that take so long take of a CPU, as often as the daemon makes them."""
    shortest, longest = _LOOKS_EVERY_SECONDS
    mean_seconds = sum(looks_ms) / len(looks_ms) / 1000
    return round(mean_seconds / min(longest, max(shortest, mean_seconds * _REST_PER_WORK)) * 100, 3)


def _look(looks_here: LooksHere) -> dict[str, float]:
    before_read, before_cpu, began = _read_bytes(), time.thread_time_ns(), time.monotonic()
    looks_here.look()
    return {
        "cpu_ms": round((time.thread_time_ns() - before_cpu) / 1e6, 2),
        "took_seconds": round(time.monotonic() - began, 2),
        "read_bytes": _read_bytes() - before_read,
    }


def _pods_with_files(disk: Path) -> list[CountedPlace]:
    """Make the pods' directories and files, some of them written to, linked and with holes."""
    places = []
    per_pod = _FILES // _PODS
    for number in range(_PODS):
        path = disk / f"pod-{number}"
        for index in range(per_pod // _FILES_PER_DIRECTORY + 1):
            below = path / f"{index % 9}" / f"{index}"
            below.mkdir(parents=True)
            for name in range(_FILES_PER_DIRECTORY):
                os.close(os.open(below / f"{name}", os.O_CREAT | os.O_WRONLY))
        (path / "large").write_bytes(bytes(300_000))
        os.link(path / "large", path / "link")
        with (path / "sparse").open("wb") as file:
            file.truncate(1 << 30)
        places.append(
            CountedPlace(number=number + 1, uid=f"pod-{number}", pod=f"bench/pod-{number}", path=str(path))
        )
    return places


def _against_du(usages: Sequence[tuple[str, PlaceUsage]]) -> dict[str, Any]:
    """Return the largest difference to what du counts, in bytes and in inodes."""
    bytes_off, inodes_off = 0, 0
    for path, usage in usages:
        bytes_off = max(bytes_off, abs(_du(path, "-B1") - usage.used_bytes))
        inodes_off = max(inodes_off, abs(_du(path, "--inodes") - usage.inodes))
    return {"largest_error_bytes": bytes_off, "largest_error_inodes": inodes_off, "pods": len(usages)}


def _du(path: str, unit: str) -> int:
    done = subprocess.run(["du", "-sx", unit, path], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def _read_bytes() -> int:
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


def _available(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def _run(*command: str) -> None:
    path = "/usr/sbin:/sbin:/usr/bin:/bin"
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PATH": path}, timeout=120
    )
    if done.returncode:
        raise RefusedError(f"{' '.join(command)}: {done.stderr.strip()}")


def main(results: Path) -> int:
    """Measure, print and store; return the exit status. If interrupted, what was measured until then."""
    if os.geteuid() != 0:
        print("bench-disk: needs root, to mount filesystems", file=sys.stderr)
        return 2
    try:
        with ended_by_signals(), tempfile.TemporaryDirectory(prefix="reactor-bench-") as name:
            found = collected(about(CgroupTree.discover().version), _figures(Path(name)))
    except KeyboardInterrupt:
        return 130
    except (ReactorError, OSError) as error:
        print(f"bench-disk: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2))
    results.mkdir(parents=True, exist_ok=True)
    when = str(found["about"]["date"]).replace(":", "").partition("+")[0]
    (results / f"disk-{when}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 130 if "interrupted" in found["about"] else 0


def _figures(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures by their names as they become known."""
    answered = {}
    for rate, mib in _RATES_MIB.items():
        answered[rate] = summary(crossing_to_reclaim_ms(directory, mib, _RUNS))
        yield {"crossing_to_reclaim_ms": dict(answered)}
    yield {"counting": counting(directory)}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "bench-results")))
