"""What others wrote, for a guest: fetched from Debian when it runs, and no part of this repository.

    debian      systemd-oomd (for oomctl), stress-ng and others: a repository that the guest's apt uses
    cgroup      the kernel's cgroup selftests, compiled here from Debian's linux-source of the suite
    systemd     TEST-55-OOMD and what it needs, of Debian's systemd-tests

What can't be had is named, and its tests are skipped in the guest.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from debian_packages import collect as collect_packages
from host import HOST_SECONDS, HostError, run, say

_FETCH: Final = Path(__file__).resolve().with_name("fetch-packages.sh")
# Of them libpam-systemd and dbus-user-session for a user without a login: loginctl enable-linger, systemctl
# --machine user@.host; the last two for hooks.
_PACKAGES: Final = ("systemd-oomd", "stress-ng", "libpam-systemd", "dbus-user-session", "socat", "jq")
_SOURCES: Final = {"trixie": "linux-source-6.12"}
SELFTESTS: Final = ("core", "cpu", "freezer", "kill", "memcontrol", "pids", "zswap")
_SELFTESTS: Final = "tools/testing/selftests"
_UNPACK_SECONDS: Final = 300


def collect(cache: Path, suite: str, status: str) -> Path:
    """Return a directory with what could be had; `status` is the guest's /var/lib/dpkg/status."""
    directory = cache / f"outside-{suite}"
    directory.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[Path], None]] = {
        "debian": lambda into: _debian(cache / f"outside-debian-{suite}", suite, status, into),
        "cgroup": lambda into: _selftests(cache, suite, status, into),
        "systemd": lambda into: _systemd_tests(cache, suite, status, into),
    }
    for name, make in parts.items():
        into = directory / name
        # Debian's packages have a stamp of their own: another list or another guest needs others.
        if into.is_dir() and name != "debian":
            continue
        beside = directory / f".{name}.new"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            make(beside)
        except (HostError, OSError, subprocess.SubprocessError) as error:
            say(f"outside: {name} can't be had: {str(error)[:400]}")
            shutil.rmtree(beside, ignore_errors=True)
            continue
        shutil.rmtree(into, ignore_errors=True)
        beside.rename(into)
    return directory


def _debian(cache: Path, suite: str, status: str, into: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    shutil.copytree(collect_packages(cache, suite, status, _PACKAGES), into, dirs_exist_ok=True)


def _fetched(cache: Path, suite: str, status: str, name: str) -> Path:
    """Return a package of the suite, alone in a directory of its own."""
    directory = cache / f"outside-{name}"
    if not directory.is_dir():
        installed = cache / f"status-{suite}"
        installed.write_text(status)
        run([_FETCH, suite, installed, directory, name], limit_seconds=HOST_SECONDS)
    (package,) = directory.glob(f"{name}_*.deb")
    return package


def _systemd_tests(cache: Path, suite: str, status: str, into: Path) -> None:
    unpacked = into / "package"
    run(
        ["dpkg-deb", "-x", _fetched(cache, suite, status, "systemd-tests"), unpacked],
        limit_seconds=HOST_SECONDS,
    )
    data = unpacked / "usr/lib/systemd/tests/testdata"
    # The units that it starts are beside it, or from systemd 258 on in a directory of their own.
    for path in (*(data / "units").iterdir(), *data.glob("TEST-55-OOMD.units/*")):
        if path.name.startswith("TEST-55-OOMD") or path.name in {"test-control.sh", "util.sh"}:
            shutil.move(path, into / path.name)
    shutil.rmtree(unpacked)


def _selftests(cache: Path, suite: str, status: str, into: Path) -> None:
    name = _SOURCES.get(suite)
    if name is None:
        raise HostError(f"no source of {suite}'s kernel is known here; known: {', '.join(_SOURCES)}")
    package = _fetched(cache, suite, status, name)
    source = into / "source"
    source.mkdir()
    wanted = " ".join(f"'*/{_SELFTESTS}/{one}'" for one in ("cgroup", "kselftest*.h", "clone3", "pidfd"))
    unpack = (
        f"dpkg-deb --fsys-tarfile '{package}' | tar -xO --wildcards './usr/src/{name}.tar.xz' | xz -dc "
        f"| tar -x -C '{source}' --strip-components=1 --wildcards {wanted}"
    )
    run(["bash", "-o", "pipefail", "-c", unpack], limit_seconds=_UNPACK_SECONDS)
    code = source / _SELFTESTS / "cgroup"
    for test in SELFTESTS:
        # The guest's libc is another one: nothing is shared with this machine's.
        words = ["gcc", "-static", "-O2", "-w", "-pthread", "-D_GNU_SOURCE", "-o", into / f"test_{test}"]
        try:
            run([*words, code / f"test_{test}.c", code / "cgroup_util.c"], limit_seconds=HOST_SECONDS)
        except HostError as error:
            say(f"outside: test_{test} does not compile here: {str(error)[-300:]}")
    shutil.rmtree(source)
