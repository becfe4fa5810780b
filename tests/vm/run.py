#!/usr/bin/env python3
"""Bring the machines of vagrant/machines.json up, test and measure in them, take them away again.

Exit status: 0 all passed, 1 a test failed or the wheel does not install, 2 wrong usage or a host that lacks
something, 3 a machine was lost (it never came up, its kernel panicked, it stopped answering): nothing is
known about the code then.

Only the standard library is used on the host: this runs before anything else is installed.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import boots
import debian_packages
import host
import kube_programs
import outside as outside_suites
import wheelhouse
from definitions import MACHINES, NATIVES, USUAL
from direct_qemu import DirectQemu
from figures import tables
from host import CACHE, HOST_SECONDS, ROOT, GuestLostError, HostError, InstallError, say
from machine import Hypervisor, Machine, Result
from vagrant_libvirt import VagrantLibvirt

_RACE = "race.json"
_PAGES = ("test_package.py", "test_podman.py", "test_oomd_package.py")
_OF_THE_PAGES = ("prometheus", "podman", "busybox-static", "systemd-oomd")
_OF_THE_RACE = ("systemd-oomd",)
_RACE_SWAP_MIB = 512


def up(names: Sequence[str], hypervisor: Hypervisor) -> int:
    """Bring machines up and install the wheel in them; they stay up."""
    hypervisor.prepare()
    for machine in (Machine(name, hypervisor) for name in names):
        try:
            _install(machine)
        except (GuestLostError, InstallError) as error:
            machine.collect()
            lost = isinstance(error, GuestLostError)
            say(f"{machine.name}: {'LOST' if lost else 'not installed'}: {error}")
            return 3 if lost else 1
        say(f"{machine.name}: ssh -F {machine.ssh_config} {machine.name}")
    return 0


def in_each(
    names: Sequence[str], hypervisor: Hypervisor, work: Callable[[Machine], Result], *, keep: bool
) -> int:
    """Do the work in the machines, one after the other, and sum it up."""
    hypervisor.prepare()
    try:
        results = [_in_one(Machine(name, hypervisor), work, keep=keep) for name in names]
    finally:
        hypervisor.release()
    for result in results:
        say(f"{result.machine}: {result.detail}, {result.seconds:.0f} s")
    return exit_status(results)


def exit_status(results: Sequence[Result]) -> int:
    """Return the worst of the results; a failed test is worse than a lost machine."""
    statuses = {result.status for result in results}
    return 1 if 1 in statuses else max(statuses)


def _in_one(machine: Machine, work: Callable[[Machine], Result], *, keep: bool) -> Result:
    """Do the work in one machine; one that was not up before is taken away afterwards, whatever happens."""
    started = time.monotonic()
    was_running = machine.is_running()
    try:
        try:
            _install(machine)
            result = work(machine)
        except (GuestLostError, InstallError) as error:
            status, word = (1, "not installed") if isinstance(error, InstallError) else (3, "LOST")
            seconds = time.monotonic() - started
            result = Result(machine=machine.name, status=status, seconds=seconds, detail=f"{word}: {error}")
        if result.status:
            machine.collect()
    finally:
        if not was_running and not keep:
            machine.destroy()
    return result


def _install(machine: Machine) -> None:
    machine.up()
    machine.install(wheelhouse.collect(ROOT, CACHE, machine.definition))


def test(names: Sequence[str], hypervisor: Hypervisor, arguments: argparse.Namespace) -> int:
    """Run the guest's own tests in the machines."""
    words = shlex.split(arguments.pytest)
    return in_each(names, hypervisor, lambda machine: machine.test(words), keep=arguments.keep)


def boot_again(names: Sequence[str], hypervisor: DirectQemu, arguments: argparse.Namespace) -> int:
    """Test what is to be there after the machines' next boot, by QEMU alone."""
    wanted = arguments.stories.split(",")
    stories = [story for story in boots.STORIES if not arguments.stories or story.name in wanted]
    words = shlex.split(arguments.pytest)
    return in_each(
        names,
        hypervisor,
        lambda machine: boots.run_stories(machine, hypervisor, stories, words),
        keep=arguments.keep,
    )


def kube(names: Sequence[str], hypervisor: Hypervisor, arguments: argparse.Namespace) -> int:
    """Test with containerd in the machines, pods in scopes that systemd makes."""
    if foreign := sorted(set(names) - set(NATIVES)):
        raise HostError(f"{', '.join(foreign)}: kube has programs for {', '.join(NATIVES)}")
    programs = {name: kube_programs.collect(CACHE, MACHINES[name].suite) for name in names}
    words = shlex.split(arguments.pytest)
    return in_each(
        names,
        hypervisor,
        lambda machine: machine.test_kube(programs[machine.name], words),
        keep=arguments.keep,
    )


