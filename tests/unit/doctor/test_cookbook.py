"""docs/cookbook.md: each configuration passes `config check` without a warning, and guards whom it says.

The machine of a recipe is a tree of cgroups, called as systemd, podman and the kubelet call them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from reactor.config.settings import layers_of, load_settings
from reactor.doctor.findings import findings, guarded
from reactor.kernel.cgroup import CgroupVersion
from reactor.model.pod_lists import Preference

PAGE: Final = Path(__file__).resolve().parents[3] / "docs/cookbook.md"
MIB: Final = 1 << 20
DAEMON: Final = "/system.slice/reactor.service"
PROGRAMS: Final = ("/usr/bin/journalctl", "/usr/bin/logger", "/usr/bin/wall")
_PARTITION: Final = "/kubepods.slice/kubepods-system.slice"
_UID: Final = "0e4a3c0a_1111_4222_8333_0123456789a"
_APPLICATIONS: Final = "/user.slice/user-1000.slice/user@1000.service/app.slice"
_SERVICES: Final = (
    "/system.slice/NetworkManager.service",
    "/system.slice/chrony.service",
    "/system.slice/dbus.service",
    "/system.slice/docker.service",
    "/system.slice/nginx.service",
    "/system.slice/polkit.service",
    "/system.slice/reactor.service",
    "/system.slice/ssh.service",
    "/system.slice/system-getty.slice/getty@tty1.service",
    "/system.slice/system-postgresql.slice/postgresql@15-main.service",
    "/system.slice/systemd-journald.service",
    "/system.slice/systemd-networkd.service",
    "/user.slice/user-0.slice",
    "/user.slice/user-1000.slice/session-1.scope",
)
_DESK: Final = (
    f"{_APPLICATIONS}/app-gnome-firefox-4711.scope",
    f"{_APPLICATIONS}/dconf.service",
    f"{_APPLICATIONS}/gpg-agent.service",
    "/user.slice/user-1000.slice/user@1000.service/session.slice/org.gnome.Shell@wayland.service",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The machine that a recipe is for, and who may be evicted there, in which order of preference."""

    cgroups: tuple[str, ...]
    may_go: frozenset[str]
    last: frozenset[str] = frozenset()
    limits: Mapping[str, int] | None = None


RECIPES: Final = {
    "A database server": (
        Recipe(
            cgroups=_SERVICES,
            may_go=frozenset({"nginx.service", "system-postgresql.slice", "user-1000.slice"}),
            last=frozenset({"system-postgresql.slice"}),
        ),
    ),
    "A CI runner": (
        Recipe(
            cgroups=("/ci.slice/run-r1.scope", "/ci.slice/docker-1.scope"),
            may_go=frozenset({"run-r1.scope", "docker-1.scope"}),
            limits={"/ci.slice": 12 << 30},
        ),
    ),
    "A desktop": (Recipe(cgroups=(*_SERVICES, *_DESK), may_go=frozenset({"app-gnome-firefox-4711.scope"})),),
    "A container host": (
        Recipe(
            cgroups=(
                "/machine.slice/libpod-1.scope",
                "/machine.slice/libpod-conmon-1.scope",
                "/machine.slice/machine-db.slice/libpod-2.scope",
                "/machine.slice/machine-db.slice/libpod-conmon-2.scope",
                "/machine.slice/machine-libpod_pod_3.slice/libpod-3.scope",
                "/machine.slice/machine-libpod_pod_3.slice/libpod-conmon-3.scope",
            ),
            may_go=frozenset({"libpod-1.scope", "machine-db.slice", "machine-libpod_pod_3.slice"}),
        ),
    ),
    "Beside or instead of other daemons": (
        Recipe(
            cgroups=(*_SERVICES, *_DESK, "/system.slice/apt-daily.service"),
            may_go=frozenset(
                {
                    "nginx.service",
                    "system-postgresql.slice",
                    "apt-daily.service",
                    "app-gnome-firefox-4711.scope",
                    "dconf.service",
                    "gpg-agent.service",
                }
            ),
            last=frozenset({"apt-daily.service"}),
        ),
    ),
    "Restart=always": (
        Recipe(cgroups=("/guarded.slice/worker.service",), may_go=frozenset({"worker.service"})),
    ),
    "SIGTERM first, SIGKILL at a lower threshold": (
        Recipe(cgroups=("/guarded.slice/worker.service",), may_go=frozenset({"worker.service"})),
    ),
    "A Kubernetes node": (Recipe(cgroups=("/kubepods.slice",), may_go=frozenset()),),
    "The system partition": (
        Recipe(
            cgroups=(
                f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_UID}1.slice",
                f"{_PARTITION}/kubepods-system-burstable.slice/kubepods-system-burstable-pod{_UID}2.slice",
            ),
            may_go=frozenset({f"kubepods-burstable-pod{_UID}1.slice"}),
            limits={_PARTITION: 1 << 30},
        ),
    ),
}


