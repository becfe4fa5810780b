"""A systemd-journald of a test's own: in a mount namespace in which /run is a directory of the test's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, eventually

_JOURNALD = Path("/lib/systemd/systemd-journald")
_CATALOG = Path(__file__).parents[2] / "deploy/reactor.catalog"
_CONFIGURATION = """[Journal]
Storage=volatile
ReadKMsg=no
Audit=
ForwardToWall=no
ForwardToSyslog=no
RateLimitBurst=0
"""


class OwnJournal:
    """`inside` is what a command line begins with that is to find this journal in the journal's place."""

    def __init__(self, directory: Path) -> None:
        self._run = directory / "run"
        self._catalog = directory / "catalog"
        self.socket_path = self._run / "systemd/journal/socket"
        mounts = f"mount --bind {self._run} /run && mount --bind {self._catalog} /var/lib/systemd/catalog"
        script = f'mount --make-rprivate / && {mounts} && exec "$@"'
        self.inside = ["unshare", "--mount", "sh", "-c", script, "sh"]

    def read(self, *arguments: str) -> str:
        """Return what journalctl prints."""
        return subprocess.run(
            [
                *self.inside,
                "journalctl",
                "--quiet",
                "--no-pager",
                "--directory",
                "/run/log/journal",
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=30 * PATIENCE,
        ).stdout

    def prepare(self) -> None:
        for path in ("systemd/journal", "systemd/journald.conf.d", "log/journal"):
            (self._run / path).mkdir(parents=True)
        (self._run / "systemd/journald.conf.d/test.conf").write_text(_CONFIGURATION)
        source = self._catalog.with_name("root") / "usr/lib/systemd/catalog"
        source.mkdir(parents=True)
        shutil.copy(_CATALOG, source)
        made = self._catalog.with_name("root") / "var/lib/systemd/catalog"
        made.mkdir(parents=True)
        root = str(self._catalog.with_name("root"))
        subprocess.run(["journalctl", "--root", root, "--update-catalog"], check=True, capture_output=True)
        shutil.copytree(made, self._catalog)


@contextmanager
def own_journald(directory: Path) -> Iterator[OwnJournal]:
    """Run a journald inside the block, with reactor's catalog. Skips where there is none."""
    if not _JOURNALD.exists() or not Path("/var/lib/systemd/catalog").is_dir():
        pytest.skip("needs systemd-journald and journalctl: install systemd")
    journal = OwnJournal(directory)
    journal.prepare()
    # The kernel's audit is another's: it is not to be had in a network namespace.
    command: Sequence[str] = [*journal.inside, "unshare", "--net", str(_JOURNALD)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        eventually(journal.socket_path.is_socket, "systemd-journald has started")
        yield journal
    finally:
        process.terminate()
        process.wait(20 * PATIENCE)
