"""The same machines by QEMU alone: no Vagrant, no libvirt, no bridge, and root only to build the box.

Their network is QEMU's, with ssh at a port of the loopback. Fewer parts that can fail, and the only way to
have a guest whose clock counts instructions.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from definitions import CPUS, MEMORY_MIB, Definition
from host import CACHE, HOST_SECONDS, NATIVE, GuestLostError, HostError, built_box, install_packages, run, say

_BOOT_SECONDS: Final = 600
_FOREIGN_BOOT_SECONDS: Final = 1800
_END_SECONDS: Final = 20


class DirectQemu:
    """One QEMU process for each machine.

    `counted`: one CPU and a clock of 1 ns an instruction while it is busy, whatever the host does meanwhile.
    """

    def __init__(self, *, counted: bool = False) -> None:
        self._counted = counted
        self._directory = CACHE / ("counted" if counted else "direct")

    def prepare(self) -> None:
        """Install the host's packages."""
        install_packages("qemu")

    def release(self) -> None:
        """Nothing runs here but the machines themselves."""

    def was_used(self) -> bool:
        """Tell whether a machine was ever brought up."""
        return self._directory.exists()

    def console(self, name: str) -> Path:
        """Return the file that the machine's serial console is written to."""
        return CACHE / f"console-{name}.log"

    def is_running(self, name: str) -> bool:
        """Tell whether its process is there."""
        return self._pid(name) is not None

    def up(self, definition: Definition, log: Path) -> None:
        """Boot it from a box of the present builder. Raises GuestLostError if it stays away."""
        if definition.architecture != NATIVE:
            install_packages(definition.architecture)
        base = self._unpacked(built_box(definition, log), definition.box, log)
        own = self._own(definition.name)
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        backing = ["-f", "qcow2", "-F", "qcow2", "-b", base / "box.img"]
        run(["qemu-img", "create", "-q", *backing, own / "disk.qcow2"], limit_seconds=HOST_SECONDS, log=log)
        self.console(definition.name).unlink(missing_ok=True)
        self._boot(definition, base, own, log)

    def boot_again(self, definition: Definition, log: Path) -> None:
        """Boot a machine that went down from its own disk. Raises GuestLostError if it stays away."""
        self._boot(definition, self._directory / f"box-{definition.box}", self._own(definition.name), log)

    def cut_power(self, name: str) -> None:
        """End it at once, as a lost power supply does: what the guest has not written to its disk is lost."""
        pid = self._pid(name)
        if pid is not None:
            _end(pid, signal.SIGKILL)

    def ssh_config(self, name: str) -> str:
        """Return what ssh has to know to reach it by its name."""
        settings = {
            "HostName": "127.0.0.1",
            "Port": (self._own(name) / "port").read_text(),
            "User": "vagrant",
            "IdentityFile": str(CACHE / "key"),
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
        }
        return "\n".join([f"Host {name}", *(f"  {key} {value}" for key, value in settings.items()), ""])

    def destroy(self, name: str) -> None:
        """Take it away, up or not."""
        pid = self._pid(name)
        if pid is not None:
            _end(pid, signal.SIGTERM, signal.SIGKILL)
        shutil.rmtree(self._own(name), ignore_errors=True)

    def forget(self) -> None:
        """Remove what was unpacked; the built boxes stay in the cache."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _own(self, name: str) -> Path:
        return self._directory / name

    def _boot(self, definition: Definition, base: Path, own: Path, log: Path) -> None:
        port = _free_port()
        (own / "port").write_text(str(port))
        seconds = _BOOT_SECONDS
        if definition.architecture != NATIVE:
            seconds = _FOREIGN_BOOT_SECONDS
            say(f"{definition.name}: emulated: another architecture than this host's")
        elif not _has_kvm():
            say(f"{definition.name}: emulated: there is no KVM here")
        run(self._command(definition, base, own, port), limit_seconds=HOST_SECONDS, log=log)
        self._wait_for_ssh(definition.name, own, seconds)

    def _command(self, definition: Definition, base: Path, own: Path, port: int) -> list[str | Path]:
        accelerator, processor, board = ["-accel", "kvm"], "host", "pc"
        if definition.architecture != NATIVE:
            # Graviton2's.
            accelerator, processor, board = ["-accel", "tcg,thread=multi"], "neoverse-n1", "virt"
        elif self._counted or not _has_kvm():
            # What "max" has above it (AVX2, XSAVE) makes an emulated boot 1.5 to 2 times longer.
            accelerator, processor = ["-accel", "tcg,thread=multi"], "Nehalem"
        if self._counted:
            accelerator = ["-accel", "tcg,thread=single", "-icount", "shift=0"]
        # Over its boots, one after the other.
        console = f"file,id=console,path={self.console(definition.name)},append=on"
        disk = f"file={own / 'disk.qcow2'},if=virtio,cache=unsafe,format=qcow2"
        network = f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{port}-:22"
        return [
            f"qemu-system-{definition.processor}",
            *("-machine", board, *accelerator),
            *("-cpu", processor, "-smp", "1" if self._counted else str(CPUS), "-m", str(MEMORY_MIB)),
            *("-kernel", base / "vmlinuz", "-initrd", base / "initrd.img", "-append", definition.arguments),
            *("-drive", disk, "-nic", network, "-device", "virtio-rng-pci"),
            *("-display", "none", "-monitor", "none", "-chardev", console, "-serial", "chardev:console"),
            *("-no-reboot", "-pidfile", own / "pid", "-daemonize"),
        ]

    def _unpacked(self, box: Path, name: str, log: Path) -> Path:
        """Return a directory with the box's kernel, initrd and disk, unpacked once for each build."""
        directory = self._directory / f"box-{name}"
        digest = (CACHE / f"{name}.box.digest").read_text()
        stamp = directory / "digest"
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            unpack = ["tar", "-C", directory, "-xf", box, "vmlinuz", "initrd.img", "box.img"]
            run(unpack, limit_seconds=HOST_SECONDS, log=log)
            stamp.write_text(digest)
        return directory

    def _wait_for_ssh(self, name: str, own: Path, seconds: float) -> None:
        config = own / "ssh-config"
        config.write_text(self.ssh_config(name))
        deadline = time.monotonic() + seconds
        ask = ["ssh", "-F", config, "-o", "ConnectTimeout=20", "-o", "BatchMode=yes", name, "true"]
        while time.monotonic() < deadline:
            if not self.is_running(name):
                raise GuestLostError(f"its QEMU ended; see {self.console(name)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                if run(ask, limit_seconds=60, check=False).returncode == 0:
                    return
            time.sleep(0.5)
        raise GuestLostError(f"it did not come up in {seconds} s; see {self.console(name)}")

    def _pid(self, name: str) -> int | None:
        """Return its QEMU's process id; an id that another process has got since is not taken for it."""
        own = self._own(name)
        try:
            pid = int((own / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        return pid if os.fsencode(own / "disk.qcow2") in command else None


def _has_kvm() -> bool:
    """Tell whether KVM works: /dev/kvm may be there and not do so, on a host that is itself a guest."""
    forced = os.environ.get("REACTOR_VM_DRIVER")
    if forced:
        return forced == "kvm"
    flags = Path("/proc/cpuinfo").read_text(errors="replace").split()
    return os.access("/dev/kvm", os.W_OK) and bool({"vmx", "svm"} & set(flags))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(pid: int, *numbers: signal.Signals) -> None:
    """End a process by one signal after the other, and wait until it is gone."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            if not Path(f"/proc/{pid}").exists():
                return
            time.sleep(0.1)
    raise HostError(f"QEMU process {pid} does not end")
