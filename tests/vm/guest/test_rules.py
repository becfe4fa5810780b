"""The operator's rules on cgroup v2: a unit that thrashes within its own limit, with memory available.

Units in a slice of 512 MiB. A probe among them answers again after the eviction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import CGROUP, V2, Service, Tenant, eventually

pytestmark = pytest.mark.skipif(not V2, reason="pressure of cgroups is meant: run it on bookworm or trixie")

AMPLE: Final = {"evictionHard": {"memory.available": "8Mi"}}
UNITS: Final = [f"{CGROUP}/*.service"]


class Probe(Tenant):
    """A unit that answers 20 times a second, and says how often it has."""

    def __init__(self, answers: Path) -> None:
        self._answers = answers
        super().__init__("probe", "probe", str(answers))

    def answers(self) -> int:
        return int(self._answers.read_text()) if self._answers.exists() else 0

    def answers_again(self) -> None:
        """Wait for more answers than one that was under way."""
        before = self.answers()
        eventually(lambda: self.answers() > before + 2, "answers of the probe")


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


def start(service: Service, *rules: dict[str, Any]) -> None:
    service.configure(AMPLE, {"rules": list(rules), "housekeepingInterval": "2s"})
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
