"""The package, and the wheel, under systemd in a container: at an installation, an upgrade, a removal.

The container shares this machine's kernel, so the daemon stays in its dry run and at ordinary priority there.
Evictions are for virtual machines: tests/vm/guest/test_package.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(2700)  # a root of Debian is made first
CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs/install.md"
BUILT = CHECKOUT / ".cache/deb/reactor/debian"  # the package is made of the wheel, and of those that it needs
STEPS = """\
install: dpkg --install /root/older.deb
state: systemctl is-active reactor; systemctl is-enabled reactor; systemctl show -P StatusText reactor
upgrade: dpkg --install /root/newer.deb
upgraded: systemctl is-active reactor reactor-stand-by; systemctl show -P NRestarts reactor
stop: systemctl stop reactor; dpkg --install --force-downgrade /root/older.deb
stopped: systemctl is-active reactor; ls /run/reactor.before-upgrade
remove: systemctl start reactor; dpkg --remove reactor
removed: systemctl is-active reactor guarded.slice; ls -d /run/reactor /usr/lib/reactor
again: dpkg --install /root/newer.deb; systemctl is-active reactor
purge: dpkg --purge reactor; systemctl list-units --all --no-legend 'reactor*' 'guarded*'
left: find /etc /run /usr /var -xdev -name '*reactor*' -o -xdev -name 'guarded*'
"""
_SECONDS = 1200  # 400 s were not enough beside a load of 15


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a root of Debian 12 that systemd boots."""
    missing = [name for name in ("mmdebstrap", "systemd-nspawn") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"no container: needs root and Debian's mmdebstrap and systemd-container ({missing})")
    directory = tmp_path_factory.mktemp("service") / "root"
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"deb [signed-by={keyring}] http://deb.debian.org/debian bookworm main"
    packages = "--include=python3,python3-venv,libbpf1,systemd-sysv,dbus,sudo"
    options = ["--quiet", "--mode=root", "--variant=minbase", packages, "--format=directory"]
    made = subprocess.run(
        ["mmdebstrap", *options, "bookworm", str(directory), source],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if made.returncode:
        pytest.skip(f"no root of bookworm: {made.stderr.strip()[-300:]}")
    # Its own name, which sudo looks up: mmdebstrap copies this machine's, and there is no network to ask.
    (directory / "etc/hosts").write_text(f"127.0.0.1 localhost {(directory / 'etc/hostname').read_text()}")
    yield directory
    shutil.rmtree(directory)


def later(deb: Path, directory: Path) -> Path:
    """Return the same package as a later version."""
    subprocess.run(["dpkg-deb", "--raw-extract", deb, directory / "content"], check=True)
    control = directory / "content/DEBIAN/control"
    control.write_text(re.sub(r"^(Version: .*)$", r"\1+later", control.read_text(), flags=re.MULTILINE))
    made = directory / "later.deb"
    command = ["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", directory / "content", made]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return made


def booted(root: Path, steps: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Boot the container, take the steps in it, each a name and commands, and return what each printed."""
    units = root / "etc/systemd/system"
    for name in ("reactor.service.d", "reactor-stand-by.service.d"):
        (units / name).mkdir(exist_ok=True)
        (units / name / "calm.conf").write_text(
            "[Service]\nCapabilityBoundingSet=~CAP_SYS_NICE\nLimitRTPRIO=0\n"
        )
    script = "".join(f"echo '### {name}'\n{commands}\n" for name, commands in steps)
    (root / "root/steps").write_text(f"exec >/root/shown 2>&1\ncd /root\n{script}systemctl poweroff\n")
    environment = "Environment=DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8"
    run = f"[Unit]\nAfter=multi-user.target\n[Service]\n{environment}\nExecStart=/bin/sh /root/steps\n"
    (units / "steps.service").write_text(f"{run}[Install]\nWantedBy=multi-user.target\n")
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    wanted = units / "multi-user.target.wants/steps.service"
    wanted.unlink(missing_ok=True)
    wanted.symlink_to("../steps.service")
    before = _payloads()
    is_unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    subprocess.run(
        [
            "systemd-nspawn",
            "--quiet",
            "--register=no",
            "--keep-unit",
            "--private-network",
            "-D",
            root,
            "--boot",
        ],
        env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1" if is_unified else "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=_SECONDS,
    )
    for cgroup in (
        _payloads() - before
    ):  # the container's, which nspawn leaves without a service manager outside
        subprocess.run(["find", cgroup, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"], check=True)
    parts = re.split(r"^### (\w+)\n", (root / "root/shown").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _payloads() -> set[Path]:
    return set(Path("/sys/fs/cgroup").glob("*/payload"))


def test_service_runs_dry_is_taken_over_at_an_upgrade_and_leaves_nothing(
    root: Path, deb: Path, tmp_path: Path
) -> None:
    shutil.copy(deb, root / "root/older.deb")
    shutil.copy(later(deb, tmp_path), root / "root/newer.deb")

    shown = booted(root, [tuple(line.split(": ", 1)) for line in STEPS.splitlines()])

    is_active, is_enabled, status = shown["state"].splitlines()
    assert (is_active, is_enabled) == ("active", "enabled")
    assert status.startswith("dry run: 0 pods")
    assert "would evict from /guarded.slice at memory.available<200Mi" in status
    gaps = re.search(r"not guarded for (\d+) ms and for (\d+) ms", shown["upgrade"])
    assert gaps is not None, shown["upgrade"]
    print(f"gaps at the upgrade: {gaps[1]} ms, {gaps[2]} ms")
    assert shown["upgraded"].split() == ["active", "inactive", "0"]
    assert shown["stopped"].splitlines()[0] == "inactive"
    assert "No such file" in shown["stopped"]
    assert shown["removed"].split()[:2] == ["inactive", "inactive"]
    assert shown["removed"].count("No such file") == 2
    assert shown["again"].split()[-1] == "active"
    assert "reactor.service" not in shown["purge"]
    left = {line for line in shown["left"].splitlines() if not line.startswith("/var/lib/dpkg")}
    assert {Path(path).name for path in left} == {
        "reactor.service.d",
        "reactor-stand-by.service.d",
    }  # this test's


def commands(before: str) -> str:
    """Return the commands of the first block of the page after some words, as they are printed."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition(before)
    found = re.findall(r"^\$ (.*)$", text.split("```")[1], re.MULTILINE)
    assert found, f"no commands after {before}"
    return "\n".join(one for one in found if one != "make wheel")


def test_the_pages_wheel_is_installed_upgraded_and_removed_and_leaves_nothing(root: Path) -> None:
    wheels = list((BUILT / "built").glob("node_reactor-*.whl"))
    if not wheels:
        pytest.skip("no wheel: make deb makes it on the way")
    (root / "root/dist").mkdir()
    shutil.copy(wheels[0], root / "root/dist")
    shutil.copytree(CHECKOUT / "deploy", root / "root/deploy")
    shutil.copytree(BUILT / "wheels", root / "root/wheels")
    (root / "etc/pip.conf").write_text("[global]\nno-index = yes\nfind-links = /root/wheels\n")
    listing = "find / -xdev -not -path '/proc/*' -not -path '/root/*' -not -path '/tmp/*' -not -path '/var/*'"
    state = "systemctl is-active reactor; systemctl show -P NRestarts reactor"

    shown = booted(
        root,
        [
            ("before", listing),
            ("install", commands("\n## The wheel\n")),
            ("state", state),
            ("upgrade", commands("**The wheel.** To shorten")),
            ("upgraded", state),
            ("remove", commands("$ sudo apt purge reactor\n```")),
            ("after", listing),
        ],
    )

    assert "written; see what it does by" in shown["install"], shown["install"]
    assert "dry run" in shown["install"]
    assert ["active", "0"] == shown["state"].split()
    assert ["active", "0"] == shown["upgraded"].split(), shown["upgrade"]
    assert set() == set(shown["after"].splitlines()) - set(shown["before"].splitlines()), shown["remove"]
