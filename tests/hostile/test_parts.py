"""An exception in every part of the daemon in turn: a hog is still evicted, and the part is restarted."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from reactor.config.settings import load_settings
from reactor.guard.daemon import Daemon
from reactor.guard.run import run
from reactor.model.settings import Settings
from reactor.supervisor import PartHealth
from reactor.testbed.virtual_node import VirtualNode
from tests.support.part_faults import PartFaults
from tests.support.processes import hold
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.suite("crash-only")

# What is over once the daemon runs, or does not come by itself here: a failure can't be had at any moment.
_OVER = {
    "first list of pods",
    "restoring the state",
    "giving back the OOM killer's order",
    "abandoned memory.high",
    "abandoned kills",
    "watchdog",
}
_NOT_HERE = {
    "end",
    "oom record",
    "kubernetes notes",
    "answers",
    "reclaim",
    "memory reclaim",
    "pod memory reclaim",
    "pods at shutdown",
}


def _configured(node: VirtualNode, directory: Path) -> tuple[Path, Settings]:
    """Write a configuration; return its path and what it says."""
    document = {
        "evictionHard": {"memory.available": "64Mi"},
        "reactor": {
            "nodeCgroup": node.cgroup,
            "housekeepingInterval": "5s",
            "metrics": "127.0.0.1:0",
            "socket": str(directory / "s.sock"),
            "stateFile": str(directory / "state.json"),
            "journal": {"path": str(directory / "journal.jsonl")},
            "realtime": {"fifoPriority": 0, "lockMemory": False, "oomScoreAdj": None},
        },
    }
    path = directory / "reactor.json"
    path.write_text(json.dumps(document))
    return path, load_settings(path)


@pytest.fixture
def ended(trial: Trial) -> Iterator[list[str]]:
    """Return the list that takes the names of the pods whose evictions are over."""
    names: list[str] = []
    yield names
    trial.judge(names)
    assert trial.is_clean


async def _evicts(node: VirtualNode, trial: Trial, name: str, ended: list[str]) -> None:
    """Have a hog evicted, and wait until that is over."""
    trial.right.add(name)
    victim = node.spawn(node.add_pod(name), hold(470))
    with trio.fail_after(20 * PATIENCE):
        assert -signal.SIGKILL == await trio.to_thread.run_sync(victim.wait, 20 * PATIENCE)
        while name not in ended:  # noqa: ASYNC110 - a plain list
            await trio.sleep(0.01)


def _part(daemon: Daemon, name: str):
    return next(state for state in daemon.supervisor.states if state.name == name)


async def test_an_exception_in_every_part_in_turn_costs_no_eviction_and_the_part_is_restarted(
    node: VirtualNode, trial: Trial, ended: list[str], tmp_path: Path
) -> None:
    faults = PartFaults()
    async with trio.open_nursery() as nursery:
        path, settings = _configured(node, tmp_path)
        daemon = await nursery.start(partial(run, settings, faults=faults, config_path=path))
        daemon.recorder.on_ended = lambda _, ending: ended.append(ending.eviction.pod.name)
        await _evicts(node, trial, "first", ended)
        names = [state.name for state in daemon.supervisor.states if state.name in faults.seen - _OVER]
        assert {state.name for state in daemon.supervisor.states} == {*names, *_OVER, *_NOT_HERE}
        for number, name in enumerate(names):
            faults.fail(name)
            await _evicts(node, trial, f"hog-{number}", ended)
            await until(lambda name=name: 1 == _part(daemon, name).restarts, f"a failure of {name}")
            assert name in faults.failed
            assert "InjectedError" in daemon.reports.problems()[f"part {name}"]
        await _evicts(node, trial, "last", ended)
        with trio.fail_after(20 * PATIENCE):
            while any(_part(daemon, name).health is not PartHealth.RUNNING for name in names):  # noqa: ASYNC110
                await trio.sleep(0.01)
        trial.rounds = len(names)
        print(f"parts failed in turn, a hog evicted after each: {', '.join(names)}")
        nursery.cancel_scope.cancel()

    assert {
        "signals",
        "housekeeping",
        "ticker",
        "filesystems",
        "records",
        "evictions",
        "steward",
    } <= set(names)


async def test_a_configuration_that_no_generation_can_begin_with_is_refused_and_the_one_before_it_evicts(
    node: VirtualNode, trial: Trial, ended: list[str], tmp_path: Path
) -> None:
    trial.rounds = 2
    _, settings = _configured(node, tmp_path)
    async with trio.open_nursery() as nursery:
        daemon = await nursery.start(partial(run, settings))
        daemon.recorder.on_ended = lambda _, ending: ended.append(ending.eviction.pod.name)
        unbuildable = replace(settings, housekeeping_interval_seconds=None)
        undecidable = replace(settings, eviction=replace(settings.eviction, thresholds=(None,)))
        for number, broken in enumerate((unbuildable, undecidable)):
            daemon.reload(broken)
            with trio.fail_after(20 * PATIENCE):
                while not daemon.reports.problems().get("configuration"):  # noqa: ASYNC110 - a plain dict
                    await trio.sleep(0.01)
            await _evicts(node, trial, f"hog-{number}", ended)
            assert daemon.reports.settings.eviction == settings.eviction
        nursery.cancel_scope.cancel()
