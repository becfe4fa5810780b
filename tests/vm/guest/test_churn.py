"""Ten thousand cgroups come and go below the daemon: nothing leaks, nobody is evicted, it goes on."""

from __future__ import annotations

import os
from pathlib import Path

from guarded import MEMORY, SLICE, V2, Service, Tenant, eventually

CGROUPS = 10_000
SOURCE = "ebpf" if V2 else "memcg-eventfd"


def test_ten_thousand_pods_come_and_go_and_leave_nothing_in_the_daemon(service: Service) -> None:
    service.configure({"evictionHard": {"memory.available": "100Mi"}}, {"housekeepingInterval": "1s"})
    service.start()
    service.armed_after(SOURCE)
    churn("first", 500)
    before_fds, before_mib = open_files(service), resident_mib(service)
    churn("then", CGROUPS - 500)
    eventually(lambda: open_files(service) <= before_fds, "the descriptors closed")
    assert resident_mib(service) - before_mib < 4
    assert service.prop("NRestarts") == "0"
    assert service.source(SOURCE)[0] == "armed"
    assert service.evicted() == []
    hog = Tenant("hog", "grow", "480", "100")
    service.wait_for_eviction()
    assert [hog.pod] == service.evicted()


def churn(name: str, count: int) -> None:
    """Make and remove pods of the slice, each after the next one; that takes no process."""
    previous: Path | None = None
    for number in range(count):
        made = MEMORY / SLICE / f"{name}-{number}"
        made.mkdir()
        if previous is not None:
            previous.rmdir()
        previous = made
    if previous is not None:
        previous.rmdir()


def open_files(service: Service) -> int:
    return len(os.listdir(f"/proc/{service.prop('MainPID')}/fd"))


def resident_mib(service: Service) -> float:
    status = Path(f"/proc/{service.prop('MainPID')}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
