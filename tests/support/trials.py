"""What the hostile suites count: trials, wrong victims, storms, and ends of the guard that nobody asked for.

A test is marked with its suite (`pytest.mark.suite("storms")`), names the pods that are right to evict and
the processes that have to live, and is judged at its end, also where it failed: by journal and processes.
`--figures FILE` keeps the sums as JSON; `python -m tests.support.trials FILE… DOCUMENT` writes them as tables
into the document, between its marks.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.text import counted

_BEGIN: Final = "<!-- figures of make test-hostile: begin -->"
_END: Final = "<!-- figures of make test-hostile: end -->"
_COUNTS: Final = {
    "tests": "tests",
    "failed": "failed",
    "trials": "trials",
    "evictions": "evictions",
    "wrong_victims": "wrong victims",
    "futile_evictions": "futile evictions",
    "storms": "storms",
    "guard_ends": "ends of the guard",
}
_FAULTS: Final = ("wrong_victims", "storms", "guard_ends")
_SHOWN: Final = ("trials", "evictions", *_FAULTS)  # the others are in the JSON


class Daemon(Protocol):
    """A daemon under test; see tests.support.daemon."""

    unasked_ends: list[int]

    def stop(self) -> int:
        """End it."""

    def evicted(self) -> list[str]:
        """Return whom it has evicted, by name."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """What one test tried, and what came of it.

    `rounds` are its attempts. `right` are the pods that it is right to evict, `needed` how many of them have
    to go (None: all of them). `futile_at_most` is set where evicting can't end the shortage: so many pods may
    die before the guard has seen that. `guard_ends` are daemons that ended without having been asked to.
    """

    suite: str
    test: str
    rounds: int = 1
    right: set[str] = field(default_factory=set)
    needed: int | None = None
    futile_at_most: int | None = None
    evicted: list[str] = field(default_factory=list)
    guard_ends: int = 0
    failed: bool = False
    skipped: bool = False
    _innocents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _dead_innocents: int = 0
    _evictions: int = 0
    _wrong_victims: int = 0

    def must_live(self, processes: Iterable[subprocess.Popen[bytes]]) -> None:
        """Count each of these as a wrong victim where it is dead when the trial is judged."""
        self._innocents += processes

    def outlived(self, process: subprocess.Popen[bytes]) -> bool:
        """Return whether a process that has to live is alive now; it is a wrong victim if not."""
        is_dead = process.poll() is not None
        self._dead_innocents += is_dead
        return not is_dead

    def judge(self, evicted: Iterable[str], guard_ends: int = 0) -> None:
        """Take note of who was evicted, by name, and who lives, before the processes are cleaned up."""
        self.evicted += evicted
        self.guard_ends += guard_ends
        self._dead_innocents += sum(process.poll() is not None for process in self._innocents)
        self._innocents.clear()

    def end(self, daemon: Daemon) -> None:
        """Stop a daemon and judge it. Raises AssertionError where it has done what it must not."""
        try:
            daemon.stop()
        finally:
            self.judge(daemon.evicted(), len(daemon.unasked_ends))
        assert self.is_clean

    def add(self, *, evictions: int, wrong_victims: int, guard_ends: int) -> None:
        """Add what another judge has found."""
        self._evictions += evictions
        self._wrong_victims += wrong_victims
        self.guard_ends += guard_ends

    @property
    def evictions(self) -> int:
        return len(self.evicted) + self._evictions

    @property
    def is_clean(self) -> bool:
        return not (self.wrong_victims or self.storms or self.guard_ends)

    @property
    def wrong_victims(self) -> int:
        """Return how many died who should have lived, by the guard's word or by the kernel's."""
        if self.futile_at_most is not None:
            return 0
        return max(len(self._others()), self._dead_innocents) + self._wrong_victims

    @property
    def futile_evictions(self) -> int:
        return 0 if self.futile_at_most is None else max(len(self._others()), self._dead_innocents)

    @property
    def storms(self) -> int:
        """Return 1 where more pods died than were needed, or than it may cost to see that none helps."""
        if self.futile_at_most is not None:
            return int(self.futile_evictions > self.futile_at_most)
        needed = len(self.right) if self.needed is None else self.needed
        return int(len(set(self.evicted)) > needed)

    def _others(self) -> list[str]:
        return [name for name in self.evicted if name not in self.right]


_TRIAL: Final = pytest.StashKey[Trial]()


def trial_of(item: pytest.Item) -> Trial:
    """Return a test's trial. Raises KeyError where the test is marked with no suite."""
    return item.stash[_TRIAL]


