"""The host's side: what a run keeps, commands with a time limit, and what they may find wrong."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from definitions import Definition

NATIVE: Final = "amd64"
ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("REACTOR_VM_CACHE") or ROOT / ".cache" / "vagrant").resolve()
VAGRANT: Final = ROOT / "vagrant"

# Limits, not expectations: under emulation beside other load everything swings by a factor of three.
HOST_SECONDS: Final = 600
FOREIGN_SECONDS: Final = 7200  # a box whose packages' scripts are emulated
ASK_SECONDS: Final = 60


class HostError(Exception):
    """Something on the host is missing or fails; the message says what and where."""


class GuestLostError(Exception):
    """The machine is gone or doesn't answer: nothing is known about what was tested."""


class InstallError(Exception):
    """The wheel does not install in a machine that is well: a failure of what is tested."""


def say(text: str) -> None:
    """Print a line about the progress."""
    print(f"vm: {text}", flush=True)


def run(
    command: Sequence[str | Path],
    *,
    limit_seconds: float,
    log: Path | None = None,
    check: bool = True,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command on the host within a time limit of its own, and end its whole group if that is over.

    Its output goes to `log`, else it is returned; `environment` is added to our own. Raises HostError if it
    fails and `check` is set, subprocess.TimeoutExpired when the time is over.
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
                env={**os.environ, **(environment or {})},
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


def install_packages(purpose: str) -> None:
    """Install what the host lacks for `libvirt`, for `qemu` alone or for `arm64`, from Debian's packages."""
    run([VAGRANT / "install-host.sh", purpose], limit_seconds=HOST_SECONDS, log=CACHE / "host.log")


def built_box(definition: Definition, log: Path) -> Path:
    """Return a machine's box, built unless the one in the cache is of the present builder."""
    builder = [VAGRANT / "build-box.sh", definition.suite, CACHE, definition.architecture]
    foreign = definition.architecture != NATIVE
    run(builder, limit_seconds=FOREIGN_SECONDS if foreign else HOST_SECONDS, log=log)
    return CACHE / f"{definition.box}.box"
