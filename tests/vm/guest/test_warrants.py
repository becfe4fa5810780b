"""kernelKill: hard, as the daemon does it: the kernel kills at the crossing, and the daemon follows."""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import (
    BIN,
    MEMORY,
    MIB,
    SECONDS,
    SLICE,
    SLICE_MIB,
    V2,
    Service,
    Tenant,
    eventually,
    prop,
    run,
)
from load import working_set_bytes

from reactor.kernel.bpf.libbpf import LIBRARY
from reactor.kernel.bpf.warrants import CLAIM_BITS, ClaimState
from reactor.policy.forecast import ahead_bytes
from tests.support import waiting

pytestmark = pytest.mark.skipif(not V2, reason="the kernel kills on cgroup v2 alone: run it on trixie")

HARD: Final = {"evictionHard": {"memory.available": "100Mi"}}
KERNEL_KILL: Final = {"kernelKill": "hard"}
ONE_AFTER_ANOTHER: Final = {**KERNEL_KILL, "unhelpfulEvictionPause": "0s"}
STATES: Final = (1 << CLAIM_BITS) - 1  # of the claim word
GIVEN: Final = "a warrant was given: "
# Why a guard that got no CPU in time, or came first, kills itself at the crossing.
NOT_SERVED: Final = {
    GIVEN + "withdrawn",
    GIVEN + "other-pod-crossed",
    GIVEN + "expired",
}
CROSSINGS: Final = 3
BETWEEN_MIB: Final = 5  # the early levels are 32 and 3 MiB ahead of the crossing
MACHINE_LEFT_MIB: Final = 10  # what else is on the machine comes and goes
EXPIRED_SECONDS: Final = 1.0  # four times as long as a warrant is good for


def kernel_kill(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.status()["kernel_kill"]
    return found


def thresholds(service: Service) -> list[str]:
    return [one["threshold"] for signal in service.status()["signals"] for one in signal["thresholds"]]


def armed(service: Service, pods: int) -> None:
    """Wait until the kernel knows the pods."""
    known = f"{pods} of {pods} pods known to the kernel"
    eventually(lambda: kernel_kill(service)["detail"] == known, known)


def stop(pid: int) -> None:
    """Stop a process, and return when each of its threads stands: on another CPU it runs on for a while."""
    os.kill(pid, signal.SIGSTOP)
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        while stat.read_text().rpartition(") ")[2][0] != "T":
            pass


def test_pod_that_comes_far_from_a_crossing_is_known_to_the_kernel_soon(service: Service) -> None:
    """No pass is made for it: the next is that of the ticker, or of the crossing's early level."""
    first = Tenant("first", "hold", "20")
    eventually(first.holds_its_memory, "the first pod")
    service.configure(HARD, {**KERNEL_KILL, "housekeepingInterval": "600s"})
    service.start()
    armed(service, 1)
    Tenant("second", "hold", "20")
    armed(service, 2)


def hog_at_the_edge(
    service: Service,
    name: str,
    more_mib: int = 60,
    *,
    left_mib: int = 2,
    crossing_mib: int = SLICE_MIB - 100,
    node: Path = MEMORY / SLICE,
    properties: Mapping[str, str] | None = None,
) -> Tenant:
    """Return a hog that rests so little before the threshold, with a warrant against it."""
    load = ("edge", str(node), str((crossing_mib - left_mib) * MIB), str(more_mib))
    hog = Tenant(name, *load, properties=properties)
    eventually(lambda: kernel_kill(service)["armed_for"] == hog.pod, f"a warrant against {name}")
    return hog


@pytest.fixture
def at_the_edge(service: Service) -> Iterator[Callable[..., Tenant]]:
    """A node with a neighbour, and hogs that rest 2 MiB before the threshold with a warrant against them."""
    neighbour = Tenant("neighbour", "hold", "20")
    filler = Tenant("filler", "hold", "250", properties={"ManagedOOMPreference": "omit"})
    eventually(lambda: neighbour.holds_its_memory() and filler.holds_its_memory(), "what there is besides")
    service.configure(HARD, ONE_AFTER_ANOTHER)
    service.start()
    armed(service, 2)

    yield partial(hog_at_the_edge, service)
    assert neighbour.is_alive()


def pid_of(unit: str) -> int:
    return int(prop(unit, "MainPID"))


class GivenWarrant:
    """The warrant as the kernel holds it, in the guard's own map."""

    def __init__(self) -> None:
        (map_id,) = (
            one["id"]
            for one in json.loads(run("bpftool", "--json", "map", "list"))
            if one.get("name") == "warrants"
        )
        fd = ctypes.CDLL(LIBRARY).bpf_map_get_fd_by_id(map_id)
        assert fd >= 0, os.strerror(-fd)
        self._mapped = mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ)
        os.close(fd)

    def anew(self, hog: Tenant) -> int:
        """Return the generation of the next warrant that is armed against a hog, at once."""
        victim = hog.cgroup.stat().st_ino
        before, _ = self._read()
        found: list[int] = []

        def is_armed() -> bool:
            claim, of = self._read()
            if of == victim and claim & STATES == ClaimState.LIVE and claim | STATES != before | STATES:
                found.append(claim >> CLAIM_BITS)
            return bool(found)

        waiting.eventually(is_armed, f"a new warrant against {hog.pod}", SECONDS, pause_seconds=0.001)
        return found[0]

    def _read(self) -> tuple[int, int]:
        """Return the claim word, and the id of the victim's cgroup."""
        claim, victim = struct.unpack_from("=QQ", self._mapped)
        return claim, victim


