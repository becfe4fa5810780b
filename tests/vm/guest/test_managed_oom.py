"""In the place of systemd-oomd: what real units say of being killed, heard of the real systemd.

The process runs as systemd-oomd.service, as it is shipped; systemd-oomd itself is not installed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import BIN, CGROUP, HERE, SECONDS, SLICE, V2, Service, Tenant, eventually, prop, run
from machine_memory import SwapFile
from user_units import APPLICATIONS, EVERYBODYS_APPLICATIONS, USER, Application, UserManager

from reactor.link.managed_oom import PATH, ManagedOomReport, read_report_at_once

pytestmark = pytest.mark.skipif(not V2, reason="units' pressure and swap are meant: run it on trixie")

UNITS: Final = Path("/etc/systemd/system")
SHIPPED: Final = HERE.parent / "deploy/systemd-oomd"
OOMD: Final = "systemd-oomd.service"
DROP_IN: Final = UNITS / f"{OOMD}.d/test.conf"
BUS_POLICY: Final = Path("/etc/dbus-1/system.d/reactor-oom1.conf")
OOMD_CONF: Final = Path("/run/systemd/oomd.conf.d/50-test.conf")
SWAP_MIB: Final = 600
# Of its limit each of them needs twice as much, and swaps all the time.
THRASHING: Final = {"MemoryMax": "40M", "MemorySwapMax": "infinity"}
PRESSURE: Final = {"ManagedOOMMemoryPressure": "kill", "ManagedOOMMemoryPressureLimit": "10%"}
OWN_DURATION: Final = {"ManagedOOMMemoryPressureDurationSec": "3s"}
OWN_DURATION_SINCE: Final = 257
NOBODY: Final = 65_534
RUNTIME_DIRECTORY: Final = "/run/private/reactor-managed-oom"
REPORTS: Final = "/run/systemd/oom/io.systemd.ManagedOOM"
REPORT: Final = "io.systemd.oom.ReportManagedOOMCGroups"


@pytest.fixture
def swap_file() -> Iterator[None]:
    with SwapFile(SWAP_MIB):
        yield


@pytest.fixture
def in_place() -> Iterator[None]:
    """Have the process run in the place of systemd-oomd, as the page says."""
    for name in (OOMD, "systemd-oomd.socket"):
        shutil.copy(SHIPPED / name, UNITS / name)
    shutil.copy(SHIPPED / BUS_POLICY.name, BUS_POLICY)
    DROP_IN.parent.mkdir(exist_ok=True)
    DROP_IN.write_text(f"[Service]\nExecStart=\nExecStart={BIN} managed-oom\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--now", "systemd-oomd.socket", OOMD)
    eventually(lambda: Path(PATH).exists() and not report().problem, "systemd's answer", SECONDS)
    yield
    run("systemctl", "disable", "--now", "systemd-oomd.socket", OOMD)
    for path in (UNITS / OOMD, UNITS / "systemd-oomd.socket", BUS_POLICY, DROP_IN, OOMD_CONF, Path(PATH)):
        path.unlink(missing_ok=True)
    if (Path("/run/systemd/system.control") / f"{SLICE}.d").exists():
        run("systemctl", "revert", SLICE)
    run("systemctl", "daemon-reload")


def report() -> ManagedOomReport:
    return read_report_at_once(Path(PATH).read_bytes())


def guard(service: Service, *parents: str) -> None:
    """Guard the machine with a threshold that nothing here crosses."""
    section = {
        "nodeCgroup": "/",
        "pods": {"parents": [CGROUP, *parents]},
        "systemdOomd": "replace",
        "housekeepingInterval": "2s",
    }
    service.configure({"evictionHard": {"memory.available": "30Mi"}}, section)
    service.start()


def rules(service: Service) -> dict[str, Any]:
    return {one["name"]: one for one in service.status()["rules"]}


def wait_for_rule(service: Service, name: str, matched: int = 1) -> None:
    eventually(lambda: rules(service).get(name, {}).get("matched") == matched, f"{name}: {rules(service)}")


CALL: Final = (
    "busctl",
    "call",
    "org.freedesktop.oom1",
    "/org/freedesktop/oom1",
    "org.freedesktop.oom1.Manager",
)


def two_more_passes(service: Service) -> None:
    passes = service.status()["passes"]
    eventually(lambda: service.status()["passes"] > passes + 1, "two more passes")


def spared_because(service: Service, tenant: Tenant) -> list[str]:
    """Return why nobody was evicted, each time that a rule acted for this unit."""
    cgroup = f"{CGROUP}/{tenant.unit}"
    ruled = [line for line in service.lines() if line["kind"] == "decision" and line.get("rule")]
    return [line["deferred_because"] for line in ruled if line["rule"]["cgroup"] == cgroup]


def test_unit_that_thrashes_in_its_own_limit_is_killed_and_the_others_live(
    swap_file: None, in_place: None, service: Service
) -> None:
    """One says kill and thrashes, one says kill and is to be omitted, one thrashes and says nothing."""
    guard(service)
    omitted = Tenant(
        "omitted", "revisit", "80", properties={**THRASHING, **PRESSURE, "ManagedOOMPreference": "omit"}
    )
    silent = Tenant("silent", "revisit", "80", properties=THRASHING)
    quiet = Tenant("quiet", "hold", "20", properties=PRESSURE)
    wait_for_rule(service, "systemd-oomd:pressure-10%-30s", 2)
    eventually(
        lambda: run(*CALL, "DumpByFileDescriptor", check=False).startswith("h "),
        "an answer as oomctl gets it",
    )
    assert "systemdOomd: bus" not in service.status()["problems"]
    thrash = Tenant("thrash", "revisit", "80", properties={**THRASHING, **PRESSURE})

    eventually(lambda: service.evicted() == [thrash.pod], "the one that says kill is evicted", 2 * SECONDS)

    decision = service.evictions()[0]
    assert decision["rule"]["name"] == "systemd-oomd:pressure-10%-30s"
    assert decision["rule"]["cgroup"] == f"{CGROUP}/thrash.service"
    assert decision["rule"]["by"] == "pgscan"
    assert decision["rule"]["held_seconds"] >= 30
    full, scanned = decision["rule"]["inputs"]
    assert full["lowest"] >= 10
    assert scanned["lowest"] >= 1
    eventually(lambda: thrash.result() == "oom-kill", "systemd says why it was killed")
    eventually(lambda: bool(spared_because(service, omitted)), "the rule acts for the one to be omitted")
    assert "never is (user.oomd_omit)" in spared_because(service, omitted)[0]
    assert service.evicted() == [thrash.pod]
    for tenant in (omitted, silent, quiet):
        assert tenant.is_alive()


def test_full_swap_kills_the_worst_below_the_units_that_say_so(
    swap_file: None, in_place: None, service: Service
) -> None:
    """What has more in swap, and says nothing, lives."""
    OOMD_CONF.parent.mkdir(parents=True, exist_ok=True)
    OOMD_CONF.write_text("[OOM]\nSwapUsedLimit=5%\n")
    guard(service)
    silent = Tenant("silent", "hold", "160", properties={"MemoryMax": "20M"})
    eventually(silent_swaps(silent), "100 MiB of it in swap")
    two_more_passes(service)
    assert service.evicted() == []

    swap = {"MemoryMax": "20M", "ManagedOOMSwap": "kill"}
    smaller = Tenant("smaller", "hold", "30", properties={"MemoryMax": "20M"})
    hog = Tenant("hog", "hold", "80", properties=swap)

    eventually(lambda: hog.pod in service.evicted(), "the one that says kill is evicted")
    assert service.evicted() == [hog.pod]
    decision = service.evictions()[0]
    assert decision["rule"]["name"] == "systemd-oomd:swap"
    assert [one["pod"] for one in decision["ranking"]] == [hog.pod]
    two_more_passes(service)
    assert silent.is_alive()
    assert smaller.is_alive()


def silent_swaps(tenant: Tenant) -> Any:
    def swaps() -> bool:
        try:
            return int((tenant.cgroup / "memory.swap.current").read_text()) > 100 << 20
        except OSError:
            return False

    return swaps


def test_settings_outlive_daemon_reexec_and_the_process_and_follow_set_property(
    in_place: None, service: Service
) -> None:
    guard(service)
    tenant = Tenant("one", "hold", "10", properties=PRESSURE)
    name = "systemd-oomd:pressure-10%-30s"
    wait_for_rule(service, name)
    run("systemctl", "daemon-reexec")
    run("systemctl", "set-property", "--runtime", SLICE, "ManagedOOMSwap=kill")
    eventually(lambda: "systemd-oomd:swap" in rules(service), "what was set after the re-execution")
    assert rules(service)[name]["matched"] == 1
    assert rules(service)["systemd-oomd:swap"]["below"] == [CGROUP]

    run("systemctl", "stop", OOMD)
    eventually(lambda: "systemdOomd" in service.status()["problems"], "that it is not running")
    assert "the last known settings are in force" in service.status()["problems"]["systemdOomd"]
    assert rules(service)[name]["matched"] == 1
    run("systemctl", "start", OOMD)
    eventually(lambda: "systemdOomd" not in service.status()["problems"], "that it is running again")

    run("systemctl", "stop", tenant.unit)
    eventually(lambda: name not in rules(service), "the stopped unit's setting is forgotten")


@pytest.fixture
def user() -> Iterator[None]:
    with UserManager():
        yield


def test_process_has_no_privileges_and_writes_to_its_own_directory_alone(in_place: None) -> None:
    """Seen by its user, in its mounts: directories and files; what devices there are, holds nothing."""
    pid = prop(OOMD, "MainPID")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert {status[name][0] for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
    uid, gid = status["Uid"][0], status["Gid"][0]
    assert uid != "0"
    links = [
        line.partition(":")[0].strip() for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    ]
    assert links == ["lo"]
    as_it = ["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
    kinds = ["(", "-type", "d", "-o", "-type", "f", ")"]
    seen = ["find", "/", "-path", "/proc", "-prune", "-o", *kinds, "-writable", "-print"]
    command = ["nsenter", f"--target={pid}", "--mount", "setpriv", f"--reuid={uid}", f"--regid={gid}", *as_it]
    writable = run(*command, *seen, check=False).split()
    assert sorted(writable) == [RUNTIME_DIRECTORY, f"{RUNTIME_DIRECTORY}/units"]


def test_users_own_unit_that_says_kill_is_killed_and_what_says_nothing_lives(
    swap_file: None, in_place: None, user: None, service: Service
) -> None:
    """The user's own service manager reports it to the process's socket."""
    guard(service, EVERYBODYS_APPLICATIONS)
    quiet = Application("quiet", "hold", "20", properties=PRESSURE)
    silent = Application("silent", "revisit", "60", properties=THRASHING)
    name = "systemd-oomd:user-pressure-10%-30s"
    wait_for_rule(service, name)
    thrash = Application("thrash", "revisit", "80", properties={**THRASHING, **PRESSURE})
    wait_for_rule(service, name, 2)
    assert {(one.cgroup, one.uid) for one in report().units} == {
        (one.path, USER.pw_uid) for one in (quiet, thrash)
    }

    eventually(lambda: service.evicted() == [thrash.pod], "the one that says kill is evicted", 2 * SECONDS)

    decision = service.evictions()[0]
    assert (decision["rule"]["name"], decision["rule"]["cgroup"]) == (name, thrash.path)
    eventually(lambda: thrash.result() == "oom-kill", "the user's service manager says why")
    wait_for_rule(service, name)
    assert service.evicted() == [thrash.pod]
    assert [quiet.is_alive(), silent.is_alive()] == [True, True]


def test_durations_and_limits_of_oomd_conf_count_where_a_unit_has_none_and_follow_a_reload(
    in_place: None, service: Service
) -> None:
    OOMD_CONF.parent.mkdir(parents=True, exist_ok=True)
    OOMD_CONF.write_text("[OOM]\nDefaultMemoryPressureLimit=25%\nDefaultMemoryPressureDurationSec=1min 2s\n")
    guard(service)
    Tenant("none", "hold", "10", properties={"ManagedOOMMemoryPressure": "kill"})
    Tenant("limit", "hold", "10", properties=PRESSURE)
    wanted = {"systemd-oomd:pressure-25%-62s", "systemd-oomd:pressure-10%-62s"}
    if int(run("systemctl", "--version").split()[1]) >= OWN_DURATION_SINCE:
        Tenant("both", "hold", "10", properties={**PRESSURE, **OWN_DURATION})
        wanted.add("systemd-oomd:pressure-10%-3s")
    eventually(lambda: wanted <= set(rules(service)), f"{wanted}: {set(rules(service))}")

    OOMD_CONF.write_text("[OOM]\nDefaultMemoryPressureDurationSec=40s\n")
    run("systemctl", "reload", "reactor.service")

    changed = {one.replace("62s", "40s").replace("25%", "60%") for one in wanted}
    eventually(lambda: changed <= set(rules(service)), f"{changed}: {set(rules(service))}")
    assert wanted & set(rules(service)) == wanted & changed


class Reporter:
    """A connection of the user's to where service managers report."""

    def __init__(self, uid: int = USER.pw_uid) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(SECONDS)
        os.seteuid(uid)  # whose process it is, the kernel tells the other end
        try:
            self._socket.connect(REPORTS)
        finally:
            os.seteuid(0)

    def answer(self, raw: bytes) -> Any:
        """Return what is answered, None where the connection is closed instead."""
        received = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(raw)
            while not received.endswith(b"\0"):
                read = self._socket.recv(4096)
                if not read:
                    return None
                received += read
            return json.loads(received[:-1])
        return None

    def report(self, cgroup: str) -> Any:
        """Return what is answered to a report of a unit."""
        unit = {"mode": "kill", "path": cgroup, "property": "ManagedOOMSwap"}
        document = {"method": REPORT, "parameters": {"cgroups": [unit]}}
        return self.answer(json.dumps(document).encode() + b"\0")

    def close(self) -> None:
        self._socket.close()


