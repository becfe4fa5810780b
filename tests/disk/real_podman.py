"""A podman of a test's own: its images below a directory, its service at a socket of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import MIB

_SERVICE_SECONDS = 30.0
# What podman keeps for itself whatever it is told (its cache of blobs) goes to a mount that only it sees.
_OWN_MOUNTS = 'mount -t tmpfs tmpfs /var/lib/containers && exec "$@"'


class Podman:
    """Calls the service at `socket`, whose images lie below `root`."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.root = root
        self.socket = directory / "podman.sock"
        self._directory = directory

    def command(self) -> list[str]:
        """Return the command of the service, in a mount namespace of its own."""
        places = {
            "--root": self.root,
            "--runroot": self._directory / "runroot",
            "--tmpdir": self._directory / "tmp",
        }
        options = [word for name, value in places.items() for word in (name, str(value))]
        options += ["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]
        service = ["podman", *options, "system", "service", "--time=0", f"unix://{self.socket}"]
        return ["unshare", "--mount", "sh", "-c", _OWN_MOUNTS, "sh", *service]

    def ask(self, *words: str) -> str:
        """Return what the service answers to a command of podman's."""
        done = subprocess.run(
            ["podman", "--remote", "--url", f"unix://{self.socket}", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    def make_image(self, name: str, mib: int) -> None:
        """Make an image of one layer with a file of so many MiB."""
        content = self._directory / "content"
        with content.open("wb") as file:
            for _ in range(mib):
                file.write(os.urandom(MIB))
        archive = self._directory / "layer.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(content, "content")
        self.ask("import", "--quiet", str(archive), name)
        archive.unlink()
        content.unlink()

    def images(self) -> set[str]:
        """Return the names of all images."""
        return set(self.ask("images", "--format", "{{.Repository}}").split())


@contextmanager
def serving(root: Path) -> Iterator[Podman]:
    """Run podman's service; skip, and say why, where there is no podman."""
    if shutil.which("podman") is None or not Path("/var/lib/containers").is_dir():
        pytest.skip("no podman; install podman")
    with tempfile.TemporaryDirectory(prefix="reactor-") as name:  # podman takes no long path for its state
        yield from _served(Podman(root, Path(name)), Path(name))


def _served(podman: Podman, directory: Path) -> Iterator[Podman]:
    log = (directory / "service.log").open("wb")
    service = subprocess.Popen(podman.command(), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _SERVICE_SECONDS
        while not podman.socket.exists():
            said = (directory / "service.log").read_text()
            if service.poll() is not None:
                pytest.skip(f"podman's service does not run here: {said}")
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        yield podman
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(_SERVICE_SECONDS)
        log.close()