def killed_by_the_kernel(service: Service, begin_hog: Callable[[str], Tenant]) -> Tenant:
    """Return the first hog that the kernel killed under a warrant.

    A hog rests until the kernel has a new one against it. Where that is not served, the guard has killed the
    hog, and nobody else, by the reason that is counted.
    """
    given = GivenWarrant()
    for number in itertools.count():
        hog = begin_hog(f"hog-{number}")
        pid, counted = pid_of(hog.unit), Counter(kernel_kill(service)["counted"])
        generation = given.anew(hog)
        os.kill(pid, signal.SIGUSR1)
        eventually(lambda: len(service.evictions()) > number, "an eviction")  # noqa: B023
        (eviction,) = service.evictions()[number]["evictions"]
        assert (hog.pod, "killed") == (eviction["pod"], eviction["outcome"])
        eventually(lambda: not hog.is_alive(), "its end")  # noqa: B023
        assert number + 1 == len(service.evicted())
        more = Counter(kernel_kill(service)["counted"]) - counted
        warrant, why = eviction["warrant"], eviction["no_warrant_because"]
        print(f"{why}; {warrant}; {dict(more)}")
        assert more["served"] == (warrant is not None)
        if warrant is None:
            assert why.endswith(" is crossed already") or (
                why in NOT_SERVED and more[why.removeprefix(GIVEN)]
            )
            continue
        armed_ns, crossed_ns, signalled_ns = (
            warrant[key] for key in ("armed_ns", "crossed_ns", "signalled_ns")
        )
        assert armed_ns < crossed_ns <= signalled_ns
        assert crossed_ns < eviction["killed_ns"] <= signalled_ns
        print(f"signalled {(signalled_ns - crossed_ns) / 1000:.0f} us after the crossing")
        assert warrant["generation"] >= generation
        return hog
    raise AssertionError


def test_hog_is_killed_by_the_kernel_and_its_neighbour_lives(
    service: Service, at_the_edge: Callable[..., Tenant]
) -> None:
    hog = killed_by_the_kernel(service, at_the_edge)
    told = run(BIN, "explain", hog.pod)
    print(told)
    assert "killed by the kernel under warrant" in told
    assert "kernel kill: " in run(BIN, "status")