def blocks() -> dict[str, list[str]]:
    """Return the configurations of the page, by the heading that they are under."""
    found: dict[str, list[str]] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        found[heading] = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return found


def test_each_recipe_of_the_page_has_a_machine_that_it_is_tried_on() -> None:
    assert {heading: len(texts) for heading, texts in blocks().items() if texts} == {
        heading: len(recipes) for heading, recipes in RECIPES.items()
    }


CASES: Final = [
    pytest.param(text, recipe, id=heading)
    for heading, texts in blocks().items()
    for text, recipe in zip(texts, RECIPES.get(heading, ()), strict=False)
]
# The page prints one role of a Kubernetes node, and names the other.
CASES.extend(
    pytest.param(text.replace("role: alongside", "role: sole"), *RECIPES[heading], id=f"{heading}, sole")
    for heading, (text, *_) in blocks().items()
    if heading == "A Kubernetes node"
)


@pytest.fixture(params=list(CgroupVersion))
def tree(request, make_tree, monkeypatch, tmp_path):
    """Return the cgroups of a machine with systemd and a system bus."""
    (tmp_path / "bus").touch()
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
    monkeypatch.setattr("reactor.doctor.findings.daemon_cgroup", lambda: DAEMON)
    monkeypatch.setattr("reactor.doctor.findings.unrunnable_because", missing_because)
    return make_tree(request.param)


@pytest.fixture
def proc(tmp_path):
    """Return what a machine of 16 GiB shows of itself."""
    kib = {"MemTotal": 16 << 20, "MemFree": 12 << 20, "Cached": 2 << 20, "AnonPages": 1 << 20}
    kib |= {"Buffers": 1 << 10, "Inactive(file)": 1 << 20, "SReclaimable": 1 << 10, "SUnreclaim": 1 << 10}
    kib |= {"PageTables": 1 << 10, "KernelStack": 1 << 10, "Percpu": 1 << 10}
    path = tmp_path / "proc"
    (path / "self").mkdir(parents=True)
    (path / "meminfo").write_text("".join(f"{name}: {amount} kB\n" for name, amount in kib.items()))
    return path


@pytest.mark.parametrize(("text", "recipe"), CASES)
def test_a_recipe_is_checked_without_a_warning_and_guards_whom_it_says(text, recipe, tree, proc, tmp_path):
    for cgroup in {one for path in recipe.cgroups for one in above(path)}:
        tree.add(cgroup)
    for cgroup, limit_bytes in (recipe.limits or {}).items():
        tree.tree.set_memory_limit(cgroup, limit_bytes)
    config = tmp_path / "config.yaml"
    config.write_text(text)

    settings, layers = load_settings(config), layers_of(config)
    said = [*settings.warnings, *map(str, findings(settings, layers, tree.tree, proc=proc))]

    assert [] == said
    who = guarded(settings, tree.tree, proc=proc, daemon=DAEMON)
    pods = {(one.pod.cgroup or "").rpartition("/")[2]: one for one in who.pods if one.spared_because is None}
    assert recipe.may_go == set(pods)
    assert recipe.last == {name for name, one in pods.items() if one.pod.preference is Preference.AVOID}


def missing_because(command: tuple[str, ...]) -> str | None:
    """Return why a command can't be run there, None for what Debian has."""
    return None if command[0] in PROGRAMS else f"{command[0]}: No such file or directory"


def above(path: str) -> list[str]:
    """Return a cgroup and those above it."""
    parts = path.split("/")[1:]
    return ["/", *(f"/{'/'.join(parts[:count])}" for count in range(1, len(parts) + 1))]
