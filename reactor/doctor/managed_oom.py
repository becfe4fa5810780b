"""What `systemdOomd: replace` comes to on this machine now, for `reactor config check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.procfs import PROC
from reactor.kernel.small_file import read
from reactor.link.managed_oom import LONGEST_BYTES, PATH, ManagedOomError, read_report_at_once
from reactor.model.managed_oom import ManagedOomReport
from reactor.model.pod_parents import PodParent
from reactor.model.settings import Settings, SystemdOomd
from reactor.rules.managed import oomd_defaults, refused_because

_KEY: Final = "reactor.systemdOomd"
_UNIT: Final = "/system.slice/systemd-oomd.service"
_COMM: Final = "systemd-oomd"
_SHOWN: Final = 3
_RUNS_ITSELF: Final = (
    "systemd-oomd itself is running, and kills beside reactor: systemctl disable --now systemd-oomd, then "
    'put reactor in its place (see "Instead of systemd-oomd" in pressure.md)'
)


def managed_oom_on_this_machine(settings: Settings) -> tuple[str, ...]:
    """Return what of `systemdOomd: replace` does not count on this machine now, and why."""
    if settings.systemd_oomd is SystemdOomd.IGNORE:
        return ()
    try:
        tree = CgroupTree.discover()
    except (OSError, ReactorError):
        return ()
    return tuple(why for _, why in managed_oom_findings(settings, tree))


def managed_oom_findings(
    settings: Settings,
    tree: CgroupTree | None,
    *,
    proc: Path = PROC,
    path: Path = Path(PATH),
    root: Path = Path("/"),
) -> Iterator[tuple[str, str]]:
    """Yield where the key is in the document and what to say of it: what does not count, and why."""
    if settings.systemd_oomd is SystemdOomd.IGNORE or tree is None:
        return
    if tree.version is CgroupVersion.V1:
        why = "on cgroup v1, as on this machine, only ManagedOOMSwap= counts: units have no memory pressure"
        yield _KEY, why
    problems: dict[str, str] = {}
    oomd_defaults(problems, root=root)
    yield from ((_KEY, f"{what}: {why}; the default counts") for what, why in problems.items())
    if _is_running(tree, proc):
        yield _KEY, _RUNS_ITSELF
    report = _report(path)
    if isinstance(report, str):
        yield _KEY, f"has no effect on this machine now: {report}"
        return
    if report.problem:
        yield _KEY, f"{path}: {report.problem}"
    parents = [PodParent(one) for one in settings.pod_parents]
    refused = {unit.cgroup: refused_because(unit, parents) for unit in report.units}
    shown = [f"{cgroup}: {why}" for cgroup, why in refused.items() if why is not None]
    for one in shown[:_SHOWN]:
        yield _KEY, f"does not count: {one}"
    if len(shown) > _SHOWN:
        yield _KEY, f"does not count: {len(shown) - _SHOWN} more units"


def _report(path: Path) -> ManagedOomReport | str:
    """Return what the file says, or why that can't be had."""
    try:
        return read_report_at_once(read(path, LONGEST_BYTES))
    except FileNotFoundError:
        return f"{path} is missing: systemd-oomd.service does not run reactor"
    except PermissionError as error:
        return f"{path}: {error.strerror}"
    except (OSError, ManagedOomError) as error:
        return f"{path}: {error}"


def _is_running(tree: CgroupTree, proc: Path) -> bool:
    """Return whether a process of the unit is systemd-oomd itself."""
    try:
        pids = (Path(tree.path(_UNIT)) / "cgroup.procs").read_text(encoding="ascii").split()
        return any((proc / pid / "comm").read_text(encoding="utf-8").strip() == _COMM for pid in pids)
    except (OSError, ValueError):
        return False
