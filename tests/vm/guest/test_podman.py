"""The cookbook's container host: the package, the recipe as printed, real containers and pods of podman's.

Needs the Debian package, the pages, and Debian's podman: `make vm-test-package`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import CONFIG, MEMORY, V2, eventually, run
from packaged import PACKAGES, Page, follow, versions

PAGE: Final = Page("cookbook.md", followed_by="test_podman.py")
INSTALL: Final = Page("install.md", followed_by="test_package.py")
IMAGE: Final = "localhost/holder"
# It sleeps, doubles a text until that has so many bytes, and sleeps.
HOLD: Final = """
BEGIN {
  system("/bin/busybox sleep %d")
  text = "0123456789abcdef"
  while (length(text) < %d) text = text text
  while (1) system("/bin/busybox sleep 60")
}
"""
MACHINE: Final = MEMORY / "machine.slice"

pytestmark = [
    pytest.mark.skipif(not PACKAGES.is_dir(), reason="no package in this machine: make vm-test-package"),
    pytest.mark.skipif(not V2, reason="the recipe's cgroups are those of cgroup v2"),
]


@pytest.fixture
def podman(debian: None, tmp_path: Path) -> Iterator[None]:
    """Have podman, and an image of one program."""
    run("apt-get", "install", "--yes", "podman", "busybox-static")
    root = tmp_path / "root/bin"
    root.mkdir(parents=True)
    for name in ("busybox", "sh"):
        shutil.copy("/bin/busybox", root / name)
    run("tar", "--create", "--file", tmp_path / "root.tar", "--directory", tmp_path / "root", ".")
    run("podman", "import", "--quiet", tmp_path / "root.tar", IMAGE)
    try:
        yield
    finally:
        run("podman", "pod", "rm", "--all", "--force", "--time=0", check=False)
        run("podman", "rm", "--all", "--force", "--time=0", check=False)
        run("podman", "rmi", "--all", "--force", check=False)
        run("apt-get", "purge", "--yes", "podman", "busybox-static", check=False)


def start(name: str, held_bytes: int, *options: str, after_seconds: int = 0) -> str:
    """Start a container that takes so much memory, and return its id."""
    program = ("/bin/busybox", "awk", HOLD % (after_seconds, held_bytes))
    return run("podman", "run", "--detach", f"--name={name}", *options, IMAGE, *program).strip()


def is_running(container: str) -> bool:
    return run("podman", "inspect", "--format={{.State.Status}}", container).strip() == "running"


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods of the configuration, by the names of their cgroups."""
    shown = json.loads(run("reactor", "config", "show", "--output", "json"))
    return {one["pod"].removeprefix("cgroup/"): one for one in shown["pods"]}


@pytest.mark.usefixtures("podman")
def test_a_pod_of_podmans_goes_as_a_whole_and_the_containers_beside_it_live(package_directory: Path) -> None:
    shutil.copy(versions()[0], package_directory)
    for command in INSTALL.commands("install"):
        follow(command, package_directory)
    CONFIG.write_text(PAGE.block("containers", "yaml"))
    follow("sudo reactor config check /etc/reactor/config.yaml", package_directory)

    (in_a_slice,) = PAGE.commands("a slice")
    options = in_a_slice.removeprefix("sudo podman run ").removesuffix(" IMAGE").split()
    database = start("db", 128 << 20, "--network=none", *options)
    web = start("web", 64 << 20, "--network=none")
    infra = (f"--infra-image={IMAGE}", "--infra-command=/bin/busybox sleep 100000")
    run("podman", "pod", "create", *infra, "--network=none", "shop")
    shop = start("shop-web", 16 << 20, "--pod=shop")
    (of_the_pod,) = MACHINE.glob("machine-libpod_pod_*.slice")
    monitors = {path.parent.name for path in MACHINE.rglob("libpod-conmon-*.scope")}
    assert monitors == {"machine.slice", "machine-db.slice", of_the_pod.name}

    follow("sudo systemctl restart reactor", package_directory)
    known = pods()
    guarded = {name for name, one in known.items() if one["is_guarded"]}
    assert guarded == {f"libpod-{web}.scope", "machine-db.slice", of_the_pod.name}
    assert set(known) - guarded == {f"libpod-conmon-{web}.scope"}
    assert known["machine-db.slice"]["priority"] == 1000

    # Every ten seconds reactor looks which monitors there are.
    hog = start("shop-hog", 1 << 40, "--pod=shop", after_seconds=30)
    eventually(lambda: not is_running(hog), "podman knows of the hog's end")
    eventually(lambda: not is_running(shop), "and of that of its pod's other container")
    assert is_running(database)
    assert is_running(web)
    explained = follow(f"sudo reactor explain {of_the_pod.name}", package_directory)
    assert "was evicted" in explained
    decisions = [json.loads(line) for line in Path("/var/log/reactor/journal.jsonl").read_text().splitlines()]
    evicted = [one["pod"] for decision in decisions for one in decision.get("evictions", ())]
    assert evicted == [f"cgroup/{of_the_pod.name}"]
