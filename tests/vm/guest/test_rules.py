"""The operator's rules on cgroup v2: units, slices and sessions that thrash, leaks and hogs in swap.

Units in a slice of 512 MiB, with memory available. A probe among them answers again after the eviction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import CGROUP, MEMORY, MIB, V2, Service, Tenant, eventually, run
from machine_memory import SwapFile, ZramSwap
from user_units import EVERYBODYS_APPLICATIONS, MANAGER, RUNTIME, SLICE, Application, UserManager

pytestmark = pytest.mark.skipif(not V2, reason="pressure of cgroups is meant: run it on bookworm or trixie")

AMPLE: Final = {"evictionHard": {"memory.available": "8Mi"}}
NO_THRESHOLD: Final[dict[str, Any]] = {"evictionHard": {}}
UNITS: Final = [f"{CGROUP}/*.service"]
TENANTS: Final = f"{CGROUP}/guarded-*.slice"
SWAP_MIB: Final = 400


class Probe(Tenant):
    """A unit that answers 20 times a second, and says how often it has."""

    def __init__(self, answers: Path) -> None:
        self._answers = answers
        super().__init__("probe", "probe", str(answers))

    def answers_again(self) -> None:
        wait_for_answers(self._answers)


def wait_for_answers(file: Path) -> None:
    """Wait until a probe has written more answers to its file than one that was under way."""

    def answers() -> int:
        return int(file.read_text()) if file.exists() else 0

    before = answers()
    eventually(lambda: answers() > before + 2, "answers of the probe")


@pytest.fixture
def start_probe(tmp_path: Path) -> Callable[[], Probe]:
    def start() -> Probe:
        probe = Probe(tmp_path / "answers")
        probe.answers_again()
        return probe

    return start


@pytest.fixture
def file() -> Iterator[str]:
    """The path of a file that a unit writes and reads."""
    path = Path("/var/tmp/reactor-scanned")
    yield str(path)
    path.unlink(missing_ok=True)


def rule(**others: Any) -> dict[str, Any]:
    return {"name": "r", "cgroups": UNITS, "for": "3s", "action": "evict", "cooldown": "1h", **others}


def thrashing(event: str) -> list[dict[str, Any]]:
    """Return the conditions of a cgroup that reclaims at its limit, and waits for it."""
    return [
        {"events": event, "atLeast": 20, "within": "30s"},
        {"pressure": "memory full", "avg10": "10%"},
    ]


def start(service: Service, *rules: dict[str, Any], hard: dict[str, Any] = AMPLE, **section: Any) -> None:
    service.configure(hard, {"rules": list(rules), "housekeepingInterval": "2s", **section})
    service.start()


def assert_says_why(decision: dict[str, Any], *, cgroup: str) -> None:
    """Assert that the record of a rule's firing has what it was about, and its conditions' values."""
    fired = decision["rule"]
    assert decision["threshold"] is None
    assert (fired["name"], fired["cgroup"]) == ("r", cgroup)
    assert fired["held_seconds"] >= 3
    assert all(one["value"] >= one["limit"] for one in fired["inputs"])
    assert [("rule", "killed")] == [(one["signal"], one["outcome"]) for one in decision["evictions"]]


@pytest.mark.parametrize(("limit", "event"), [("MemoryHigh", "high"), ("MemoryMax", "max")])
def test_unit_that_thrashes_within_its_own_limit_is_evicted(
    service: Service, start_probe: Callable[[], Probe], file: str, limit: str, event: str
) -> None:
    start(service, rule(when=thrashing(event)))
    probe = start_probe()
    full = Tenant("full", "hold", "50", properties={limit: "80M"})
    large = Tenant("large", "hold", "100")
    eventually(lambda: full.holds_its_memory() and large.holds_its_memory(), "the innocents' memory")
    thrasher = Tenant("thrasher", "scan", file, "150", properties={limit: "60M"})

    decision = service.wait_for_eviction()

    assert_says_why(decision, cgroup=thrasher.path)
    probe.answers_again()
    service.two_more_passes()
    assert service.evicted() == [thrasher.pod]
    assert [full.is_alive(), large.is_alive(), probe.is_alive()] == [True, True, True]
    assert service.oom_kills() == []
    assert not [line for line in service.lines() if line.get("threshold") is not None]


@pytest.fixture
def tenants() -> Iterator[None]:
    """Two slices of the guarded one, of 90 MiB at most each."""
    units = [Path(f"/run/systemd/system/guarded-{name}.slice") for name in "ab"]
    for unit in units:
        unit.write_text("[Slice]\nMemoryMax=90M\n")
    run("systemctl", "daemon-reload")
    yield
    for unit in units:
        unit.unlink()


def test_pod_of_a_nested_cgroup_that_thrashes_is_evicted_as_a_whole(
    tenants: None, service: Service, start_probe: Callable[[], Probe], file: str
) -> None:
    """A slice is a pod, and the rule is for what lies in it, as for a pod's containers."""
    start(service, rule(cgroups=[f"{TENANTS}/*.service"], when=thrashing("high")))
    probe = start_probe()
    beside = Tenant("beside", "hold", "10", within="guarded-a.slice")
    full = Tenant("full", "hold", "60", within="guarded-b.slice")
    eventually(lambda: beside.holds_its_memory() and full.holds_its_memory(), "the others' memory")
    limit = {"MemoryHigh": "40M"}
    thrasher = Tenant("thrasher", "scan", file, "150", properties=limit, within="guarded-a.slice")

    decision = service.wait_for_eviction()

    assert_says_why(decision, cgroup=thrasher.path)
    probe.answers_again()
    service.two_more_passes()
    assert service.evicted() == ["cgroup/guarded-a.slice"]
    eventually(lambda: not thrasher.is_alive() and not beside.is_alive(), "the end of all of the pod")
    assert [full.is_alive(), probe.is_alive()] == [True, True]
    assert service.oom_kills() == []