class Trials:
    """A plugin of pytest's that sums up the trials of a run, and keeps the sums in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._done: list[Trial] = []
        self._began = time.time()
        self._load = os.getloadavg()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        mark = item.get_closest_marker("suite")
        if mark is not None:
            item.stash[_TRIAL] = Trial(suite=mark.args[0], test=item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        trial = item.stash.get(_TRIAL, None)
        if trial is not None:
            trial.failed |= report.failed
            trial.skipped |= report.skipped
            if call.when == "teardown":
                self._done.append(trial)
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._path is None or not self._done:
            return
        figures = self._figures()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(figures, indent=1) + "\n")
        terminalreporter.section("trials")
        terminalreporter.write_line("\n".join([*table(figures), "", f"kept in {self._path}"]))

    def _figures(self) -> dict[str, Any]:
        suites = sorted({trial.suite for trial in self._done})
        return {
            "at": time.strftime("%Y-%m-%d", time.gmtime(self._began)),
            "seconds": round(time.time() - self._began),
            "machine": _machine(),
            "load": {"before": self._load[0], "after": os.getloadavg()[0]},
            "suites": {
                suite: _sums([trial for trial in self._done if trial.suite == suite]) for suite in suites
            },
            "unclean": [trial.test for trial in self._done if trial.failed or not trial.is_clean],
        }


def _sums(trials: Sequence[Trial]) -> dict[str, int]:
    made = [trial for trial in trials if not trial.skipped]
    of: dict[str, Callable[[Trial], int]] = {
        "tests": lambda _: 1,
        "failed": lambda trial: trial.failed,
        "trials": lambda trial: trial.rounds,
        "evictions": lambda trial: trial.evictions,
        "wrong_victims": lambda trial: trial.wrong_victims,
        "futile_evictions": lambda trial: trial.futile_evictions,
        "storms": lambda trial: trial.storms,
        "guard_ends": lambda trial: trial.guard_ends,
    }
    return {
        **{name: sum(count(trial) for trial in made) for name, count in of.items()},
        "skipped": len(trials) - len(made),
    }


def _machine() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    try:
        version = f"cgroup {CgroupTree.discover().version.name.lower()}"
    except ReactorError as error:
        version = str(error)
    return {
        "cpus": os.cpu_count(),
        "model": models[0] if models else platform.machine(),
        "kernel": platform.release().partition("-")[0],
        "memory_controller": version,
    }


def table(figures: dict[str, Any]) -> list[str]:
    """Return the figures of one run as lines of Markdown: a row for each suite with a fault, and the sums."""
    machine, load, suites = figures["machine"], figures["load"], figures["suites"]
    faulty = [(suite, sums) for suite, sums in suites.items() if any(sums[name] for name in _FAULTS)]
    rows = [*faulty, ("all", _total(suites.values()))]
    failed, skipped = (sum(sums[name] for sums in suites.values()) for name in ("failed", "skipped"))
    run = [
        figures["at"],
        f"kernel {machine['kernel']}",
        machine["memory_controller"],
        f"{machine['cpus']} CPUs ({machine['model']})",
        f"load {load['before']:.1f} before and {load['after']:.1f} after",
        f"{figures['seconds']:,} s",
        *([f"{counted(failed, 'test')} failed"] if failed else []),
        *([f"{counted(skipped, 'test')} skipped"] if skipped else []),
    ]
    return [
        f"{', '.join(run)}:",
        "",
        f"| suite | {' | '.join(_COUNTS[name] for name in _SHOWN)} |",
        f"|---|{'--:|' * len(_SHOWN)}",
        *(f"| {suite} | {' | '.join(f'{sums[name]:,}' for name in _SHOWN)} |" for suite, sums in rows),
    ]


def _total(suites: Iterable[dict[str, int]]) -> dict[str, int]:
    listed = list(suites)
    return {name: sum(sums[name] for sums in listed) for name in _COUNTS}


def merged(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs, those on one machine as one run."""
    by_machine: dict[str, dict[str, Any]] = {}
    for run in runs:
        key = json.dumps(run["machine"])
        before = by_machine.get(key)
        by_machine[key] = run if before is None else _joined(before, run)
    return list(by_machine.values())


def _joined(before: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    suites = dict(before["suites"])
    for suite, sums in run["suites"].items():
        others = suites.get(suite, {})
        suites[suite] = {name: count + others.get(name, 0) for name, count in sums.items()}
    return {
        **run,
        "seconds": before["seconds"] + run["seconds"],
        "load": {"before": before["load"]["before"], "after": run["load"]["after"]},
        "suites": dict(sorted(suites.items())),
        "unclean": [*before["unclean"], *run["unclean"]],
    }


def with_tables(document: str, runs: Sequence[dict[str, Any]]) -> str:
    """Return a document with a table for each machine between its marks. Raises ValueError without marks."""
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"no {_BEGIN} and {_END}")
    tables = "\n\n".join("\n".join(table(figures)) for figures in merged(runs))
    return f"{before}{begin}\n{tables}\n{end}{after}"


def main(*arguments: str) -> None:
    """Write the tables of files with figures into a document."""
    *files, document = map(Path, arguments)
    document.write_text(with_tables(document.read_text(), [json.loads(file.read_text()) for file in files]))


if __name__ == "__main__":
    main(*sys.argv[1:])
