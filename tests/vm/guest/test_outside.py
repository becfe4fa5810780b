"""What others wrote, with reactor guarding: the kernel's cgroup selftests, and systemd's TEST-55-OOMD.

Fetched by `make test-outside`. Verdicts and reasons are in docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import BIN, CGROUP, HERE, SECONDS, Service, Tenant, eventually, run

from tests.support import waiting

OUTSIDE: Final = HERE.parent / "outside"
PACKAGES: Final = OUTSIDE / "debian"
SELFTESTS: Final = ("core", "cpu", "freezer", "kill", "memcontrol", "pids", "zswap")
FIGURES: Final = Path("/var/tmp/outside.json")
UNITS: Final = OUTSIDE / "systemd"
SHIPPED: Final = HERE.parent / "deploy/systemd-oomd"
OOMD: Final = ("systemd-oomd.service", "systemd-oomd.socket")
POLICY: Final = Path("/etc/dbus-1/system.d/reactor-oom1.conf")
WORKLOAD: Final = "TEST.slice/TEST-55.slice/TEST-55-OOMD.slice/TEST-55-OOMD-workload.slice"
SCRIPT: Final = UNITS / "TEST-55-OOMD.sh"
# systemd 257 has five, 262 twelve.
_CASE: Final = re.compile(r"^testcase_(\w+)\(\)", re.MULTILINE)
CASES: Final = _CASE.findall(SCRIPT.read_text()) if SCRIPT.is_file() else ["none"]
# Where a case ends that can't pass here: it looks for systemd-oomd's own words in the journal of its unit,
# or for a hook before a kill by pressure, which reactor calls before a soft eviction alone.
ENDS_AT: Final = {
    "oom_rulesets": "grep 'Rule '\\''testrule'\\'' conditions met'",
    "oom_rulesets_missing_warning": "timeout 30 bash -c",
    "prekill_hook": "jq -r .method",
}
# They compare times of CPUs with a tolerance, which an emulated machine keeps now and then, guard or not.
UNSTEADY: Final = {"test_cpucg_stats", "test_cpucg_max", "test_cpucg_max_nested"}
_VERDICT: Final = re.compile(r"^(ok|not ok) \d+ (# SKIP )?(\S+)", re.MULTILINE)

pytestmark = pytest.mark.skipif(not OUTSIDE.is_dir(), reason="nothing fetched: make test-outside")


def keep(name: str, found: Any) -> None:
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    FIGURES.write_text(json.dumps({**known, name: found}, indent=1, sort_keys=True))


def verdicts(program: Path) -> dict[str, str]:
    """Return what each test of a program came to."""
    done = subprocess.run(
        ["timeout", "600", program],
        cwd="/var/tmp",  # a disk: tests of page cache need one, and /tmp may be memory
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    # A process that it forks may print a part of its output once more: the last word counts.
    found = {test: "skip" if skipped else word for word, skipped, test in _VERDICT.findall(done.stdout)}
    return found or {program.name: f"status {done.returncode}: {done.stdout.strip()[-100:]}"}


@pytest.fixture
def armed(service: Service) -> Iterator[Service]:
    """Guard the machine with warrants, by a threshold that nothing here crosses, and three pods."""
    section = {
        "nodeCgroup": "/",
        "pods": {"parents": [CGROUP]},
        "kernelKill": "hard",
        "oomOrder": "policy",
        "housekeepingInterval": "5s",
    }
    service.configure({"evictionHard": {"memory.available": "60Mi"}}, section)
    for name in ("one", "two", "three"):
        Tenant(name, "hold", "20")
    service.start()
    eventually(lambda: service.status()["problems"] == {}, "nothing is wrong")
    return service


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SELFTESTS)
def test_the_kernels_selftests_of_cgroups_have_the_verdicts_that_they_have_without_a_guard(
    name: str, request: pytest.FixtureRequest
) -> None:
    program = OUTSIDE / "cgroup" / f"test_{name}"
    if not program.exists():
        pytest.skip(f"no {program.name}: make test-outside says why")
    # Each twice: some depend on how much of a CPU they get, which in an emulated guest is little.
    without = [verdicts(program) for _ in range(2)]
    guard: Service = request.getfixturevalue("armed")
    beside = [verdicts(program) for _ in range(2)]
    keep(f"selftests {name}", {"without": without, "with": beside})
    assert guard.evicted() == []
    differing = {
        test: (verdict, [one.get(test) for one in without])
        for seen in beside
        for test, verdict in seen.items()
        if verdict not in {one.get(test) for one in without} and test not in UNSTEADY
    }
    assert differing == {}


@pytest.fixture(scope="module")
def in_oomds_place() -> Iterator[None]:
    """Install systemd-oomd and stress-ng, and put reactor into its place; the units of the test are there."""
    if not UNITS.is_dir() or not PACKAGES.is_dir():
        pytest.skip("no systemd-tests: make test-outside says why")
    Path("/etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{PACKAGES} ./\n")
    run("apt-get", "-qq", "update")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    names = ("systemd-oomd", "stress-ng", "libpam-systemd", "dbus-user-session", "socat", "jq")
    command = ["apt-get", "-qq", "install", "--yes", *names]
    installed = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=2 * SECONDS
    )
    assert installed.returncode == 0, installed.stderr
    run("systemctl", "disable", "--now", *OOMD)
    for unit in UNITS.glob("TEST-55-OOMD-*"):
        for place in (Path("/etc/systemd/system"), Path("/etc/systemd/user")):
            copy = shutil.copytree if unit.is_dir() else shutil.copy
            if not (place / unit.name).exists():
                copy(unit, place / unit.name)
    # As root, stress-ng lowers its own oom_score_adj to -1000, and such a unit is never evicted. systemd-oomd
    # kills it all the same: the one thing in which the test is changed.
    for name in ("testbloat", "testmunch", "testrules"):
        drop_in = Path(f"/etc/systemd/system/TEST-55-OOMD-{name}.service.d/score.conf")
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text("[Service]\nCapabilityBoundingSet=~CAP_SYS_RESOURCE\n")
    for name in OOMD:
        shutil.copy(SHIPPED / name, Path("/etc/systemd/system") / name)
    shutil.copy(SHIPPED / POLICY.name, POLICY)
    drop_in = Path("/etc/systemd/system/systemd-oomd.service.d/test.conf")
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text(f"[Service]\nExecStart=\nExecStart={BIN} managed-oom\n")
    try:
        pwd.getpwnam("testuser")
    except KeyError:
        run("useradd", "--create-home", "testuser")
    run("systemctl", "daemon-reload")
    # As the test suite's own machine has it: a drop-in for the time of the boot.
    run("systemctl", "set-property", "--runtime", "init.scope", "MemoryHigh=10G")
    run("systemctl", "enable", "--now", *OOMD)
    yield
    run("systemctl", "disable", "--now", *OOMD, check=False)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("in_oomds_place")
def test_systemds_own_test_of_systemd_oomd_passes_with_reactor_in_its_place(
    case: str, service: Service, tmp_path: Path
) -> None:
    # Units with rule files of their own are started in the slice of all services.
    parent = "/system.slice" if case.startswith("oom_rulesets") else f"/{WORKLOAD}"
    section = {
        "nodeCgroup": "/",
        "pods": {"parents": [parent, f"/user.slice/user-[1-9]*.slice/user@*.service/{WORKLOAD}"]},
        "systemdOomd": "replace",
        "housekeepingInterval": "5s",
    }
    service.configure({"evictionHard": {"memory.available": "30Mi"}}, section)
    service.start()
    # The steward starts after the guard. Each call of a name that is missing costs dbus and systemd a start.
    eventually(lambda: service.status()["problems"] == {}, "nothing is wrong", 2 * SECONDS)
    waiting.eventually(
        lambda: "Dry Run" in run("oomctl", check=False), "oomctl's answer", SECONDS, pause_seconds=5
    )
    # A file: a listener that a case leaves behind would keep a pipe open.
    output = tmp_path / "output"
    with output.open("wb") as file:
        done = subprocess.run(
            ["timeout", "1200", "bash", SCRIPT],
            env={**os.environ, "TEST_MATCH_TESTCASE": f"^testcase_{case}$"},
            cwd=UNITS,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    words = output.read_text(errors="replace")
    decisions = [line for line in service.lines() if line["kind"] == "decision"]
    found = {"status": done.returncode, "evicted": service.evicted(), "decisions": decisions}
    keep(f"TEST-55-OOMD {case}", found)
    print(words[-6000:])
    print(json.dumps(service.status()["systemd_oomd"], indent=1))
    print(json.dumps(service.status()["rules"], indent=1)[:4000])
    if case in ENDS_AT:
        assert done.returncode != 0
        until_then, _, _ = words.rpartition("\n+ rc=")
        assert ENDS_AT[case] in "\n".join(until_then.splitlines()[-4:])  # a pipeline is more than one
        return
    assert done.returncode == 0