def test_worst_below_a_tenants_slice_is_evicted_and_another_tenants_larger_pod_is_not(
    tenants: None, service: Service, start_probe: Callable[[], Probe]
) -> None:
    """The one tenant's slice is nearly full; the other's has the largest pod of all, and is not."""
    slices = [f"{CGROUP}/guarded-{name}.slice" for name in "ab"]
    when = [{"usage": "60%"}]  # 54 MiB; an interpreter takes some 5 besides
    full = rule(cgroups=[f"{TENANTS}"], when=when, action="evictWorst", by="memory")
    start(service, full, pods={"parents": [CGROUP, *slices]})
    probe = start_probe()
    other = Tenant("other", "hold", "42", within="guarded-b.slice")
    small = Tenant("small", "hold", "15", within="guarded-a.slice")
    eventually(lambda: other.holds_its_memory() and small.holds_its_memory(), "the others' memory")
    hog = Tenant("hog", "hold", "40", within="guarded-a.slice")

    decision = service.wait_for_eviction()

    assert_says_why(decision, cgroup=slices[0])
    assert {hog.pod, small.pod} == {one["pod"] for one in decision["ranking"]}
    service.two_more_passes()
    assert service.evicted() == [hog.pod]
    probe.answers_again()
    assert [small.is_alive(), other.is_alive(), probe.is_alive()] == [True, True, True]
    assert service.oom_kills() == []


@pytest.mark.parametrize("swap", [SwapFile, ZramSwap])
def test_hog_larger_than_memory_with_swap_is_evicted_for_the_nodes_stall(
    swap: type[SwapFile | ZramSwap], service: Service, start_probe: Callable[[], Probe]
) -> None:
    """No threshold is set: memory is full, swap has room, and the stall alone shows the trouble."""
    if swap is ZramSwap and (missing := ZramSwap.missing_because()) is not None:
        pytest.skip(missing)
    stalls = [{"pressure": "memory full", "avg10": "10%"}, {"swapTraffic": "1Mi", "within": "10s"}]
    if not counts_swap_traffic():
        del stalls[1]
    with swap(SWAP_MIB):
        start(
            service, rule(cgroups=[CGROUP], when=stalls, action="evictWorst", by="memory"), hard=NO_THRESHOLD
        )
        probe = start_probe()
        innocent = Tenant("innocent", "hold", "60")
        eventually(innocent.holds_its_memory, "the innocent's memory")
        hog = Tenant("hog", "revisit", "650")

        decision = service.wait_for_eviction()

        assert_says_why(decision, cgroup=CGROUP)
        first, *_ = decision["ranking"]
        assert first["pod"] == hog.pod
        assert first["swap_bytes"] > 0
        probe.answers_again()
        service.two_more_passes()
        assert service.evicted() == [hog.pod]
        assert [innocent.is_alive(), probe.is_alive()] == [True, True]
        assert service.oom_kills() == []
        run("systemctl", "stop", innocent.unit, probe.unit)