def test_hog_too_fast_for_the_nearer_early_level_has_its_warrant_from_the_farther_one(
    service: Service, at_the_edge: Callable[..., Tenant]
) -> None:
    """It rests before the nearer one with its warrant, and takes all at once from there."""
    farther_bytes, nearer_bytes = ahead_bytes(SLICE_MIB * MIB)

    def begin_hog(name: str) -> Tenant:
        hog = at_the_edge(name, left_mib=BETWEEN_MIB)
        left_bytes = (SLICE_MIB - 100) * MIB - working_set_bytes(str(MEMORY / SLICE))
        assert nearer_bytes < left_bytes < farther_bytes
        return hog

    killed_by_the_kernel(service, begin_hog)


def test_hog_past_the_machines_own_threshold_is_killed_by_the_kernel_or_before_it_by_the_guard(
    service: Service,
) -> None:
    """The machine's memory is counted by CPU, and read by both: either may see the crossing first."""
    run("systemctl", "set-property", "--runtime", "guarded.slice", "MemoryMax=infinity")
    neighbour = Tenant("neighbour", "hold", "20")
    # Where pods hold much less than the threshold evicting could end no shortage, and none is prepared.
    filler = Tenant("filler", "hold", "850", properties={"ManagedOOMPreference": "omit"})
    eventually(lambda: neighbour.holds_its_memory() and filler.holds_its_memory(), "what there is besides")
    section = {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}, **ONE_AFTER_ANOTHER}
    service.configure({"evictionHard": {"memory.available": "1Mi"}}, section)
    service.start()
    (seen,) = (one for one in service.status()["signals"] if one["signal"] == "memory.available")
    service.stop()
    threshold_mib = seen["available"] // MIB - 150
    service.configure({"evictionHard": {"memory.available": f"{threshold_mib}Mi"}}, section)
    service.start()
    armed(service, 2)
    edge = partial(
        hog_at_the_edge,
        service,
        left_mib=MACHINE_LEFT_MIB,
        crossing_mib=seen["capacity"] // MIB - threshold_mib,
        node=MEMORY,
    )
    killed_by_the_kernel(service, edge)
    assert neighbour.is_alive()


def test_guard_that_is_stopped_leaves_a_warrant_that_expires_and_follows_one_that_was_served_in_time(
    service: Service, at_the_edge: Callable[..., Tenant]
) -> None:
    """A crossing at once after SIGSTOP is served or, where the machine was slower, too late for it."""
    given, is_served, number = GivenWarrant(), False, -1
    while not is_served:
        number += 1
        hog = at_the_edge(f"hog-{number}")
        guard, pid, before = pid_of("reactor.service"), pid_of(hog.unit), hog.usage_bytes()
        given.anew(hog)
        stop(guard)
        os.kill(pid, signal.SIGUSR1)
        try:
            # By its memory, which is read at once: a guard that goes on seconds later follows no kill.
            eventually(
                lambda: abs(hog.usage_bytes() - before) > 50 * MIB,  # noqa: B023
                "its end or its growth",
            )
            is_served = hog.usage_bytes() < before
        finally:
            os.kill(guard, signal.SIGCONT)
        eventually(lambda: len(service.evictions()) > number, "an eviction")  # noqa: B023
        (eviction,) = service.evictions()[number]["evictions"]
        assert (hog.pod, "killed") == (eviction["pod"], eviction["outcome"])
        assert (eviction["warrant"] is not None) is is_served
        eventually(lambda: not hog.is_alive(), "its end")  # noqa: B023
        assert kernel_kill(service)["counted"].get("served", 0) == is_served


def test_warrant_of_a_guard_that_was_stopped_for_longer_is_not_served(
    service: Service, at_the_edge: Callable[..., Tenant]
) -> None:
    """A guard that is stopped while it renews the warrant leaves none that could expire."""
    given = GivenWarrant()
    for number in range(CROSSINGS):
        hog = at_the_edge(f"hog-{number}")
        guard, before = pid_of("reactor.service"), hog.usage_bytes()
        given.anew(hog)
        os.kill(guard, signal.SIGSTOP)
        try:
            time.sleep(EXPIRED_SECONDS)
            os.kill(pid_of(hog.unit), signal.SIGUSR1)
            eventually(lambda: hog.usage_bytes() > before + 50 * MIB, "its growth")  # noqa: B023
            assert hog.is_alive()
        finally:
            os.kill(guard, signal.SIGCONT)
        eventually(lambda: len(service.evictions()) > number, "an eviction")  # noqa: B023
        (eviction,) = service.evictions()[number]["evictions"]
        assert (hog.pod, None) == (eviction["pod"], eviction["warrant"])
        eventually(lambda: not hog.is_alive(), "its end")  # noqa: B023
    counted = kernel_kill(service)["counted"]
    print(counted)
    assert 1 <= counted["expired"] <= CROSSINGS
    assert "served" not in counted


