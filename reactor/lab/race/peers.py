"""The daemons that people would pick instead: their own programs, the same threshold, their fastest settings.

Each runs in the enclosure, where the node is the machine. SIGKILL at the threshold for all of them, as for a
hard eviction: a SIGTERM first would only be slower.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.lab.crossing import LEVEL_BYTES, THRESHOLD_BYTES
from reactor.lab.hog import MIB
from reactor.lab.race.contestant import Contestant, Entrant, Ground, Role
from reactor.lab.race.heat import Track

_START_SECONDS: Final = 2.0  # nohang reads its configuration; natively 0.3 s
FETCH: Final = "make race fetches Debian's package without installing it; or install {}"
_NO_UNIT: Final = (
    "has no threshold of memory: it acts when a unit of systemd's has stalled for a second or more, "
    "and allocators below every limit do not stall"
)
# The comments in nohang.conf give the range of each key: for min_sleep 0.01 s is the least.
_NOHANG: Final = {
    "soft_threshold_min_mem": f"{THRESHOLD_BYTES // MIB} M",
    "hard_threshold_min_mem": f"{THRESHOLD_BYTES // MIB} M",
    # Both memory and swap have to be below their thresholds: with all of the swap it is the memory alone.
    "soft_threshold_min_swap": "100 %",
    "hard_threshold_min_swap": "100 %",
}
# -M kills at so many KiB available; the same number twice is SIGKILL at once. -s 100,100: however much swap
# is free. -r 0: no reports. -p: niceness -20. Its shortest sleep, 100 ms, is built in. earlyoom(1).
_KIB: Final = THRESHOLD_BYTES // 1024
_EARLYOOM: Final = ("-M", f"{_KIB},{_KIB}", "-s", "100,100", "-r", "0", "-p")
_OOMD_SETTINGS: Final = f"memory_above threshold_anon {LEVEL_BYTES // MIB}M for 0 s, no delay after an action"
_PLAIN: Final = Ground()
NOHANG_FASTEST: Final = {"min_sleep": "0.01", "max_sleep": "0.01"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where the peers' programs are: unpacked packages in `directory`, else what is installed."""

    directory: Path | None = None

    def find(self, name: str) -> Path | None:
        """Return the program, None where there is none."""
        for place in ("usr/bin", "usr/sbin"):
            if self.directory and (program := self.directory / place / name).exists():
                return program.resolve()
        found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        return Path(found) if found else None

    def libraries(self) -> str:
        """Return what LD_LIBRARY_PATH has to be for programs of unpacked packages."""
        found = self.directory.resolve().glob("usr/lib/*-linux-gnu") if self.directory else ()
        return ":".join(map(str, found))


def peers(version: CgroupVersion, programs: Programs) -> tuple[list[Contestant], dict[str, str]]:
    """Return the peers that can take part here, and those that can't, with the reason."""
    taken: list[Contestant] = []
    left_out = {"systemd-oomd": _NO_UNIT}
    if program := programs.find("earlyoom"):
        taken.append(earlyoom("earlyoom", program, _EARLYOOM))
    else:
        left_out["earlyoom"] = FETCH.format("earlyoom")
    if program := programs.find("nohang"):
        taken += [
            nohang("nohang", program, _NOHANG),
            nohang("nohang-10ms", program, {**_NOHANG, **NOHANG_FASTEST}),
        ]
    else:
        left_out["nohang"] = FETCH.format("nohang")
    if version is CgroupVersion.V1:
        left_out["oomd"] = "reads memory.current and memory.stat of cgroup v2; this machine's memory is on v1"
    elif program := programs.find("oomd"):
        taken.append(oomd("oomd", program, programs.libraries(), oomd_config, _OOMD_SETTINGS))
    else:
        left_out["oomd"] = FETCH.format("oomd")
    return taken, left_out


def earlyoom(name: str, program: Path, options: Sequence[str], ground: Ground = _PLAIN) -> Contestant:
    """Return earlyoom with these options."""

    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        with _running(track, [str(program), *options]) as entrant:
            yield entrant

    settings = " ".join(("earlyoom", *options))
    return Contestant(name=name, role=Role.PEER, settings=settings, enter=enter, ground=ground)


