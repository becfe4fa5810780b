"""The journal: one JSON line a decision, in files of a bounded size.

`path` is the newest file, `path.1` the one before, and so on. A line is written whole or not at all: what a
full disk cut off is truncated away, and what a crash cut off is closed by a newline before the next line.
Lines are not synced: the journal explains, it does not guarantee; the state file carries what must survive.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from reactor.model.settings import JournalSettings
from reactor.plain import open_regular
from reactor.tell.log import LineWriter
from reactor.text import object_in_line

_LOG: Final = logging.getLogger("reactor.journal")
_CLOSE_SECONDS: Final = 2.0
_TAIL_BYTES: Final = 1 << 20

Document = Mapping[str, Any]
Done = Callable[[bool], None]


class Journal:
    """Writes lines, from a thread of its own; `write` never blocks and never raises.

    `written` and `lost` count lines; `problem` says why lines are being lost at present (None: they aren't).
    """

    def __init__(self, settings: JournalSettings) -> None:
        self._file = _RotatingFile(settings)
        self._writer = LineWriter("reactor-journal", self._append)
        self._done: deque[Done] = deque()
        self._failed = 0
        self.written = 0
        self.problem: str | None = None

    @property
    def lost(self) -> int:
        """Return how many lines were dropped: the queue was full, or the disk refused them."""
        return self._writer.lost + self._failed

    def start(self) -> None:
        self._writer.start()

    def write(self, line: bytes, done: Done = lambda _: None) -> bool:
        """Queue a line, its newline included; return False where it had to be dropped.

        `done` is called in the writer's thread, in the lines' order, with whether the line was written; it is
        not called for one that was dropped.
        """
        self._done.append(done)
        queued = self._writer.put(lambda: line)
        if not queued:
            self._done.pop()
            self._fail("its queue is full: the disk is slower than the decisions")
        return queued

    def close(self) -> None:
        """Write what is queued, but wait for no hung disk longer than two seconds."""
        if self._writer.close(_CLOSE_SECONDS):
            self._file.close()
        else:
            _LOG.warning("journal: a write still hangs after %.0f s; the last lines are lost", _CLOSE_SECONDS)

    def _append(self, line: bytes) -> None:
        try:
            self._file.append(line)
        except OSError as error:
            self._failed += 1
            is_written = False
            self._fail(f"{error.strerror} ({error.filename or self._file.path})")
        else:
            self.written += 1
            is_written = True
            if self.problem is not None:
                _LOG.warning("journal: written again; %d lines were lost", self.lost)
            self.problem = None
        self._done.popleft()(is_written)

    def _fail(self, why: str) -> None:
        # Once, not for each line: a full disk would otherwise be answered with a flood of log lines.
        if self.problem is None:
            _LOG.error("journal: lines are being lost: %s", why)
        self.problem = why


def read_tail(path: Path, count: int) -> tuple[Document, ...]:
    """Return the last `count` whole documents of a journal, oldest first; none if unreadable.

    If the newest file has fewer, the file before it is read, too.
    """
    newest = _read_tail(path, count)
    if len(newest) == count:
        return newest
    before = _read_tail(path.with_name(f"{path.name}.1"), count - len(newest))
    return (*before, *newest)


def _read_tail(path: Path, count: int) -> tuple[Document, ...]:
    documents: deque[Document] = deque(maxlen=count)
    try:
        with path.open("rb") as journal:
            size = os.fstat(journal.fileno()).st_size
            journal.seek(max(0, size - _TAIL_BYTES))
            lines = journal.read(_TAIL_BYTES).splitlines()
    except OSError:
        return ()
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(line)
            if isinstance(document, dict):
                documents.append(document)
    return tuple(documents)


def read_all(path: Path) -> Iterator[Document]:
    """Yield all whole documents of a journal, oldest first: of its older files, then of the newest.

    What is no document, or is of no kind, is passed over. Raises OSError, and
    ReactorError if a file can't be read.
    """
    older: list[Path] = []
    while path.with_name(f"{path.name}.{len(older) + 1}").exists():
        older.append(path.with_name(f"{path.name}.{len(older) + 1}"))
    for each in (*reversed(older), path):
        with open_regular(each) as journal:
            for line in journal:
                document = object_in_line(line, b'"kind"')
                if document is not None:
                    yield document


class _RotatingFile:
    def __init__(self, settings: JournalSettings) -> None:
        self.path = Path(settings.path)
        self._max_bytes = settings.max_bytes
        self._files = settings.files
        self._fd = -1
        self._size = 0

    def append(self, line: bytes) -> None:
        """Write one line whole; raise OSError, leaving the file as it was, where that can't be done."""
        if self._fd >= 0 and not self._is_in_place():
            self.close()
        if self._fd < 0:
            self._open()
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        try:
            written = os.write(self._fd, line)
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            self.close()  # the next write opens it again: it may have been removed, or its disk exchanged
            error.filename = str(self.path)
            raise
        self._size += len(line)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _is_in_place(self) -> bool:
        """Return whether the path still leads to the file that is open: it may have been removed or moved."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def _open(self) -> None:
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            self._size = os.fstat(fd).st_size
            if self._size and os.pread(fd, 1, self._size - 1) != b"\n":
                self._size += os.write(fd, b"\n")
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = self._numbered(number)
            with contextlib.suppress(FileNotFoundError):
                self._numbered(number - 1).replace(older)
        if self._files == 1:
            self.path.unlink(missing_ok=True)
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path