def test_warrant_of_a_guard_that_was_killed_is_gone_with_it(
    service: Service, at_the_edge: Callable[..., Tenant]
) -> None:
    hog = at_the_edge("hog")
    before, guard, pid = hog.usage_bytes(), pid_of("reactor.service"), pid_of(hog.unit)
    os.kill(guard, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{guard}").exists(), "the end of the guard")
    os.kill(pid, signal.SIGUSR1)
    eventually(lambda: hog.usage_bytes() > before + 50 * MIB or not hog.is_alive(), "its growth")
    (eviction,) = service.wait_for_eviction()["evictions"]  # by the next guard
    assert (hog.pod, None) == (eviction["pod"], eviction["warrant"])


def test_reload_takes_the_warrant_of_the_old_configuration_back(
    service: Service, at_the_edge: Callable[..., Tenant]
) -> None:
    """What crosses the old level alone is spared; near the new one there is a warrant again."""
    hog = at_the_edge("hog", 30)
    before, pid = hog.usage_bytes(), pid_of(hog.unit)
    service.configure({"evictionHard": {"memory.available": "60Mi"}}, {**KERNEL_KILL})
    run("systemctl", "reload", "reactor.service")
    eventually(lambda: thresholds(service) == ["memory.available<60Mi"], "the reload")
    os.kill(pid, signal.SIGUSR1)
    eventually(lambda: hog.usage_bytes() > before + 29 * MIB, "its growth")
    eventually(lambda: kernel_kill(service)["armed_for"] == hog.pod, "a warrant by the new configuration")
    assert hog.is_alive()
    assert not service.evictions()
    assert "served" not in kernel_kill(service)["counted"]


# Spins at the guard's own priority, on each CPU one, until the hog's process has ended. The first of them
# waits until all spin and, in `late` seconds, no warrant is good any more; then it lets the hog go on, and
# writes how long the guard has run until then and until the hog's end.
SPINNER: Final = """
import mmap, os, signal, sys, time
number, many, hog, guard, late, shared, patience = sys.argv[1:]
number, many, hog, late = int(number), int(many), int(hog), float(late)
flags = mmap.mmap(os.open(shared, os.O_RDWR), many + 1)  # who spins, and that it is over
def is_over():
    try:
        with open(f"/proc/{hog}/stat") as stat:
            return stat.read().rpartition(") ")[2][0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
def ran_ns():
    with open(f"/proc/{guard}/schedstat") as schedstat:
        return int(schedstat.read().split()[0])
print(flush=True)
sys.stdin.readline()
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number]})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
flags[number] = 1
end = time.monotonic() + float(patience)
def spin_until(is_true):
    while not is_true() and time.monotonic() < end:
        pass
if number == 0:
    spin_until(lambda: all(flags[:many]))
    begun, began = time.monotonic(), ran_ns()
    spin_until(lambda: time.monotonic() - begun >= late)
    os.kill(hog, signal.SIGUSR1)
    spin_until(is_over)
    print(ran_ns() - began)
    flags[many] = 1
else:
    spin_until(lambda: flags[many])
"""
HOG_PRIORITY: Final = {"CPUSchedulingPolicy": "fifo", "CPUSchedulingPriority": "60"}


def end_while_starved(hog: int, guard: int, late_seconds: float, directory: Path) -> int:
    """Have a hog go on while the guard gets no CPU; return for how many ns that ran until the hog's end."""
    shared = directory / "flags"
    many = os.cpu_count() or 1
    shared.write_bytes(bytes(many + 1))
    command = [sys.executable, "-S", "-c", SPINNER]
    words = [str(word) for word in (many, hog, guard, late_seconds, shared, SECONDS)]
    # They wait on one pipe: its end lets all of them begin.
    begin, write = os.pipe()
    spinners = [
        subprocess.Popen([*command, str(number), *words], stdin=begin, stdout=subprocess.PIPE, text=True)
        for number in range(many)
    ]
    os.close(begin)
    for spinner in spinners:
        assert spinner.stdout is not None
        assert spinner.stdout.readline() == "\n"  # it is about to wait
    os.close(write)
    printed = [spinner.communicate(timeout=2 * SECONDS)[0] for spinner in spinners]
    return int(printed[0])


def oom_scores() -> dict[str, str]:
    """Return the OOM killer's adjustment of each process in the slice, by its id."""
    pids = [pid for procs in (MEMORY / SLICE).glob("*/cgroup.procs") for pid in procs.read_text().split()]
    return {pid: Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in pids}


@pytest.mark.parametrize("late_seconds", [0.0, EXPIRED_SECONDS], ids=["in time", "expired"])
def test_where_the_guard_is_starved_the_pod_dies_under_its_warrant_or_by_the_kernels_own_choice(
    service: Service, tmp_path: Path, late_seconds: float
) -> None:
    """The hog alone gets a CPU, so its crossing is served while its warrant is good.

    One that expired kills nobody. Then the hog, which is the largest, meets the node's limit, and the OOM
    killer takes it by its own scores: none has been written.
    """
    others = [
        Tenant("neighbour", "hold", "20"),
        Tenant("filler", "hold", "100", properties={"ManagedOOMPreference": "omit"}),
    ]
    eventually(lambda: all(one.holds_its_memory() for one in others), "what there is besides")
    scores = oom_scores()
    service.configure(HARD, ONE_AFTER_ANOTHER)
    service.start()
    armed(service, len(others))
    ended: dict[str, list[str]] = {"signal": [], "oom-kill": []}
    is_in_time = late_seconds == 0.0
    for number in itertools.count():  # in time, until one is: the machine may be too slow for it, too
        if number >= CROSSINGS and (ended["signal"] or not is_in_time):
            break
        hog = hog_at_the_edge(service, f"hog-{number}", 200, left_mib=4, properties=HOG_PRIORITY)
        assert scores.items() <= oom_scores().items()
        ran_ns = end_while_starved(pid_of(hog.unit), pid_of("reactor.service"), late_seconds, tmp_path)
        eventually(lambda: not hog.is_alive(), "systemd's notice of its end")  # noqa: B023
        print(f"ended by {hog.result()}, the guard ran for {ran_ns} ns; {kernel_kill(service)['counted']}")
        assert ran_ns == 0
        ended[hog.result()].append(hog.pod)
        eventually(
            lambda: [len(service.evicted()), len(service.oom_kills())] == [*map(len, ended.values())],
            "the journal's line of its end",
        )
        assert all(one.is_alive() for one in others)
        assert scores == oom_scores()
        assert kernel_kill(service)["counted"].get("served", 0) == len(ended["signal"])
    service.stop()
    assert ended == {
        "signal": service.evicted(),
        "oom-kill": [line["pod"] for line in service.oom_kills()],
    }
    assert bool(ended["signal"]) is is_in_time


def test_without_it_the_daemon_kills_itself(service: Service) -> None:
    hog = Tenant("hog", "grow", "500", "40")
    service.configure(HARD)
    service.start()
    decision = service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
    assert decision["evictions"][0]["warrant"] is None
    assert (kernel_kill(service)["mode"], kernel_kill(service)["counted"]) == ("off", {})


def test_dry_run_lets_the_kernel_kill_nothing(service: Service) -> None:
    hog = Tenant("hog", "grow", "450", "40")
    service.configure(HARD, {**KERNEL_KILL, "dryRun": True})
    service.start()
    service.wait_for_eviction()
    assert hog.is_alive()
    assert kernel_kill(service)["counted"] == {}