def suites(names: Sequence[str], hypervisor: Hypervisor, arguments: argparse.Namespace) -> int:
    """Run suites of the checkout in the machines, against their kernels."""
    words = shlex.split(arguments.pytest)
    return in_each(names, hypervisor, lambda machine: machine.test_suites(words), keep=arguments.keep)


def soak(names: Sequence[str], hypervisor: Hypervisor, arguments: argparse.Namespace) -> int:
    """Run the soak in the machines with warrants: on cgroup v2 the kernel itself can kill."""
    words = ["--warrants", *shlex.split(arguments.soak)]
    return in_each(names, hypervisor, lambda machine: machine.soak(words), keep=arguments.keep)


def package(names: Sequence[str], hypervisor: Hypervisor, arguments: argparse.Namespace) -> int:
    """Follow pages of docs in the machines with the newest package of dist, upgraded on the way."""
    packages = _two_versions()
    words = ["--capture=no", *shlex.split(arguments.pytest), *_PAGES]

    def follow(machine: Machine) -> Result:
        others = debian_packages.collect(CACHE, machine.definition.suite, machine.packages(), _OF_THE_PAGES)
        machine.provide(others, "debian")
        machine.provide(packages, "packages")
        machine.provide(ROOT / "docs", "docs")
        return machine.test(words)

    return in_each(names, hypervisor, follow, keep=arguments.keep)


def outside(names: Sequence[str], hypervisor: Hypervisor, arguments: argparse.Namespace) -> int:
    """Run what others wrote in the machines, fetched now; its verdicts are kept beside the logs."""
    words = ["--capture=no", "test_outside.py", *shlex.split(arguments.pytest)]

    def run_outside(machine: Machine) -> Result:
        found = outside_suites.collect(CACHE, machine.definition.suite, machine.packages())
        machine.provide(found, "outside")
        result = machine.test(words)
        kept = machine.ssh("cat /var/tmp/outside.json", limit_seconds=host.ASK_SECONDS)
        if kept.returncode == 0:
            (machine.logs / "outside.json").write_text(kept.stdout)
            say(f"{machine.name}: verdicts in {machine.logs / 'outside.json'}")
        return result

    return in_each(names, hypervisor, run_outside, keep=arguments.keep)


def _two_versions() -> Path:
    """Return a directory with the newest package of dist and a later version of it. Raises HostError."""
    packages = (ROOT / "dist").glob(f"reactor_*_{host.NATIVE}.deb")
    built = sorted(packages, key=lambda path: path.stat().st_mtime)
    if not built:
        raise HostError("no package in dist: make deb")
    directory, later = CACHE / "packages", CACHE / "package-later"
    for old in (directory, later):
        shutil.rmtree(old, ignore_errors=True)
    directory.mkdir(parents=True)
    shutil.copy(built[-1], directory)
    host.run(["dpkg-deb", "--raw-extract", built[-1], later], limit_seconds=HOST_SECONDS)
    control = later / "DEBIAN/control"
    control.write_text(re.sub(r"^(Version: .*)$", r"\1+later", control.read_text(), flags=re.MULTILINE))
    host.run(["dpkg-deb", "--root-owner-group", "--build", later, directory], limit_seconds=HOST_SECONDS)
    return directory


def bench(names: Sequence[str], hypervisor: Hypervisor, arguments: argparse.Namespace) -> int:
    """Measure sources or parts in the machines, keep the figures, and print those of sources as tables."""
    wanted = ["--by-source", "--rounds", str(arguments.rounds), "--skip", arguments.skip]
    kept = "figures"
    if arguments.parts:
        wanted, kept = ["--parts", arguments.parts, "--runs", str(arguments.runs)], "parts"
        wanted += ["--turns", str(arguments.turns)]
    kept += "-counted.json" if arguments.counted else ".json"
    status = in_each(names, hypervisor, lambda machine: machine.measure(wanted, kept), keep=arguments.keep)
    for path in (Machine(name, hypervisor).logs / kept for name in names):
        if path.exists():
            print("\n".join(tables(json.loads(path.read_text()))), flush=True)
    return status


