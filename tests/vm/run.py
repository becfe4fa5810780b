#!/usr/bin/env python3
"""Bring the machines of vagrant/Vagrantfile up, run tests/vm/guest in them, take them away again.

Exit status: 0 all passed, 1 a test failed, 2 wrong usage or a host that lacks something, 3 a machine was lost
(it never came up, its kernel panicked, it stopped answering): nothing is known about the code then.

Only the standard library is used on the host: this runs before anything else is installed.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

import host
import wheelhouse
from host import CACHE, ROOT, HostError, say
from machine import MACHINES, GuestLostError, Machine, Result


def up(names: Sequence[str]) -> int:
    """Bring machines up and install the wheel in them; they stay up."""
    host.prepare()
    for machine in map(Machine, names):
        try:
            machine.up()
            machine.install(wheelhouse.collect(ROOT, CACHE, machine.python))
        except GuestLostError as error:
            machine.collect()
            say(f"{machine.name}: LOST: {error}")
            return 3
        say(f"{machine.name}: ssh -F {machine.ssh_config} {machine.name}")
    return 0


def test(names: Sequence[str], *, keep: bool, arguments: Sequence[str]) -> int:
    """Test the machines one after the other and sum them up."""
    host.prepare()
    results = [_test_one(Machine(name), keep=keep, arguments=arguments) for name in names]
    host.release()
    for result in results:
        say(f"{result.machine}: {result.detail}, {result.seconds:.0f} s")
    return max(result.status for result in results)


def _test_one(machine: Machine, *, keep: bool, arguments: Sequence[str]) -> Result:
    """Run the tests in one machine; one that was not up before is taken away afterwards."""
    started = time.monotonic()
    was_running = machine.is_running()
    try:
        machine.up()
        machine.install(wheelhouse.collect(ROOT, CACHE, machine.python))
        result = machine.test(arguments)
    except GuestLostError as error:
        seconds = time.monotonic() - started
        result = Result(machine=machine.name, status=3, seconds=seconds, detail=f"LOST: {error}")
    if result.status:
        machine.collect()
    if not was_running and not keep:
        machine.destroy()
    return result


def destroy(names: Sequence[str]) -> int:
    """Take the machines away, and with all of them the libvirt that was started for them."""
    if not (CACHE / "machines").exists():
        return 0  # none was ever brought up
    host.prepare()
    for machine in map(Machine, names):
        machine.destroy()
    if set(names) == set(MACHINES):
        host.forget_boxes()
    host.release()
    return 0


def main() -> int:
    """Parse the arguments, run one verb."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("verb", choices=["up", "test", "destroy"])
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help=f"of {', '.join(MACHINES)}; none: all")
    parser.add_argument("--keep", action="store_true", help="leave the machines up after the tests")
    parser.add_argument("--pytest", default="", help="arguments for pytest in the guest, as one word")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.machines) - set(MACHINES))
    if unknown:
        parser.error(f"no such machine: {', '.join(unknown)}; there are {', '.join(MACHINES)}")
    names = arguments.machines or list(MACHINES)
    verbs = {
        "up": lambda: up(names),
        "test": lambda: test(names, keep=arguments.keep, arguments=shlex.split(arguments.pytest)),
        "destroy": lambda: destroy(names),
    }
    try:
        with host.exclusively():
            return verbs[arguments.verb]()
    except (HostError, subprocess.SubprocessError, OSError) as error:
        print(f"vm: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
