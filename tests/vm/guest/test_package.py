"""The Install page, followed literally: each command of the blocks that name this file is run as printed.

Needs the Debian package, a later version of it, the page, and Debian's Prometheus: `make vm-test-package`.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import CONFIG, V2, eventually, prop, run
from packaged import PACKAGES, SERVICE, Page, follow, versions

PAGE: Final = Page("install.md", followed_by="test_package.py")
# What apt, dpkg and systemd keep for themselves, and what these tests are installed in.
_NOT_COMPARED: Final = (
    "/opt/reactor", "/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/var/log/apt", "/var/log/journal",
    "/var/cache", "/var/lib/apt", "/var/lib/dpkg", "/var/lib/systemd", "/root", "/home",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    not PACKAGES.is_dir(), reason="no package in this machine: make vm-test-package"
)


class _Receiver(BaseHTTPRequestHandler):
    """Takes what is posted to it."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append(json.loads(body))  # type: ignore[attr-defined]
        self.send_response(204)
        self.end_headers()


@pytest.fixture
def posted() -> Iterator[list[dict[str, Any]]]:
    """Yield what is posted to the address that the page names."""
    with HTTPServer(("127.0.0.1", 8080), _Receiver) as server:
        server.taken = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.taken  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


def files() -> set[str]:
    """Return every path of the root filesystem that is compared."""
    prune = [word for path in _NOT_COMPARED for word in ("-path", path, "-prune", "-o")]
    return set(run("find", "/", "-xdev", *prune, "-print").splitlines())


def status() -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def is_answered() -> bool:
        shown = run("reactor", "status", "--output", "json", check=False)
        found.extend([json.loads(shown)] if shown else [])
        return bool(found)

    eventually(is_answered, "reactor status")
    return found[-1]


@pytest.mark.usefixtures("debian")
def test_an_eviction_is_explained_logged_posted_and_alerted_within_the_pages_minutes(
    package_directory: Path, posted: list[dict[str, Any]]
) -> None:
    older, _ = versions()
    shutil.copy(older, package_directory)
    started = time.monotonic()
    for command in [one for name in ("install", "evict", "webhook") for one in PAGE.commands(name)]:
        follow(command, package_directory)
    *prometheus, is_scraped = PAGE.commands("prometheus")
    for command in prometheus:
        follow(command, package_directory)
    eventually(lambda: "=> 1 @" in follow(is_scraped, package_directory, check=False), "a scrape")

    hog, explain, journal = PAGE.commands("hog")
    follow(hog, package_directory)
    eventually(lambda: prop("hog.service", "ActiveState") == "failed", "the hog's end")
    assert "was evicted" in follow(explain, package_directory)
    eventually(lambda: "eviction" in [one["event"] for one in posted], "what is posted")
    (eviction,) = [one for one in posted if one["event"] == "eviction"]
    assert (eviction["pod"], eviction["outcome"]) == ("cgroup/hog.service", "killed")
    assert "evicted cgroup/hog.service (killed)" in eviction["text"]
    logged = follow(journal, package_directory)
    assert "Subject: Pod cgroup/hog.service was evicted" in logged
    (alert,) = PAGE.commands("alert")
    firing = 'alertname="ReactorEvicted", alertstate="firing"'
    eventually(lambda: firing in follow(alert, package_directory), "the alert")

    seconds = time.monotonic() - started
    print(f"from apt install to the firing alert: {seconds:.0f} s", flush=True)
    (minutes,) = re.findall(r"to the alert takes less than (\d+) minutes", PAGE.text)
    assert seconds < 60 * int(minutes)
    rules = Path("/usr/share/reactor/monitoring/rules.yaml").read_text(encoding="utf-8")
    (page,) = re.findall(r"runbook_url: .* # (\S+)#reactorevicted", rules)
    text = Path("/usr/share/doc/reactor/operations", page).read_text(encoding="utf-8")
    assert "\n## ReactorEvicted\n" in text


def test_the_install_page_is_true_from_the_installation_to_the_purge(package_directory: Path) -> None:
    older, newer = versions()
    before = files()

    # Install: it runs, and says what it would do and what to do next.
    shutil.copy(older, package_directory)
    shown = [follow(command, package_directory) for command in PAGE.commands("install")]
    text = prop(SERVICE, "StatusText")
    assert text.startswith("dry run: ")
    assert "would evict from /guarded.slice at memory.available<200Mi, pid.available<5%" in text
    assert "To evict: reactor.dryRun: false in /etc/reactor/config.yaml" in text
    assert text in shown[-1]
    assert prop(SERVICE, "UnitFileState") == "enabled"
    for command in PAGE.commands("look"):
        assert follow(command, package_directory)
    if V2:
        eventually(
            lambda: "armed" in [one["health"] for one in status()["sources"] if one["name"] == "ebpf"], "eBPF"
        )

    # Let it evict: the hog goes, and nothing else.
    for command in PAGE.commands("evict"):
        follow(command, package_directory)
    eventually(lambda: not prop(SERVICE, "StatusText").startswith("dry run"), "the reload")
    hog, *after = PAGE.commands("hog")
    follow(hog, package_directory)
    eventually(lambda: prop("hog.service", "ActiveState") == "failed", "the hog's end")
    assert "was evicted" in follow(after[0], package_directory)
    assert "hog.service" in follow(after[1], package_directory)
    decisions = [json.loads(line) for line in Path("/var/log/reactor/journal.jsonl").read_text().splitlines()]
    evicted = {one["pod"] for decision in decisions for one in decision.get("evictions", ())}
    assert evicted == {"cgroup/hog.service"}

    # Upgrade: the new daemon takes over, with the operator's configuration.
    pid = prop(SERVICE, "MainPID")
    (package_directory / older.name).unlink()
    shutil.copy(newer, package_directory)
    (command,) = PAGE.commands("upgrade")
    gaps = re.search(r"not guarded for (\d+) ms and for (\d+) ms", follow(command, package_directory))
    assert gaps is not None, run("journalctl", "-u", "reactor*", "-n", "60", "--no-pager")
    print(f"gaps at the upgrade: {gaps[1]} ms, {gaps[2]} ms", flush=True)
    assert (prop(SERVICE, "ActiveState"), prop(SERVICE, "NRestarts")) == ("active", "0")
    assert prop(SERVICE, "MainPID") != pid
    assert prop("reactor-stand-by.service", "ActiveState") == "inactive"
    assert "dryRun: false" in CONFIG.read_text()
    assert not prop(SERVICE, "StatusText").startswith("dry run")

    # Remove, and purge: nothing is left, not even what a daemon that was killed leaves to its successor.
    Path("/sys/fs/bpf/reactor/left").mkdir(parents=True, exist_ok=True)
    remove, purge = PAGE.commands("remove")
    follow(remove, package_directory)
    assert prop(SERVICE, "ActiveState") == "inactive"
    assert CONFIG.exists()
    follow(purge, package_directory)
    run("systemctl", "reset-failed", check=False)
    assert files() - before == set()
    cgroups = Path("/sys/fs/cgroup") if V2 else Path("/sys/fs/cgroup/memory")
    left = [Path("/run/reactor"), Path("/sys/fs/bpf/reactor"), *cgroups.glob("system.slice/reactor*")]
    left.append(cgroups / "guarded.slice")
    assert [path for path in left if path.exists()] == []
    assert "reactor" not in run("systemctl", "list-units", "--all", "--plain", "--no-legend", "reactor*")
