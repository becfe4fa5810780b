"""Tests over a boot: what runs before a machine goes down, how it does so, and what the next boot shows.

Each story is a file of guest/boots, whose tests are marked `before` or `after`. The disk stays the same.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from direct_qemu import DirectQemu
from host import ASK_SECONDS, say
from machine import Machine, Result

_DOWN_SECONDS: Final = 600
_SHUT_DOWN: Final = "sudo systemctl poweroff"
_LOOK_SECONDS: Final = 0.5
_JOURNAL: Final = "/var/log/reactor/journal.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """`name` is that of its file in guest/boots.

    Where a shell condition says when, the power is cut as soon as it holds in the guest, in the middle of its
    shutdown; else the guest switches itself off.
    """

    name: str
    power_is_cut_when: str | None = None


STORIES: Final = (
    Story(name="power_off"),
    # The first group of pods has ended, the second has begun.
    Story(name="lost_power", power_is_cut_when=f'sudo grep -q \'"phase":"group"\' {_JOURNAL}'),
    Story(name="short_maximum"),
)


def run_stories(
    machine: Machine, hypervisor: DirectQemu, stories: Sequence[Story], arguments: Sequence[str]
) -> Result:
    """Run the stories, one after the other; those after one that fails are not run."""
    started = time.monotonic()
    result = Result(machine=machine.name, status=0, seconds=0, detail="no story")
    for story in stories:
        say(f"{machine.name}: {story.name}")
        result = _told(machine, hypervisor, story, arguments)
        if result.status:
            break
    seconds = time.monotonic() - started
    return Result(machine=machine.name, status=result.status, seconds=seconds, detail=result.detail)


def _told(machine: Machine, hypervisor: DirectQemu, story: Story, arguments: Sequence[str]) -> Result:
    file = f"boots/{story.name}.py"
    before = machine.test(["-m", "before", *arguments, file])
    if before.status:
        return before
    why = _go_down(machine, hypervisor, story)
    if why is not None:
        return Result(machine=machine.name, status=1, seconds=0, detail=f"{story.name}: {why}")
    hypervisor.boot_again(machine.definition, machine.logs / "up.log")
    machine.up()
    return machine.test(["-m", "after", *arguments, file])


def _go_down(machine: Machine, hypervisor: DirectQemu, story: Story) -> str | None:
    """Have the machine go down, and return once it is; in words why it did not go as it should have."""
    machine.ssh(_SHUT_DOWN, limit_seconds=ASK_SECONDS)
    deadline = time.monotonic() + _DOWN_SECONDS
    while hypervisor.is_running(machine.name):
        if time.monotonic() > deadline:
            return f"it is not down {_DOWN_SECONDS} s after {_SHUT_DOWN!r}"
        if story.power_is_cut_when is not None and _holds(machine, story.power_is_cut_when):
            hypervisor.cut_power(machine.name)
            return None
        time.sleep(_LOOK_SECONDS)
    return None if story.power_is_cut_when is None else "it went down before its power could be cut"


def _holds(machine: Machine, condition: str) -> bool:
    try:
        return machine.ssh(condition, limit_seconds=ASK_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False