def nohang(name: str, program: Path, changes: Mapping[str, str], ground: Ground = _PLAIN) -> Contestant:
    """Return nohang with these changes of its configuration; "{node}" in them is the node's directory."""

    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        config = track.directory / f"{name}.conf"
        node = str(track.node.tree.path(track.node.cgroup))
        told = {key: value.format(node=node) for key, value in changes.items()}
        config.write_text(nohang_config(_shipped(program).read_text(encoding="utf-8"), told))
        # The interpreter of the system: the packaged program has modules of it, not ours.
        python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
        with _running(track, [python, str(program), "--monitor", "--config", str(config)]) as entrant:
            yield entrant

    told = ", ".join(f"{key} = {value}" for key, value in changes.items())
    settings = f"nohang.conf with {told}" if told else "nohang.conf"
    return Contestant(name=name, role=Role.PEER, settings=settings, enter=enter, ground=ground)


def _shipped(program: Path) -> Path:
    """Return the configuration with the defaults, which lies beside the program in its package."""
    return program.parent.parent / "share/nohang/nohang.conf"


def nohang_config(shipped: str, changes: Mapping[str, str]) -> str:
    """Return nohang's configuration with some values changed. Raises RefusedError for a key that it lacks."""
    text = shipped
    for key, value in changes.items():
        text, count = re.subn(rf"^{re.escape(key)}\s*=.*$", f"{key} = {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise RefusedError(f"nohang.conf: {count} lines of {key!r}; expected one to change")
    return text


def oomd(
    name: str,
    program: Path,
    libraries: str,
    rulesets: Callable[[str], Mapping[str, object]],
    settings: str,
    ground: Ground = _PLAIN,
) -> Contestant:
    """Return oomd with the configuration that `rulesets` makes of the node's path without its first "/"."""

    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        config, kmsg = track.directory / "oomd.json", track.directory / "kmsg"
        config.write_text(json.dumps(rulesets(track.node.cgroup.lstrip("/")), indent=2))
        kmsg.touch()
        # -i 1: it looks once a second, its shortest interval. The state directory is in the enclosure's /run.
        command = [str(program), "-i", "1", "-f", str(track.node.tree.memory_root), "-C", str(config)]
        command += ["-D", "/run/oomd", "--kmsg-override", str(kmsg)]
        if libraries:
            command = ["/usr/bin/env", f"LD_LIBRARY_PATH={libraries}", *command]
        with _running(track, command) as entrant:
            yield entrant

    return Contestant(
        name=name, role=Role.PEER, settings=f"oomd -i 1, {settings}", enter=enter, ground=ground
    )


def oomd_config(node: str) -> Mapping[str, object]:
    """Return a ruleset that names nothing but the node, a cgroup's path without its leading "/"."""
    above = {"cgroup": node, "threshold_anon": f"{LEVEL_BYTES // MIB}M", "duration": "0"}
    kill = {"cgroup": f"{node}/*", "post_action_delay": "0"}
    return {
        "rulesets": [
            {
                "name": "the node's threshold",
                "detectors": [["above it", {"name": "memory_above", "args": above}]],
                "actions": [{"name": "kill_by_memory_size_or_growth", "args": kill}],
                "post_action_delay": "0",
            }
        ]
    }


@contextmanager
def _running(track: Track, command: Sequence[str]) -> Iterator[Entrant]:
    """Start a peer in the enclosure. Raises RefusedError where it ends before the first heat."""
    log = track.directory / "peer.log"
    process = track.enclosure.start(command, log)

    def problem() -> str | None:
        if process.poll() is None:
            return None
        return f"{Path(command[0]).name} ended ({process.returncode}): {_end_of(log)}"

    try:
        time.sleep(_START_SECONDS)
        if ended := problem():
            raise RefusedError(ended)
        yield Entrant(pid=process.pid, problem=problem)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-500:]
