"""The machine within the machine: where the cluster's programs run, and what ends with it. See keeper.py."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Self

_HERE: Final = Path(__file__).resolve().parent
_KEEPER: Final = _HERE / "keeper.py"
_PREFIX: Final = "reactor-kube-"
_KEEPER_SECONDS: Final = 120.0
_END_SECONDS: Final = 20.0
# By how much everything may take longer than on a machine; more than 1 where a processor is emulated.
PATIENCE: Final = float(os.environ.get("REACTOR_KUBE_PATIENCE") or 1)
# What takes longer hangs. It says nothing of how long things take: a busy machine is waited for.
HANG_SECONDS: Final = 240.0
# $$ stays the same across exec, so the program is in its cgroups from its first instruction on.
_ENTER: Final = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'
# Whether kubelet and runtime have systemd make the pods' cgroups: in a machine that is the tests' alone.
BY_SYSTEMD: Final = os.environ.get("REACTOR_KUBE_CGROUP_DRIVER") == "systemd"


class LostError(Exception):
    """Something that the tests stand on is missing or gone: nothing is known about the code then."""


def wait_until(
    true: Callable[[], object], what: str, seconds: float = HANG_SECONDS, pause: float = 0.05
) -> None:
    """Wait until `true` holds. Raises TimeoutError that names `what` did not happen."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)


class Program:
    """A program that runs in the machine, its output in a file."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log_path = log

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self.process.pid

    def log(self) -> str:
        """Return what it has written."""
        return self.log_path.read_text(errors="replace")

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return self.process.poll() is None

    def wait_ready(self, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until `ready`. Raises LostError if it ends before, or not in time, with the end of its log."""
        deadline = time.monotonic() + seconds * PATIENCE
        while not ready():
            if not self.is_alive() or time.monotonic() > deadline:
                state = "is not ready" if self.is_alive() else f"ended with {self.process.returncode}"
                raise LostError(f"{self.name} {state}; the end of {self.log_path}:\n{self.log()[-3000:]}")
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """End it by SIGTERM, else by SIGKILL, and return its exit status."""
        if self.is_alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_END_SECONDS * PATIENCE)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End it as a crash would."""
        self.process.kill()
        return self.process.wait()


class Machine:
    """A place for one cluster. A context manager: whatever was started in it has ended afterwards.

    `node_cgroup` is the cgroup (below the hierarchies' roots) in which the pods will live: one of its own, or
    the root where the kubelet has systemd make the pods' cgroups (`by_systemd`). `logs` is kept.
    Raises LostError where the place can't be made or can't be taken away.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.by_systemd = BY_SYSTEMD
        self.state = Path()
        self.node_cgroup = ""
        self._name = ""
        self._keeper: subprocess.Popen[str] | None = None
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        sweep()
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(parents=True)
        # The node is called so, its underscores as hyphens, and no node's name ends with one.
        self.state = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix="0", dir="/tmp"))
        self.state.chmod(0o755)
        self._lock = _locked(self.state)
        self._name = self.state.name.replace("_", "-")
        self.node_cgroup = "/" if self.by_systemd else f"/{self._name}"
        how = ["--systemd"] if self.by_systemd else []
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-I", str(_KEEPER)]
        with (self.logs / "keeper.log").open("w") as log:
            self._keeper = subprocess.Popen(
                [*command, *how, str(self.state), self._name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the tests; it cleans up after them
            )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "ready\n":
            self.close()
            raise LostError(f"the keeper did not come up: {(self.logs / 'keeper.log').read_text()}")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything. Raises LostError for what could not be taken away."""
        if self._keeper is None:
            return
        keeper, self._keeper = self._keeper, None
        assert keeper.stdin is not None
        keeper.stdin.close()
        status = keeper.wait(_KEEPER_SECONDS * PATIENCE)
        if keeper.stdout is not None:
            keeper.stdout.close()
        if self._lock is not None:
            self._lock.close()
        if status:
            raise LostError(f"not all could be taken away: {(self.logs / 'keeper.log').read_text()}")

    @property
    def system_cgroup(self) -> str:
        """Return the cgroup of the programs."""
        return f"/{self._name}-system"

    def path(self, inside: str) -> Path:
        """Return where a path below the machine's /run, /var/log or /var/lib is to be found from outside."""
        for name, target in (("log", "/var/log"), ("lib", "/var/lib"), ("run", "/run")):
            if inside.startswith(f"{target}/"):
                return self.state / name / inside.removeprefix(f"{target}/")
        return Path(inside)

    def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program inside; its output is appended to a log named after it."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.entering(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        return Program(name, process, log)

    def run(self, command: Sequence[str | Path], seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command inside and return its output; its failure is the caller's to judge."""
        return subprocess.run(
            self.entering(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds * PATIENCE,
        )

    def entering(self, command: Sequence[str | Path]) -> list[str]:
        """Return the command that runs `command` inside, the same process from its start to its end."""
        assert self._keeper is not None
        cgroups = [str(path / "cgroup.procs") for path in self._system_cgroups()]
        namespace = f"--mount=/proc/{self._keeper.pid}/ns/mnt"
        words = [str(word) for word in command]
        return ["/bin/sh", "-c", _ENTER, "sh", *cgroups, "--", "nsenter", namespace, "--", *words]

    def _system_cgroups(self) -> list[Path]:
        name = self.system_cgroup.lstrip("/")
        return sorted(path for path in Path("/sys/fs/cgroup").glob(f"*/{name}")) or [
            Path("/sys/fs/cgroup") / name
        ]


def sweep() -> None:
    """Remove the state of earlier machines whose keeper was itself killed; their cgroups go with it."""
    for path in Path("/tmp").glob(f"{_PREFIX}*/lock"):
        state = path.parent
        try:
            lock = _locked(state)
        except OSError:
            continue  # in use by another run
        name = state.name.replace("_", "-")
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-I", str(_KEEPER)]
        subprocess.run(
            [*command, "--remove", str(state), name],
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=_KEEPER_SECONDS,
        )
        lock.close()


def _locked(state: Path) -> IO[str]:
    """Return the directory's lock, held. Raises OSError where another run holds it."""
    lock = (state / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise
    return lock
