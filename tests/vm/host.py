"""The host's side: commands with a time limit, libvirt, the boxes. What is kept is kept in the cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("REACTOR_VM_CACHE") or ROOT / ".cache" / "vagrant").resolve()
VAGRANT: Final = ROOT / "vagrant"
# The Vagrantfile's PREFIX, which keeps the machines and boxes of two checkouts apart.
PREFIX: Final = f"reactor-{hashlib.sha256(str(CACHE).encode()).hexdigest()[:6]}"

# Limits, not expectations: under emulation beside other load everything swings by a factor of three.
HOST_SECONDS: Final = 600
ASK_SECONDS: Final = 60


class HostError(Exception):
    """Something on the host is missing or fails; the message says what and where."""


def say(text: str) -> None:
    """Print a line about the progress."""
    print(f"vm: {text}", flush=True)


def run(
    command: Sequence[str | Path], *, limit_seconds: float, log: Path | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command on the host within a time limit of its own, and end its whole group if that is over.

    Its output goes to `log`, else it is returned. Raises HostError if it fails and `check` is set,
    subprocess.TimeoutExpired when the time is over.
    """
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("a")) if log else subprocess.PIPE
        child = stack.enter_context(
            subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=_environment(),
                start_new_session=True,
            )
        )
        try:
            text, _ = child.communicate(timeout=limit_seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
            raise
    if check and child.returncode:
        where = f"see {log}" if log else text.strip()
        raise HostError(f"{' '.join(map(str, command))}: exit status {child.returncode}: {where}")
    return subprocess.CompletedProcess(command, child.returncode, text or "", "")


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "LIBVIRT_DEFAULT_URI": "qemu:///system",
        "REACTOR_VM_CACHE": str(CACHE),
        "VAGRANT_CHECKPOINT_DISABLE": "1",
        "VAGRANT_CWD": str(VAGRANT),
        "VAGRANT_DEFAULT_PROVIDER": "libvirt",
        "VAGRANT_DOTFILE_PATH": str(CACHE / "machines"),
        "VAGRANT_HOME": str(CACHE / "home"),
        "VAGRANT_NO_COLOR": "1",
    }


@contextlib.contextmanager
def exclusively() -> Iterator[None]:
    """Let one run at a time use this cache: a second one waits."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is using the machines; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare() -> None:
    """Install the host's packages and see that libvirt answers."""
    log = CACHE / "host.log"
    run([VAGRANT / "install-host.sh"], limit_seconds=HOST_SECONDS, log=log)
    run([VAGRANT / "start-libvirt.sh", CACHE], limit_seconds=HOST_SECONDS, log=log)


def release() -> None:
    """Stop the libvirt that was started here, unless machines are still up."""
    run([VAGRANT / "stop-libvirt.sh", CACHE], limit_seconds=HOST_SECONDS, log=CACHE / "host.log")


def add_box(suite: str, log: Path) -> None:
    """Build the suite's box unless it is there, and give it to Vagrant unless it has that very one."""
    run([VAGRANT / "build-box.sh", suite, CACHE], limit_seconds=HOST_SECONDS, log=log)
    digest = (CACHE / f"{suite}.box.digest").read_text()
    added = CACHE / f"{suite}.box.added"
    name = f"{PREFIX}/{suite}"
    known = run(["vagrant", "box", "list"], limit_seconds=ASK_SECONDS).stdout
    if name in known and added.exists() and added.read_text() == digest:
        return
    remove_volumes(f"{PREFIX}-VAGRANTSLASH-{suite}_")
    box = CACHE / f"{suite}.box"
    run(["vagrant", "box", "add", "--force", "--name", name, box], limit_seconds=HOST_SECONDS, log=log)
    added.write_text(digest)


def forget_boxes() -> None:
    """Take the boxes from Vagrant and libvirt; the built ones stay in the cache."""
    remove_volumes(f"{PREFIX}-VAGRANTSLASH-")
    for added in CACHE.glob("*.box.added"):
        name = f"{PREFIX}/{added.name.partition('.')[0]}"
        run(["vagrant", "box", "remove", "--force", name], limit_seconds=HOST_SECONDS, check=False)
        added.unlink()


def remove_volumes(start: str) -> None:
    """Remove what libvirt keeps of a box: of one that was rebuilt it would go on using the old one."""
    for pool in _virsh("pool-list", "--name").split():
        for line in _virsh("vol-list", pool).splitlines():
            volume = line.split()[0] if line.strip() else ""
            if volume.startswith(start):
                _virsh("vol-delete", "--pool", pool, volume)


def _virsh(*arguments: str) -> str:
    return run(["virsh", "--quiet", *arguments], limit_seconds=ASK_SECONDS, check=False).stdout
