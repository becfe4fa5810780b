"""`python -m tests.size.traced OUT NODE run --config FILE`: the daemon, which notes what its first kill runs.

From the wake for memory to the first SIGKILL each module that runs is noted, and each call whose name does
not stand in the line that makes it: neither a search nor "go to definition" follows it.

A wake may make two passes: that of an early level, and that of a crossing which comes while the loop waits
for it. The pass that kills counts, and what led from the wake to the first one. So a trace is the same
whichever level woke the loop. A kill that was not prepared for is none to be noted: OUT.prepared is there
once it is.

What a pass reads of the pods depends on when they came. Here it is all that it may be, which is what a reader
has to hold: right before each pass a pod comes into NODE, the directory of the virtual node, for another one,
and all pods stay young.
"""

from __future__ import annotations

import json
import linecache
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import reactor
from reactor.act.kill_path import KillPath
from reactor.cli import main
from reactor.guard.pass_ import Passes
from reactor.sources.wakes import Wakes
from reactor.workloads import cgroups

_PACKAGE: Final = str(Path(reactor.__file__).parent)
_PASS: Final = Passes.make.__code__
_KILLS: Final = frozenset({"pidfd_send_signal", "kill"})
_UNNAMED: Final = (
    "<",
    "__",
)  # comprehensions and lambdas stand where they are called; methods of the language


class Trace:
    """Notes calls between `begin` and the first SIGKILL, then writes them to a file, once.

    `before_pass` is called before each pass.
    """

    def __init__(self, path: Path, before_pass: Callable[[], None]) -> None:
        self._path = path
        self._before_pass = before_pass
        self._files: dict[str, set[str]] = {}
        self._lost: dict[str, str] = {}
        self._before: tuple[dict[str, set[str]], dict[str, str]] | None = None

    def begin(self) -> None:
        """Note what is called from now on."""
        self._files, self._lost, self._before = {}, {}, None
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in _KILLS:
            sys.setprofile(None)
            if not self._path.exists():
                files = {file: sorted(self._files[file]) for file in sorted(self._files)}
                found = {"files": files, "lost": dict(sorted(self._lost.items()))}
                unfinished = self._path.with_suffix(".unfinished")
                unfinished.write_text(json.dumps(found, indent=1))
                unfinished.rename(self._path)
        elif event == "call":
            code = frame.f_code
            if code.co_filename.startswith(_PACKAGE):
                if code is _PASS:
                    self._begin_pass()
                file = code.co_filename[len(_PACKAGE) + 1 :]
                self._files.setdefault(file, set()).add(code.co_qualname)
                if frame.f_back is not None:
                    self._note_hop(frame.f_back, code)

    def _begin_pass(self) -> None:
        """Forget what an earlier pass of the same wake has called, and what came between the two."""
        if self._before is None:
            self._before = self._files, self._lost
        files, self._lost = self._before[0], dict(self._before[1])
        self._files = {file: set(functions) for file, functions in files.items()}
        self._before_pass()

    def _note_hop(self, caller: FrameType, code: CodeType) -> None:
        if code.co_name.startswith(_UNNAMED) or not caller.f_code.co_filename.startswith(_PACKAGE):
            return
        if code.co_flags & 0x20:  # a generator: it is named where it is made, and resumed elsewhere
            return
        first, last = _lines(caller)
        text = "".join(linecache.getline(caller.f_code.co_filename, at) for at in range(first, last + 1))
        if code.co_name not in text and code.co_name.lstrip("_") not in text:
            name = caller.f_code.co_filename[len(_PACKAGE) + 1 :]
            self._lost[f"{name}: {caller.f_code.co_qualname}"] = code.co_qualname


def _lines(frame: FrameType) -> tuple[int, int]:
    """Return the lines of the expression that a frame is at."""
    positions = list(frame.f_code.co_positions())
    first, last, _, _ = positions[frame.f_lasti // 2]
    return first or frame.f_lineno, last or frame.f_lineno


class Comers:
    """Pods that come into a directory: for each that comes the one before it goes."""

    def __init__(self, node: Path) -> None:
        self._last = node / "came-0"
        self._last.mkdir()

    def change(self) -> None:
        """Have one come."""
        self._last.rmdir()
        self._last = self._last.with_name(f"came-{int(self._last.name[5:]) + 1}")
        self._last.mkdir()
        os.setxattr(self._last, "trusted.oomd_omit", b"1")  # the kill is prepared for the hog alone


def _run(arguments: list[str]) -> int:
    out, node = map(Path, arguments[:2])
    trace = Trace(out, Comers(node).change)
    cgroups._BEING_MADE_SECONDS = math.inf  # type: ignore[misc]
    cgroups._SETTLES_SECONDS = math.inf  # type: ignore[misc]
    notify, prepare = Wakes.notify, KillPath.prepare

    def traced(self: Wakes, *wakes: Any) -> None:
        trace.begin()
        notify(self, *wakes)
        sys.setprofile(None)

    def noted(self: KillPath, pods: Any) -> None:
        prepare(self, pods)
        if pods:
            out.with_suffix(".prepared").touch()

    Wakes.notify = traced  # type: ignore[method-assign]
    KillPath.prepare = noted  # type: ignore[method-assign]
    return main(arguments[2:])


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
