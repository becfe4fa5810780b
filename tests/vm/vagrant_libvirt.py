"""Machines through Vagrant and libvirt, as vagrant/Vagrantfile describes them."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Final

from definitions import Definition
from host import (
    ASK_SECONDS,
    CACHE,
    HOST_SECONDS,
    NATIVE,
    VAGRANT,
    GuestLostError,
    HostError,
    built_box,
    install_packages,
)
from host import run as run_on_host

# The Vagrantfile's PREFIX, which keeps the machines and boxes of two checkouts apart.
PREFIX: Final = f"reactor-{hashlib.sha256(str(CACHE).encode()).hexdigest()[:6]}"
_UP_SECONDS: Final = 600
_DESTROY_SECONDS: Final = 120
_ENVIRONMENT: Final = {
    "LIBVIRT_DEFAULT_URI": "qemu:///system",
    "REACTOR_VM_CACHE": str(CACHE),
    "VAGRANT_CHECKPOINT_DISABLE": "1",
    "VAGRANT_CWD": str(VAGRANT),
    "VAGRANT_DEFAULT_PROVIDER": "libvirt",
    "VAGRANT_DOTFILE_PATH": str(CACHE / "machines"),
    "VAGRANT_HOME": str(CACHE / "home"),
    "VAGRANT_NO_COLOR": "1",
}


class VagrantLibvirt:
    """The usual way: libvirt keeps the machines, Vagrant knows them by name."""

    def prepare(self) -> None:
        """Install the host's packages and see that libvirt answers."""
        install_packages("libvirt")
        _run(VAGRANT / "start-libvirt.sh", CACHE, limit_seconds=HOST_SECONDS, log=CACHE / "host.log")

    def release(self) -> None:
        """Stop the libvirt that was started here, unless machines are still up."""
        _run(VAGRANT / "stop-libvirt.sh", CACHE, limit_seconds=HOST_SECONDS, log=CACHE / "host.log")

    def was_used(self) -> bool:
        """Tell whether a machine was ever brought up."""
        return (CACHE / "machines").exists()

    def console(self, name: str) -> Path:
        """Return the file that the machine's serial console is written to."""
        return CACHE / f"console-{name}.log"

    def is_running(self, name: str) -> bool:
        """Tell whether Vagrant knows it as running."""
        status = _run("vagrant", "status", "--machine-readable", name, limit_seconds=ASK_SECONDS, check=False)
        return f",{name},state,running" in status.stdout

    def up(self, definition: Definition, log: Path) -> None:
        """Boot it, from a box of the present builder. Raises GuestLostError if it stays away."""
        if definition.architecture != NATIVE:
            raise HostError(f"{definition.name} is for QEMU alone: --direct")
        _add_box(definition, log)
        try:
            _run("vagrant", "up", "--no-provision", definition.name, limit_seconds=_UP_SECONDS, log=log)
        except (HostError, subprocess.TimeoutExpired) as error:
            raise GuestLostError(f"it did not come up: {error}") from error

    def ssh_config(self, name: str) -> str:
        """Return what ssh has to know to reach it by its name."""
        return _run("vagrant", "ssh-config", name, limit_seconds=ASK_SECONDS).stdout

    def destroy(self, name: str) -> None:
        """Take it away, up or not. Raises HostError or TimeoutExpired where that fails."""
        _run("vagrant", "destroy", "--force", name, limit_seconds=_DESTROY_SECONDS)

    def forget(self) -> None:
        """Take the boxes from Vagrant and libvirt; the built ones stay in the cache."""
        _remove_volumes(f"{PREFIX}-VAGRANTSLASH-")
        for added in CACHE.glob("*.box.added"):
            name = f"{PREFIX}/{added.name.partition('.')[0]}"
            _run("vagrant", "box", "remove", "--force", name, limit_seconds=HOST_SECONDS, check=False)
            added.unlink()


def _add_box(definition: Definition, log: Path) -> None:
    """Build the machine's box unless it is there, and give it to Vagrant unless it has that very one."""
    suite = definition.box
    box = built_box(definition, log)
    digest = (CACHE / f"{suite}.box.digest").read_text()
    added = CACHE / f"{suite}.box.added"
    name = f"{PREFIX}/{suite}"
    known = _run("vagrant", "box", "list", limit_seconds=ASK_SECONDS).stdout
    if name in known and added.exists() and added.read_text() == digest:
        return
    _remove_volumes(f"{PREFIX}-VAGRANTSLASH-{suite}_")
    _run("vagrant", "box", "add", "--force", "--name", name, box, limit_seconds=HOST_SECONDS, log=log)
    added.write_text(digest)


def _remove_volumes(start: str) -> None:
    """Remove what libvirt keeps of a box: of one that was rebuilt it would go on using the old one."""
    for pool in _virsh("pool-list", "--name").split():
        for line in _virsh("vol-list", pool).splitlines():
            volume = line.split()[0] if line.strip() else ""
            if volume.startswith(start):
                _virsh("vol-delete", "--pool", pool, volume)


def _virsh(*arguments: str) -> str:
    return _run("virsh", "--quiet", *arguments, limit_seconds=ASK_SECONDS, check=False).stdout


def _run(
    *command: str | Path, limit_seconds: float, log: Path | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    return run_on_host(command, limit_seconds=limit_seconds, log=log, check=check, environment=_ENVIRONMENT)
