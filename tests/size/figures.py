"""The figures: from the tree itself, and from one kill by a traced daemon on a virtual node."""

from __future__ import annotations

import ast
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import reactor
from reactor.errors import NoDaemonError
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold
from tests.support.this_machine import cgroup_tree
from tests.support.waiting import eventually

ROOT: Final = Path(reactor.__file__).parent
CORE: Final = (
    *("guard", "policy", "model", "act", "sources", "observe", "workloads", "link", "reclaim"),
    *("managed_oom", "podman", "shutdown", "warrants", "oom_scores", "rules", "time_left"),
)
FEATURES_OF_GUARD: Final = ("guard", "warrants", "oom_scores", "rules", "time_left")
SPINE: Final = ("guard", "policy", "sources", "observe", "act", "model")
# Composes everything, and so names it; the words of the configuration.
NOT_SPINE: Final = frozenset({"guard/build.py", "model/settings.py"})
PASS: Final = ("guard/pass_.py", "Passes", "make")
FEATURES: Final = {
    "warrants": r"warrant|kernel_kill",
    "the brake": r"\bbrak",
    "order of the OOM killer": r"oom_order|OomOrder",
    "scores of manifests' pods": r"oom_scores|ManifestScores",
    "one process of a pod": r"process_victim|ProcessVictim|one_process|OneProcess",
    "rules": r"\brules?\b|Rule\b|Firing",
    "units of systemd-oomd": r"managed_oom|ManagedOom",
    "reclaim before a soft eviction": r"soft_reclaim|SoftReclaim",
}
_BRANCHES: Final = (ast.If, ast.For, ast.While, ast.IfExp, ast.Try, ast.match_case, ast.comprehension)
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure and its goal."""

    name: str
    value: int
    goal: int | None = None
    more_is_better: bool = False

    def is_worse(self, committed: int) -> bool:
        """Return whether it is worse than the committed figure."""
        return self.value < committed if self.more_is_better else self.value > committed


def rows(trace: Mapping[str, Any] | None) -> list[Row]:
    """Return all rows; those of a kill only with a trace."""
    everything = list(ROOT.rglob("*.py"))
    make, class_node = _pass()
    found = [
        Row(name="modules in all", value=len(everything), goal=330),
        Row(
            name="median length of a module",
            value=int(statistics.median(map(_lines, everything))),
            goal=150,
            more_is_better=True,
        ),
        Row(name="modules of guard", value=len(_of(["guard"])), goal=40),
        Row(name="lines of the core", value=sum(map(_lines, _of(CORE))), goal=25_000),
        Row(name="lines of guard with features", value=sum(map(_lines, _of(FEATURES_OF_GUARD))), goal=9_000),
        Row(name="lines of the pass", value=(make.end_lineno or 0) - make.lineno + 1, goal=60),
        Row(
            name="branches of the pass",
            value=sum(isinstance(node, _BRANCHES) for node in ast.walk(make)),
            goal=6,
        ),
        Row(
            name="methods of its class that write policy state",
            value=sum(_writes_state(one) for one in class_node.body),
            goal=0,
        ),
        Row(
            name="files of the spine that mention a feature, median of eight",
            value=int(statistics.median(len(files) for files in mentions().values())),
            goal=1,
        ),
    ]
    if trace is not None:
        lines = sum(_lines(ROOT / name) for name in trace["files"])
        found += [
            Row(name="modules from the wake to SIGKILL", value=len(trace["files"]), goal=34),
            Row(name="lines of those", value=lines, goal=8_000),
            Row(name="hops that no search follows", value=len(trace["lost"]), goal=0),
        ]
    return found


def mentions() -> dict[str, list[str]]:
    """Return which files of the spine mention each feature, but for those that are named for it."""
    spine = {str(path.relative_to(ROOT)): path.read_text() for path in _of(SPINE)}
    return {
        feature: [
            name
            for name, text in spine.items()
            if name not in NOT_SPINE and not re.search(pattern, name) and re.search(pattern, text)
        ]
        for feature, pattern in FEATURES.items()
    }


def traced_kill() -> dict[str, Any]:
    """Return what the first kill of a daemon goes through; everything optional is off.

    One process brings the node near the crossing. Another crosses it once the kill of their pod is prepared.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        VirtualNode(cgroup_tree(), 512 * _MIB, "reactor-size") as node,
    ):
        daemon = RunningDaemon(Path(directory), node.cgroup)
        daemon.configure(
            {"evictionHard": {"memory.available": "64Mi"}}, {"housekeepingInterval": "1h"}
        )  # no other wake makes the pass that kills
        out, pods = Path(directory) / "trace.json", node.tree.path(node.cgroup)
        command = ["-m", "tests.size.traced", str(out), str(pods), "run", "--config", str(daemon.config_path)]
        with subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL) as process:
            try:
                eventually(lambda: _answers(daemon), "the daemon answers")
                hog = node.add_pod("hog")
                node.spawn(hog, hold(435))
                eventually(out.with_suffix(".prepared").exists, "the kill is prepared")
                node.spawn(hog, hold(60)).wait(60)
                eventually(out.exists, "the kill is noted")
            finally:
                process.terminate()
        return dict(json.loads(out.read_text()))


def _answers(daemon: RunningDaemon) -> bool:
    with suppress(NoDaemonError):
        return bool(daemon.status())
    return False


def _pass() -> tuple[ast.FunctionDef, ast.ClassDef]:
    path, class_name, function = PASS
    tree = ast.parse((ROOT / path).read_text())
    (class_node,) = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == class_name)
    (make,) = (one for one in class_node.body if isinstance(one, ast.FunctionDef) and one.name == function)
    return make, class_node


def _writes_state(method: ast.stmt) -> bool:
    return any(
        isinstance(target, ast.Attribute) and target.attr == "state"
        for node in ast.walk(method)
        for one in _targets(node)
        for target in ast.walk(one)
    )


def _targets(node: ast.AST) -> Sequence[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _of(packages: Sequence[str]) -> list[Path]:
    return [path for package in packages for path in _files(ROOT / package)]


def _files(package: Path) -> Iterator[Path]:
    if package.is_dir():
        yield from sorted(package.rglob("*.py"))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())
