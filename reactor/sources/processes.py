"""What wakes the loop for processes: a chain, as for memory.

ebpf-pids    v2   at the fork that crosses a threshold on pid.available
processes         forks by the process connector, sampled in the kernel
ticker            whatever else fails (its own source)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.model.settings import SourceSettings
from reactor.model.wakes import WakeKind
from reactor.sources.catalogue import switched_on
from reactor.sources.chain import Chain, Step
from reactor.sources.ebpf_pids import EbpfPids
from reactor.sources.proc_connector import ProcConnector
from reactor.sources.process_levels import ProcessLevels
from reactor.sources.wakes import SourceBoard, Wakes


class ProcessStep(Step, Protocol):
    """One way of being woken for processes."""

    def expect(self, levels: ProcessLevels | None) -> None:
        """Take note of the thresholds and of how things stood at the last pass. Never blocks."""


class ProcessSource:
    """Wakes the loop when forks cross, or come near, a threshold on pid.available.

    `steps` replaces the chain; those that come first are preferred.
    """

    def __init__(
        self,
        tree: CgroupTree,
        settings: SourceSettings,
        wakes: Wakes,
        board: SourceBoard,
        *,
        steps: Sequence[ProcessStep] | None = None,
    ) -> None:
        if steps is None:
            steps = (
                EbpfPids(tree, wakes, board, settings.ebpf_loader),
                ProcConnector(wakes, board),
            )
        self._steps = steps
        self._chain = Chain(steps, switched_on(settings), wakes, board, kind=WakeKind.PROCESSES)

    def expect(self, levels: ProcessLevels | None) -> None:
        """Tell, after each pass, what the thresholds are and how near they are (None: not known)."""
        for step in self._steps:
            step.expect(levels)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep one step of the chain going until cancelled."""
        await self._chain.run(task_status=task_status)

    async def wait_armed(self) -> str:
        """Return the name of the step that is watching; wait while there is none."""
        return await self._chain.wait_armed()
