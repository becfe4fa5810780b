"""The brake: memory.high pulled down while a hard threshold is crossed, and put back whatever happens."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import CGROUP, MEMORY, MIB, SECONDS, SLICE, SLICE_MIB, V2, Service, Tenant, eventually, prop, run
from machine_memory import observed

from reactor.brake.brake import DEADLINE_SECONDS

THRESHOLD_MIB: Final = 100
LEVEL_MIB: Final = SLICE_MIB - THRESHOLD_MIB
HARD: Final = {"evictionHard": {"memory.available": f"{THRESHOLD_MIB}Mi"}}
BRAKE: Final = {"brake": "hard"}
HIGH: Final = MEMORY / SLICE / "memory.high"
HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
NEVER_EVICTED: Final = {"ManagedOOMPreference": "omit"}

pytestmark = pytest.mark.skipif(
    not V2, reason="memory.high is a file of cgroup v2: run it on bookworm or trixie"
)


def high() -> str:
    return HIGH.read_text().strip()


def set_high(mib: int) -> str:
    """Set the slice's memory.high by way of systemd, and return what it is then."""
    run("systemctl", "set-property", "--runtime", SLICE, f"MemoryHigh={mib}M")
    assert f"{mib * MIB}" == high()
    return high()


def is_marked() -> bool:
    return "user.reactor.memory_high" in os.listxattr(HIGH.parent)


def log() -> str:
    return run("journalctl", "-u", "reactor", "--no-pager", "-o", "cat")


def engagements(service: Service) -> int:
    return int(service.status()["brake"]["times"])


def start_and_engage(service: Service, *drop_in: str) -> int:
    """Have a unit cross that nobody may end, so that the brake stays on; return the daemon's process id."""
    service.configure(HARD, BRAKE)
    service.start(*drop_in)
    service.armed_after("ebpf")  # what stands in for it until then borrows the same file
    pid = int(service.prop("MainPID"))
    hog = Tenant("hog", "hold", "300", properties=NEVER_EVICTED)
    eventually(hog.holds_its_memory, "the hog's memory")
    operators = high()
    Tenant("more", "hold", "130", properties=NEVER_EVICTED)
    _spin_until(lambda: high() != operators, "the brake")
    return pid


def _spin_until(true, what: str) -> None:
    """Wait without a pause: the brake is on for seconds only, and an emulated guest is slow."""
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {what}\n{log()}"


@pytest.mark.quick
def test_it_is_on_at_a_hard_crossing_and_off_once_the_memory_is_back(service: Service) -> None:
    service.configure(HARD, BRAKE)
    operators = high()
    service.start()
    service.armed_after("ebpf")
    assert service.status()["brake"] == {"mode": "hard", "on": [], "times": 0, "seconds": 0.0}
    quiet = Tenant("quiet", "hold", "150")
    eventually(quiet.holds_its_memory, "the quiet unit's memory")
    assert 0 == engagements(service)
    hog = Tenant("hog", "hold", "300")
    decision = service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
    (brake,) = decision["brake"]
    assert CGROUP == brake["cgroup"]
    assert brake["high_bytes"] < LEVEL_MIB * MIB
    assert decision["timing"]["woke_ns"] < brake["engaged_ns"] < brake["released_ns"]
    # Where this machine takes longer than that to free the memory the brake's own deadline ends it.
    held_seconds = (brake["released_ns"] - brake["engaged_ns"]) / 1e9
    assert "not crossed any more" in brake["released_because"] or held_seconds >= DEADLINE_SECONDS
    assert operators == high()
    assert quiet.is_alive()
    status = service.status()["brake"]
    assert (1, []) == (status["times"], status["on"])
    assert status["seconds"] > 0


def test_it_is_never_on_when_it_is_not_asked_for(service: Service) -> None:
    service.configure(HARD)
    service.start()
    service.armed_after("ebpf")
    Tenant("hog", "hold", "450")
    assert [] == service.wait_for_eviction()["brake"]
    assert 0 == engagements(service)
    assert "max" == high()


