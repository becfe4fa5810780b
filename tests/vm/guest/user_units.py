"""A user's own service manager in a machine without logins, and its units."""

from __future__ import annotations

import pwd
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from guarded import HERE, Unit, eventually, run

USER: Final = pwd.getpwnam("vagrant")
MANAGER: Final = f"user@{USER.pw_uid}.service"
SLICE: Final = f"/user.slice/user-{USER.pw_uid}.slice"
APPLICATIONS: Final = f"{SLICE}/{MANAGER}/app.slice"
EVERYBODYS_APPLICATIONS: Final = "/user.slice/user-[1-9]*.slice/user@*.service/app.slice"
RUNTIME: Final = Path(f"/run/user/{USER.pw_uid}")
_DROP_IN: Final = Path(f"/run/systemd/system/{MANAGER}.d/test.conf")
_UNITS: Final = Path("/run/systemd/user")


class UserManager:
    """user@UID.service while this is entered. Nobody logs in, so it is told where its runtime directory is.

    `lines` are for its [Service] section.
    """

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    def __enter__(self) -> Self:
        _DROP_IN.parent.mkdir(exist_ok=True)
        lines = ["[Service]", f"Environment=XDG_RUNTIME_DIR={RUNTIME}", *self._lines]
        _DROP_IN.write_text("\n".join(lines) + "\n")
        run("systemctl", "daemon-reload")
        run("systemctl", "start", MANAGER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run("systemctl", "kill", "--signal=SIGKILL", MANAGER, check=False)
        run("systemctl", "stop", MANAGER, check=False)
        shutil.rmtree(_DROP_IN.parent)
        shutil.rmtree(_UNITS, ignore_errors=True)
        run("systemctl", "daemon-reload")


def users_systemctl(*arguments: str, check: bool = True) -> str:
    """Have the user's own service manager do something, as the user."""
    environment = ["env", f"XDG_RUNTIME_DIR={RUNTIME}"]
    return run(
        "runuser", "-u", USER.pw_name, "--", *environment, "systemctl", "--user", *arguments, check=check
    )


class Application(Unit):
    """A unit of the user's own service manager, in its app.slice."""

    def __init__(self, name: str, *load: str, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{name}.service", f"{APPLICATIONS}/{name}.service")
        command = " ".join(map(str, (sys.executable, "-S", HERE / "load.py", *load)))
        settings = "\n".join(f"{key}={value}" for key, value in (properties or {}).items())
        _UNITS.mkdir(parents=True, exist_ok=True)
        (_UNITS / self.unit).write_text(f"[Service]\nExecStart={command}\n{settings}\n")
        users_systemctl("daemon-reload")
        users_systemctl("start", "--no-block", self.unit)
        eventually(self.is_alive, f"{self.unit} of the user")

    def is_alive(self) -> bool:
        return users_systemctl("is-active", self.unit, check=False).strip() == "active"

    def result(self) -> str:
        """Return what the user's service manager says of its end: success, signal, oom-kill."""
        return users_systemctl("show", "--value", "--property=Result", self.unit).strip()
