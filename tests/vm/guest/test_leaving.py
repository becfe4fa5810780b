"""What a service that ends leaves on a Kubernetes node: systemd's jobs say whether a next one will come.

The API server is a double (api_double.py); systemd, its unit with its sandbox, and the daemon are real.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from api_double import ApiDouble, since_when
from guarded import CONFIG, RUNTIME, Service, Tenant, eventually, run
from pressed import AT_REST, PRESSED, UNDER_PRESSURE, holder_of_memory, section

from tests.support.daemon import after_housekeeping

_STATE = RUNTIME / "state.json"
_AT_REST_NS = 400_000_000  # in 2 s
_KUBECONFIG = CONFIG.with_name("kubeconfig")


@pytest.fixture
def api() -> Iterator[ApiDouble]:
    double = ApiDouble()
    double.start()
    try:
        yield double
    finally:
        double.stop()
        _KUBECONFIG.unlink(missing_ok=True)


@pytest.fixture
def holder(service: Service, api: ApiDouble) -> Tenant:
    """Have the service run on a node whose object says that it is under pressure; return what causes it."""
    CONFIG.parent.mkdir(exist_ok=True)
    service.configure(PRESSED, section(api.kubeconfig(_KUBECONFIG)))
    found = holder_of_memory()
    service.start()
    eventually(lambda: api.left() == UNDER_PRESSURE, "the node's object says so")
    eventually(_STATE.exists, "the state is saved")
    return found


def _ended_in_time(service: Service) -> bool:
    """Return whether the unit ended by itself: systemd had no need to kill it."""
    return (service.prop("ActiveState"), service.prop("Result")) == ("inactive", "success")


def test_stop_leaves_nothing_on_the_node_and_no_state_behind(
    service: Service, api: ApiDouble, holder: Tenant
) -> None:
    _order(service, "stop")
    assert _ended_in_time(service)
    assert [] == api.left()
    assert "removed 2 taints, 3 conditions: no successor is expected" in service.log()
    assert not RUNTIME.exists()
    assert holder.is_alive()


def test_stop_in_the_middle_of_a_start_leaves_nothing_on_the_node_or_all_of_it(
    service: Service, api: ApiDouble, holder: Tenant
) -> None:
    run("systemctl", "restart", "reactor.service")
    run("systemctl", "stop", "reactor.service")
    assert _ended_in_time(service)
    assert api.left() in ([], UNDER_PRESSURE)
    assert holder.is_alive()


def test_restart_leaves_conditions_taints_and_grace_periods_to_the_next_daemon_which_removes_them_in_time(
    service: Service, api: ApiDouble, holder: Tenant
) -> None:
    (before,), since, pid = _first_observed(), since_when(api.document()), service.prop("MainPID")
    _order(service, "restart")
    assert pid != service.prop("MainPID")
    assert "conditions and taints stay: reactor.service (systemd's job: restart) is expected" in service.log()
    eventually(lambda: service.status()["kubernetes"]["watches"]["node"], "the node is watched")
    after_housekeeping(service, 2)
    assert since == since_when(api.document())
    assert [pytest.approx(before, abs=0.5)] == _first_observed()

    run("systemctl", "stop", holder.unit)
    eventually(lambda: api.left() == AT_REST, "conditions that no longer hold are False, taints are gone")
    _order(service, "stop")
    assert _ended_in_time(service)
    assert [] == api.left()


def test_stop_without_an_api_server_ends_in_time_and_the_next_start_and_stop_remove_what_stayed(
    service: Service, api: ApiDouble, holder: Tenant
) -> None:
    api.stop()
    _order(service, "stop")
    assert _ended_in_time(service)
    assert "no successor is expected, but something stays" in service.log()
    assert UNDER_PRESSURE == api.left()
    assert not RUNTIME.exists()

    run("systemctl", "stop", holder.unit)
    service.start()  # also without it
    eventually(lambda: "kubernetes node" in service.status()["problems"], "it says what it can't reach")
    api.start()
    eventually(lambda: api.left() == AT_REST, "the next daemon has removed the taints")
    _order(service, "stop")
    assert _ended_in_time(service)
    assert [] == api.left()


def test_restart_without_an_api_server_goes_on_guarding(
    service: Service, api: ApiDouble, holder: Tenant
) -> None:
    (before,) = _first_observed()
    api.stop()
    _order(service, "restart")
    assert [pytest.approx(before, abs=0.5)] == _first_observed()
    shown = service.status()
    assert ["MemoryPressure"] == [one["condition"] for one in shown["conditions"] if one["in_force"]]
    run("systemctl", "stop", holder.unit)
    eventually(lambda: not _first_observed(), "the end of the pressure is observed")
    assert UNDER_PRESSURE == api.left()
    api.start()
    eventually(lambda: api.left() == AT_REST, "which the node's object says once the server is back")


def _order(service: Service, job: str) -> None:
    """Stop or restart it, once its start is over: where its steward is not ready yet, all may stay."""

    def is_at_rest() -> bool:
        before = int(service.prop("CPUUsageNSec"))
        time.sleep(2)
        return int(service.prop("CPUUsageNSec")) - before < _AT_REST_NS

    eventually(is_at_rest, "the daemon is at rest")
    run("systemctl", job, "reactor.service")


def _first_observed() -> list[float]:
    """Return since when each threshold is crossed, as the state file keeps it over a restart."""
    return [at for _, at in json.loads(_STATE.read_text())["state"]["first_observed"]]