def counts_swap_traffic() -> bool:
    """Tell whether the kernel counts what a cgroup's pages do in swap: since 6.13."""
    return "pswpin" in (MEMORY / CGROUP.lstrip("/") / "memory.stat").read_text()


def test_desktop_session_that_stalls_loses_its_worst_application(swap_file: None, service: Service) -> None:
    """systemd-oomd's pressure rule, as the page has it for sessions, with a lower limit and time."""
    session = rule(
        cgroups=["/user.slice/user-*.slice/user@*.service"],
        when=[{"pressure": "memory full", "avg10": "10%"}],
        action="evictWorst",
        by="pgscan",
    )
    with UserManager("MemoryMax=150M"):
        start(
            service, session, hard=NO_THRESHOLD, nodeCgroup="/", pods={"parents": [EVERYBODYS_APPLICATIONS]}
        )
        editor = Application("editor", "hold", "20")
        answers = RUNTIME / "answers"
        shell = Application("shell", "probe", str(answers))
        wait_for_answers(answers)
        browser = Application("browser", "revisit", "250")

        decision = service.wait_for_eviction()

        assert_says_why(decision, cgroup=f"{SLICE}/{MANAGER}")
        assert decision["rule"]["by"] == "pgscan"
        assert service.evicted() == [browser.pod]
        eventually(lambda: not browser.is_alive(), "the end of the browser")
        assert browser.result() == "signal"
        wait_for_answers(answers)
        service.two_more_passes()
        assert service.evicted() == [browser.pod]
        assert [editor.is_alive(), shell.is_alive()] == [True, True]
        assert service.oom_kills() == []


@pytest.fixture
def swap_file() -> Iterator[None]:
    with SwapFile(SWAP_MIB):
        yield


@pytest.mark.parametrize("where", ["the machine", "the unit"])
def test_slow_leak_into_swap_is_evicted_by_the_share_of_swap_that_is_used(
    swap_file: None, service: Service, start_probe: Callable[[], Probe], where: str
) -> None:
    """Its limit keeps it small: no threshold on memory would ever be crossed for it."""
    swap_used = [{"swapUsed": "40%"}]
    if where == "the machine":
        of_machine = rule(cgroups=["/"], when=swap_used, action="evictWorst", by="swap")
        start(service, of_machine, nodeCgroup="/", pods={"parents": [CGROUP]})
    else:
        start(service, rule(when=swap_used))
    probe = start_probe()
    resident = Tenant("resident", "hold", "120")
    swapped = Tenant("swapped", "hold", "100", properties={"MemoryMax": "60M"})
    eventually(lambda: resident.holds_its_memory() and in_swap(swapped) > 30 * MIB, "the innocents' memory")
    leak = Tenant("leak", "grow", "380", "10", properties={"MemoryMax": "50M"})

    decision = service.wait_for_eviction()

    assert_says_why(decision, cgroup="/" if where == "the machine" else leak.path)
    first, *others = decision["ranking"]
    assert (first["pod"], len(others)) == (leak.pod, 3 if where == "the machine" else 0)
    assert first["swap_bytes"] is None or first["swap_bytes"] > 100 * MIB
    probe.answers_again()
    service.two_more_passes()
    assert service.evicted() == [leak.pod]
    assert [resident.is_alive(), swapped.is_alive(), probe.is_alive()] == [True, True, True]
    assert service.oom_kills() == []


def in_swap(tenant: Tenant) -> int:
    with suppress(OSError):
        return int((tenant.cgroup / "memory.swap.current").read_text())
    return 0
