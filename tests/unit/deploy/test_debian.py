"""The Debian package's own parts, without building it: units, configuration, documents, the hand-over.

The built package is looked at by tests/package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reactor.cli import _parser
from reactor.config.settings import load_configuration

ROOT = Path(__file__).resolve().parents[3]
DEBIAN = ROOT / "deploy/debian"
UNIT = ROOT / "deploy/reactor.service"

# Answers `show` from files, and does what systemd and the two daemons would.
SYSTEMCTL = """#!/bin/sh
echo "$@" >>"$STATE/calls"
unit=; for word; do case $word in *.service) unit=${word%.service} ;; esac; done
put() { mkdir -p "$STATE/$1"; echo "$3" >"$STATE/$1/$2"; }
state() { put "$1" ActiveState "$2"; put "$1" StatusText "$3"; }
ready() {
  state "$1" active "5 pods"
  put "$1" ActiveEnterTimestampMonotonic "$(sed 's/[.].*//' /proc/uptime)999999"
}
case $1 in
is-active) grep -qx active "$STATE/$unit/ActiveState"; exit ;;
show) for word; do case $word in --property=*) cat "$STATE/$unit/${word#*=}" 2>/dev/null; esac; done ;;
start) if [ -n "$BROKEN" ]; then state "$unit" failed ""; else state "$unit" activating "standing by"; fi ;;
restart)
  if grep -qs standing "$STATE/reactor-stand-by/StatusText"; then
    state reactor activating "standing by"; ready reactor-stand-by
  else ready reactor; fi ;;
stop) state "$unit" inactive ""; ready reactor ;;
esac
true
"""

TakeOver = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def take_over(tmp_path: Path) -> TakeOver:
    """Return what runs take-over against a service manager of files; it gives the output and the calls."""
    state = tmp_path / "state"
    (state / "reactor").mkdir(parents=True)
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)

    def run(is_active: str = "active", **environment: str) -> tuple[str, list[str]]:
        (state / "reactor/ActiveState").write_text(f"{is_active}\n")
        path = f"{program.parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [DEBIAN / "take-over"],
            env={"PATH": path, "STATE": str(state), "REACTOR_TAKE_OVER_SECONDS": "2", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        calls = (state / "calls").read_text().splitlines()
        return done.stdout, [call for call in calls if not call.startswith(("show", "reset-failed"))]

    return run


def test_new_daemon_takes_over_while_the_service_is_restarted(take_over: TakeOver) -> None:
    said, calls = take_over()

    assert calls == [
        "is-active --quiet reactor.service",
        "start --no-block reactor-stand-by.service",
        "restart --no-block reactor.service",
        "stop --no-block reactor-stand-by.service",
    ]
    assert said.startswith("reactor: upgraded; the node was not guarded for ")


def test_service_is_restarted_all_the_same_where_the_new_daemon_does_not_stand_by(
    take_over: TakeOver,
) -> None:
    said, calls = take_over(BROKEN="yes")

    assert calls[-2:] == ["stop reactor-stand-by.service", "restart reactor.service"]
    assert "journalctl --unit=reactor-stand-by.service" in said


def test_service_that_does_not_run_is_left_alone_at_an_upgrade(take_over: TakeOver) -> None:
    assert take_over("inactive") == ("", ["is-active --quiet reactor.service"])


def test_stand_by_unit_is_the_service_without_what_is_the_services_alone(tmp_path: Path) -> None:
    text = subprocess.run([DEBIAN / "stand-by-unit", UNIT], capture_output=True, text=True, check=True).stdout
    (tmp_path / "reactor-stand-by.service").write_text(
        text.replace("/usr/bin/reactor", shutil.which("true") or "/bin/true")
    )
    keys = {line.partition("=")[0] for line in text.splitlines()}

    assert not keys & {"Restart", "RuntimeDirectory", "LogsDirectory", "WantedBy", "WatchdogSec", "[Install]"}
    assert {"ExecStart", "MemoryMin", "Delegate", "CapabilityBoundingSet", "OOMScoreAdjust"} <= keys
    (start,) = (line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    assert start in text.splitlines()
    assert "--stand-by" in start
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: install Debian's package systemd")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "reactor-stand-by.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_packaged_configuration_is_a_dry_run_without_a_warning() -> None:
    settings = load_configuration(DEBIAN / "config.yaml").settings

    assert settings.dry_run
    assert settings.warnings == ()
    assert settings.pod_parents


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("documents")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, DEBIAN / "documents.py", directory]
    subprocess.run(command, env=environment, check=True, timeout=60)
    return directory


@pytest.mark.parametrize("name", ["reactor.bash", "reactor.zsh", "reactor.fish", "reactor.8.md"])
def test_each_command_is_in_the_completions_and_the_manual_page(documents: Path, name: str) -> None:
    text = (documents / name).read_text()
    (commands,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))

    assert [command for command in commands if command not in text] == []
    assert "stand" in text


def test_completions_are_read_by_bash(documents: Path) -> None:
    asked = (
        'COMP_WORDS=(reactor sta); COMP_CWORD=1; _shtab_reactor reactor sta reactor; echo "${COMPREPLY[@]}"'
    )
    command = ["bash", "-c", f"source {documents / 'reactor.bash'}; {asked}"]

    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["status"]


def test_manual_page_of_the_configuration_is_the_documentation(documents: Path) -> None:
    page = "".join((ROOT / f"docs/{name}.md").read_text() for name in ("configuration", "plain-nodes"))
    manual = (documents / "reactor.yaml.5.md").read_text()

    assert manual.startswith("# NAME\n\nreactor.yaml - ")
    rows = [line for line in page.splitlines() if line.startswith(("| `", "- `"))]
    assert len(rows) > 50
    assert [row for row in rows if row not in manual] == []


def test_upgrade_takes_over_from_a_running_service_and_starts_no_stopped_one() -> None:
    """The preinst writes down what the postinst goes by; debhelper's own start would come for both."""
    scripts = {name: (DEBIAN / f"reactor.{name}").read_text() for name in ("preinst", "postinst")}
    rules = (DEBIAN / "rules").read_text()

    assert 'echo "$was" >/run/reactor.before-upgrade' in scripts["preinst"]
    assert "running) /usr/lib/reactor/take-over" in scripts["postinst"]
    assert "  stopped) ;;\n" in scripts["postinst"]
    assert "dh_installsystemd --no-start --no-stop-on-upgrade\n" in rules


@pytest.mark.parametrize("name", ["preinst", "postinst", "prerm", "postrm"])
def test_maintainer_scripts_are_read_by_sh(name: str) -> None:
    checked = subprocess.run(
        ["sh", "-n", DEBIAN / f"reactor.{name}"], capture_output=True, text=True, check=False
    )

    assert (checked.returncode, checked.stderr) == (0, "")