def race(names: Sequence[str], hypervisor: Hypervisor, arguments: argparse.Namespace) -> int:
    """Have the race in the machines, the peers' programs coming from the host, and draw its reports here."""
    peers = ROOT / ".cache/peers"

    def run_race(machine: Machine) -> Result:
        wanted = ["race", *shlex.split(arguments.race)]
        if peers.is_dir():
            wanted += ["--peers", machine.provide(peers, "peers")]
        if arguments.swap:
            packages = debian_packages.collect(
                CACHE, machine.definition.suite, machine.packages(), _OF_THE_RACE
            )
            machine.give_swap(_RACE_SWAP_MIB, packages)
        return machine.measure(wanted, _RACE)

    status = in_each(names, hypervisor, run_race, keep=arguments.keep)
    for path in (Machine(name, hypervisor).logs / _RACE for name in names):
        if path.exists():
            host.run([ROOT / ".venv/bin/reactor", "bench", "race", "--render", path], limit_seconds=120)
            say(f"report: {path.with_suffix('.html')}")
    return status


def destroy(names: Sequence[str], hypervisor: Hypervisor) -> int:
    """Take the machines away, and with all of them what was started or unpacked for them."""
    if not hypervisor.was_used():
        return 0
    hypervisor.prepare()
    for name in names:
        Machine(name, hypervisor).destroy()
    if set(names) == set(MACHINES):
        hypervisor.forget()
    hypervisor.release()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = (
        "up",
        "test",
        "boots",
        "suites",
        "kube",
        "soak",
        "package",
        "outside",
        "bench",
        "race",
        "destroy",
    )
    parser.add_argument("verb", choices=(*verbs, "destroy"))
    parser.add_argument(
        "machines", nargs="*", metavar="MACHINE", help=f"of {', '.join(MACHINES)}; none: {', '.join(USUAL)}"
    )
    parser.add_argument("--direct", action="store_true", help="QEMU alone, without Vagrant and libvirt")
    parser.add_argument("--rounds", type=int, default=5, help="for bench: turns of each source (5)")
    parser.add_argument("--skip", default="", help="for bench: not these sources, nor probe-cost (a,b,...)")
    parser.add_argument("--parts", default="", help="for bench: instead these parts of `reactor bench`")
    parser.add_argument("--runs", type=int, default=8, help="with --parts: crossings of each (8)")
    parser.add_argument("--turns", type=int, default=1, help="with --parts: turns of each contestant (1)")
    parser.add_argument("--counted", action="store_true", help="a clock that counts instructions")
    parser.add_argument("--soak", default="", help="arguments for the soak, as one word: '--crossings 50'")
    stories = ",".join(story.name for story in boots.STORIES)
    parser.add_argument("--stories", default="", help=f"for boots: of {stories} only these")
    parser.add_argument("--race", default="", help="arguments for the race, as one word: '--rounds 1'")
    parser.add_argument(
        "--swap", action="store_true", help="for race: the machine gets swap and systemd-oomd"
    )
    parser.add_argument("--keep", action="store_true", help="leave the machines up after the tests")
    parser.add_argument("--pytest", default="", help="arguments for pytest in the guest, as one word")
    arguments = parser.parse_intermixed_args()  # a machine may be named after an option, too
    unknown = sorted(set(arguments.machines) - set(MACHINES))
    if unknown:
        parser.error(f"no such machine: {', '.join(unknown)}; there are {', '.join(MACHINES)}")
    arguments.machines = arguments.machines or (list(MACHINES) if arguments.verb == "destroy" else USUAL)
    return arguments


def _run_verb(arguments: argparse.Namespace) -> int:
    names: Sequence[str] = arguments.machines
    direct, counted, libvirt = DirectQemu(), DirectQemu(counted=True), VagrantLibvirt()
    hypervisor: Hypervisor = libvirt
    if arguments.counted:
        hypervisor = counted
    elif arguments.direct:
        hypervisor = direct
    if arguments.verb == "up":
        return up(names, hypervisor)
    if arguments.verb == "boots":
        return boot_again(names, direct, arguments)
    work: dict[str, Callable[[Sequence[str], Hypervisor, argparse.Namespace], int]] = {
        "test": test,
        "suites": suites,
        "kube": kube,
        "soak": soak,
        "package": package,
        "outside": outside,
        "bench": bench,
        "race": race,
    }
    if arguments.verb in work:
        return work[arguments.verb](names, hypervisor, arguments)
    return max(destroy(names, one) for one in (direct, counted, libvirt))


def main() -> int:
    """Parse the arguments, run one verb. Asked to end, it takes away what it brought up first."""
    arguments = _arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with host.exclusively():
            return _run_verb(arguments)
    except (HostError, subprocess.SubprocessError, OSError) as error:
        print(f"vm: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
