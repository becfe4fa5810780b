"""Small files that outlive the daemon: read whole, replaced in one step.

A thread writes them, because a disk may hang. One that is small and lies on tmpfs, as below /run, is written
by the loop itself: nothing is waited for there (0.2 ms were measured), and the thread would hold the
interpreter's lock for most of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import trio

from reactor.kernel.files import read_own
from reactor.kernel.libc import lies_in_memory
from reactor.kernel.scheduling import following
from reactor.threads import in_thread

_Content = TypeVar("_Content")
_UNREADABLE: Final = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    ArithmeticError,
)
VERSION: Final = 1
MOST_BYTES: Final = 4 << 20


# A file that is there as a whole or not at all: for each of its readers, and after a power cut.


def write(
    path: Path, text: str, *, mode: int = 0o600, directory_mode: int = 0o700, replace: bool = True
) -> None:
    """Make the file hold this text, and its directory; raise OSError with the path where that can't be done.

    The content is on the disk before the name is, and the name when this returns: after a power cut the file
    is the old one or the new one, never an empty one. Its mode is this, whatever the umask. Not to `replace`
    is to raise FileExistsError where the name is taken, be it since the call.
    """
    path.parent.mkdir(mode=directory_mode, parents=True, exist_ok=True)
    # One fixed name beside it: a crash between the two steps leaves one file behind, not one each time.
    beside = path.parent / f".{path.name}.new"
    beside.unlink(missing_ok=True)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, mode)
            file.write(text)
            file.flush()
            os.fsync(fd)
        if replace:
            beside.replace(path)
        else:
            os.link(beside, path)
            beside.unlink()
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # not every filesystem can (EINVAL); the content is synced already
            os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, document: object) -> None:
    """Replace the file by this, as JSON; raise OSError with its path where that can't be done."""
    write(path, json.dumps(document))


def document_of(content: bytes, *, version: int, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object that a small file holds. Raises ValueError for what no such version wrote."""
    if len(content) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    document = json.loads(content, parse_constant=_refuse_constant)
    if not isinstance(document, dict) or document.get("version") != version:
        raise ValueError(f"not a document of version {version}")
    return document


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


class KeptFile(Generic[_Content]):
    """Saves what it is shown, the latest wins, and loads it after a restart.

    Nothing raises: a file that can't be had is a `problem`. `to_document` makes plain JSON values of the
    content, and `parse` the content of them, or raises what it finds wrong. Beside them the file has its
    version, and the id of the boot if it is valid for one: then `boot_id` is the file that says which.
    `failure` is how the log begins to report, once, that it is not saved; `failures` counts the writes that
    failed. What `is_small` takes no longer to write than the loop can be held up for.
    """

    def __init__(  # noqa: PLR0913 - what its files differ in
        self,
        path: Path,
        to_document: Callable[[_Content], Mapping[str, Any]],
        parse: Callable[[dict[str, Any]], _Content],
        failure: str,
        log: logging.Logger,
        *,
        boot_id: Path | None = None,
        most_bytes: int = MOST_BYTES,
        between_seconds: float = 0.0,
        is_small: Callable[[_Content], bool] = lambda _: False,
    ) -> None:
        self._path = path
        self._to_document = to_document
        self._parse = parse
        self._failure = failure
        self._log = log
        self._boot_id = boot_id
        self._most_bytes = most_bytes
        self._between_seconds = between_seconds
        self._is_small = is_small
        self._shown: tuple[_Content, ...] = ()  # the latest, where there was any
        self._changed = trio.Event()
        self._is_in_memory = False
        self._is_saving = False
        self._tried = trio.Event()
        self.problem: str | None = None
        self.failures = 0

    def load(self) -> _Content | None:
        """Return what an earlier run left, in this boot if that matters; None if there is nothing.

        What can't be read is the `problem`. Blocks on the disk.
        """
        try:
            content = read_own(self._path, self._most_bytes)
            document = document_of(content, version=VERSION, max_bytes=self._most_bytes)
            if any(document[name] != value for name, value in self._boot().items()):
                return None
            return self._parse(document)
        except FileNotFoundError:
            return None
        except _UNREADABLE as error:
            self.problem = f"{self._path}: started without it: {type(error).__name__}: {error}"
            return None

    def document(self, content: _Content) -> dict[str, Any]:
        """Return what the file says of it. Raises OSError."""
        return {"version": VERSION, **self._boot(), **self._to_document(content)}

    def _boot(self) -> dict[str, str]:
        return {} if self._boot_id is None else {"boot_id": self._boot_id.read_text().strip()}

    def show(self, content: _Content) -> None:
        """Have it saved soon."""
        self._shown = (content,)
        self._changed.set()

    async def run(self) -> None:
        """Save until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            self._is_saving = True
            try:
                if self._is_in_memory and all(map(self._is_small, self._shown)):
                    self._save_shown()
                else:
                    # Not abandoned: two writers of one file are worse than a late one.
                    await in_thread(following(self._save_beside_loop))
            except trio.Cancelled:  # before a thread started with it: left for `flush`
                self._changed.set()
                raise
            finally:
                self._is_saving = False
                tried, self._tried = self._tried, trio.Event()
                tried.set()
            await trio.sleep(self._between_seconds)

    async def wait_saved(self) -> None:
        """Wait until `run` has saved what was shown last, or could not."""
        while self._changed.is_set() or self._is_saving:
            await self._tried.wait()

    def flush(self) -> None:
        """Save what was shown last, here and now: the daemon ends."""
        if self._changed.is_set():
            self._save_shown()

    def _save_beside_loop(self) -> None:
        self._save_shown()
        with contextlib.suppress(OSError):  # in a thread: a disk that hangs may hang for statfs(2) too
            self._is_in_memory = lies_in_memory(os.fspath(self._path.parent))

    def _save_shown(self) -> None:
        self.save(*self._shown)

    def save(self, content: _Content) -> bool:
        """Save this, here and now; return whether that went well. Blocks on the disk."""
        try:
            replace(self._path, self.document(content))
        except OSError as error:
            if self.problem is None:
                self._log.error("%s: %s", self._failure, error)
            self.problem = str(error)
            self.failures += 1
            return False
        self.problem = None
        return True