def test_what_is_no_report_closes_its_connection_and_costs_nothing_else(in_place: None, user: None) -> None:
    """The user has a slice, without which nobody is heard."""
    pid = prop(OOMD, "MainPID")
    own = f"{APPLICATIONS}/one.service"
    others = ("/", CGROUP, "/user.slice/user-0.slice/one.service", f"{APPLICATIONS}/../../one.service")
    good = Reporter()
    assert good.report(own) == {"parameters": {}}
    eventually(lambda: [(one.cgroup, one.uid) for one in report().units] == [(own, USER.pw_uid)], "its unit")

    for raw in (
        b"no JSON\0",
        b"\xff\xfe\0",
        b"[]\0",
        b"[" * 60_000 + b"\0",
        b"x" * (65 << 10),
        json.dumps({"method": REPORT, "parameters": {"cgroups": 7}}).encode() + b"\0",
        json.dumps({"method": REPORT}).encode() + b"\0",
    ):
        assert Reporter().answer(raw) is None, raw[:80]
    unknown = good.answer(b'{"method": "io.systemd.oom.Kill", "parameters": {}}\0')
    assert unknown["error"] == "org.varlink.service.MethodNotFound"
    for cgroup in others:
        assert good.report(cgroup) == {"parameters": {}}
    assert Reporter(uid=NOBODY).report(own) is None  # who has no slice
    more = [Reporter() for _ in range(4)]
    assert more[-1].report(own) is None  # the fifth of this user
    assert good.report(own) == {"parameters": {}}

    eventually(lambda: [one.cgroup for one in report().units] == [own], "that unit and no other")
    for one in (good, *more):
        one.close()
    eventually(lambda: report().units == (), "what a connection said is forgotten with it")
    assert (prop(OOMD, "MainPID"), prop(OOMD, "NRestarts")) == (pid, "0")
    assert report().problem == ""