def test_it_is_not_on_at_a_soft_crossing(service: Service) -> None:
    service.configure(
        {
            "evictionHard": {"memory.available": "10Mi"},
            "evictionSoft": {"memory.available": f"{THRESHOLD_MIB}Mi"},
            "evictionSoftGracePeriod": {"memory.available": "3s"},
            "evictionMaxPodGracePeriod": 30,
        },
        {**BRAKE, "housekeepingInterval": "1s"},
    )
    service.start()
    service.armed_after("ebpf")
    Tenant("hog", "hold", "430")
    assert [] == service.wait_for_eviction()["brake"]
    assert 0 == engagements(service)
    assert "max" == high()


def test_the_machine_itself_is_never_braked(service: Service) -> None:
    available_mib = observed().available // MIB
    service.configure(
        {"evictionHard": {"memory.available": f"{available_mib - 150}Mi"}},
        {**BRAKE, "nodeCgroup": "/", "pods": {"parents": [CGROUP]}},
    )
    service.start()
    assert "reactor.brake: has no effect" in log()
    Tenant("hog", "hold", "350")
    assert [] == service.wait_for_eviction()["brake"]
    assert 0 == engagements(service)
    assert "max" == high()


def test_it_ends_with_its_time_where_no_pod_can_be_killed_and_is_not_on_again(service: Service) -> None:
    operators = set_high(SLICE_MIB - 12)
    start_and_engage(service)
    # Where reclaim brings usage below the level again, that is the end of a brake and a crossing follows.
    over = "its longest time was over"
    eventually(lambda: over in [one["released_because"] for one in brakes(service)], "the end of its time")
    assert [] == service.evictions()
    times = engagements(service)
    time.sleep(5)
    assert (times, operators) == (engagements(service), high())


def brakes(service: Service) -> list[dict[str, Any]]:
    """Return the brakes that the journal tells of."""
    return [brake for line in service.lines() for brake in line.get("brake", [])]


def test_it_is_put_back_at_a_sigterm(service: Service) -> None:
    operators = set_high(SLICE_MIB - 12)
    pid = start_and_engage(service, "Restart=no")
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: service.prop("ActiveState") == "inactive", "the end")
    assert (operators, False) == (high(), is_marked())
    # On a slow machine its time may be over before the daemon has come to its end.
    assert any(f"released: {why}" in log() for why in ("the daemon ends", "its longest time was over"))


def test_it_is_put_back_by_the_next_start_after_a_crash_whatever_that_one_guards(service: Service) -> None:
    operators = set_high(SLICE_MIB - 12)
    pid = start_and_engage(service, "Restart=no")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: service.prop("ActiveState") == "failed", "the crash")
    assert is_marked()
    assert operators != high()
    service.configure(
        {"evictionHard": {"pid.available": "10"}}, {"nodeCgroup": "/", "pods": {"parents": ["/system.slice"]}}
    )
    run("systemctl", "start", "reactor.service")  # without a daemon-reload: systemd would put it back itself
    eventually(lambda: not is_marked(), "the undoing")
    assert operators == high()
    eventually(lambda: "as before a crash" in log(), "the line of it")


def test_a_value_that_the_operator_sets_during_the_brake_stays_to_the_letter(service: Service) -> None:
    start_and_engage(service)
    operators = f"{(SLICE_MIB - 8) * MIB}"
    HIGH.write_text(operators)  # systemctl would take too long for it
    eventually(lambda: not service.status()["brake"]["on"], "the release")
    assert operators == high()


def test_it_is_put_back_at_a_reload_that_switches_it_off(service: Service) -> None:
    pid = start_and_engage(service)
    service.configure(HARD)
    os.kill(pid, signal.SIGHUP)
    eventually(lambda: not is_marked(), "the release")
    assert "max" == high()
    eventually(lambda: service.status()["brake"]["mode"] == "off", "the reload")


def is_at_the_level() -> bool:
    """Return whether memory.high is at the level, which what a unit leaves of page cache lifts a little."""
    return high() != "max" and 0 <= int(high()) - LEVEL_MIB * MIB < 4 * MIB


def test_the_source_that_borrows_the_same_file_goes_on_beside_it(service: Service) -> None:
    operators = set_high(SLICE_MIB - 8)
    service.configure(HARD, {**BRAKE, "sources": {"ebpf": False, "psi": False}})
    service.start()
    eventually(is_at_the_level, "memory.high at the level")
    for name in ("first", "second"):
        hog = Tenant(name, "grow", "450", "200")
        eventually(lambda hog=hog: hog.pod in service.evicted(), f"the eviction of {name}")
        eventually(is_at_the_level, "memory.high at the level again")
    assert "memory-high" in {wake["source"] for one in service.evictions() for wake in one["wakes"]}
    assert all(one["brake"] for one in service.evictions())
    service.stop()
    assert (operators, False) == (high(), is_marked())


@contextmanager
def small_pages() -> Iterator[None]:
    """Have memory handed out by 4 KiB: a huge page alone is 2 MiB of overshoot."""
    before = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    HUGE_PAGES.write_text("never")
    try:
        yield
    finally:
        HUGE_PAGES.write_text(before)


def test_overshoot_with_and_without_it_as_measured(service: Service) -> None:
    """One unit grows as fast as it can while a larger one is ended for it. Prints the figures."""
    with small_pages():
        for mode in ("off", "hard"):
            service.configure(HARD, {"brake": mode})
            service.start()
            service.armed_after("ebpf")
            runs = [_crossing(service, f"{mode}{number}") for number in range(4)]
            service.stop()
            Path("/var/log/reactor/journal.jsonl").unlink()
            shown = ", ".join(f"{past:.2f}" for past in sorted(past for past, _ in runs))
            kill_ms = ", ".join(f"{_after_ms(decision, 'killed_ns'):.1f}" for _, decision in runs)
            freed_ms = ", ".join(f"{_after_ms(decision, 'freed_ns'):.0f}" for _, decision in runs)
            print(
                f"brake {mode}: past the level by {shown} MiB; killed after {kill_ms} ms, freed {freed_ms} ms"
            )
            assert (mode == "hard") is all(decision["brake"] for _, decision in runs)
            if mode == "hard":
                on_ms = ", ".join(f"{_on_ms(decision):.0f}" for _, decision in runs)
                engaged = ", ".join(f"{_engaged_ms(decision):.1f}" for _, decision in runs)
                print(f"brake on for {on_ms} ms, engaged {engaged} ms after the wake")


def _after_ms(decision: dict[str, Any], stage: str) -> float:
    return (decision["timing"][stage] - decision["timing"]["woke_ns"]) / 1e6


def _on_ms(decision: dict[str, Any]) -> float:
    return (decision["brake"][0]["released_ns"] - decision["brake"][0]["engaged_ns"]) / 1e6


def _engaged_ms(decision: dict[str, Any]) -> float:
    return (decision["brake"][0]["engaged_ns"] - decision["timing"]["woke_ns"]) / 1e6


def _crossing(service: Service, name: str) -> tuple[float, dict[str, Any]]:
    """Return how far usage went past the level until the larger unit's memory was back, and the decision."""
    large = Tenant(f"large-{name}", "hold", "300")
    eventually(large.holds_its_memory, "the large unit's memory")
    with _peak() as peak:
        fast = Tenant(f"fast-{name}", "hold", "180")
        eventually(lambda: large.pod in service.evicted(), "the eviction")
    (decision,) = (one for one in service.evictions() if one["evictions"][0]["pod"] == large.pod)
    run("systemctl", "kill", "--signal=SIGKILL", fast.unit, check=False)
    eventually(lambda: fast.usage_bytes() == 0 and prop(fast.unit, "ActiveState") != "active", "its end")
    return peak[0] / MIB - LEVEL_MIB, decision


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Look at the slice's usage as often as it goes; the list holds the highest."""
    peak, done = [0], threading.Event()
    current = os.open(HIGH.parent / "memory.current", os.O_RDONLY)

    def look() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        while not done.wait(0.001):
            peak[0] = max(peak[0], int(os.pread(current, 32, 0)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        os.close(current)
