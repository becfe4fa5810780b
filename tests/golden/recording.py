"""Records what daemons decide, for the files that passes.py replays.

    python -m tests.golden.recording run DIRECTORY COMMAND…    the command, its daemons recorded
    python -m tests.golden.recording pack NAME LINES FILE…     the first lines of each record as NAME.jsonl.gz

A daemon that is recorded decides as it would have; it takes a millisecond more for each pass.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from reactor.model.decisions import Decision, PolicyState, Snapshot
from reactor.model.pods import Pod
from reactor.model.rules import Firing
from reactor.model.settings import EvictionSettings
from reactor.policy import decide as policy
from reactor.policy import events
from reactor.policy.events import Event
from tests.golden.files import line, write_lines
from tests.golden.passes import Line, Made, Recorder, replayed

_DIRECTORY: Final = "RECORDED_PASSES"
_ROOT: Final = Path(__file__).parents[2]
# Of whom it was, and by which process.
_NODE: Final = re.compile(r"/reactor-(\w+-)+\d+")
_SITE: Final = f"""
import sys
if {{"run", "reactor"}} <= set(sys.orig_argv):
    sys.path.append({str(_ROOT)!r})
    from tests.golden.recording import record_this_process
    record_this_process()
"""


def record_this_process() -> None:
    """Have the passes of this process recorded from here on."""
    from reactor.guard import node, pass_  # noqa: PLC0415 - in the daemon alone

    path = Path(os.environ[_DIRECTORY], f"{os.getpid()}.jsonl")
    file = path.open("w", buffering=1, encoding="utf-8")

    def put(document: Line) -> None:
        print(line(document), file=file)

    recorder = Recorder(put)

    def decide(
        settings: EvictionSettings,
        state: PolicyState,
        snapshot: Snapshot,
        pods: Sequence[Pod],
        now_seconds: float,
        firing: Firing | None = None,
    ) -> Made:
        made = policy.decide(settings, state, snapshot, pods, now_seconds, firing)
        recorder.decided(settings, state, snapshot, pods, now_seconds, firing, made)
        return made

    def decide_again(
        settings: EvictionSettings,
        state: PolicyState,
        asked: Decision,
        before: Snapshot,
        after: Snapshot,
        pods: Sequence[Pod],
        now_seconds: float,
    ) -> Made:
        made = policy.after_reclaim(settings, state, asked, before, after, pods, now_seconds)
        recorder.reclaimed(settings, state, asked, (before, after), pods, now_seconds, made)
        return made

    def apply(
        settings: EvictionSettings, state: PolicyState, event: Event, now_seconds: float
    ) -> PolicyState:
        after = events.apply(settings, state, event, now_seconds)
        recorder.applied(settings, state, event, now_seconds, after)
        return after

    for module, name, recorded in (
        (pass_, "decide", decide),
        (pass_, "after_reclaim", decide_again),
        (node, "apply", apply),
    ):
        setattr(module, name, recorded)


def run(directory: Path, command: list[str]) -> int:
    """Run a command with its daemons recorded in a directory; return its exit status."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as site:
        Path(site, "sitecustomize.py").write_text(_SITE, encoding="utf-8")
        environment = {"PYTHONPATH": site, _DIRECTORY: str(directory.resolve())}
        return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


def pack(name: str, most: int, paths: list[Path]) -> None:
    """Write the first lines of records into the fixtures, as they replay."""
    lines: list[str] = []
    for number, path in enumerate(paths):
        recorded = path.read_text(encoding="utf-8").splitlines()
        lines += [line({"daemon": number}), *(_NODE.sub("/node", one) for one in recorded[:most])]
    if lines != list(replayed(lines)):
        raise SystemExit("a record does not replay as it was recorded")
    write_lines(f"{name}.jsonl.gz", lines)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", directory, *command] if command:
            sys.exit(run(Path(directory), command))
        case ["pack", name, most, *paths] if paths:
            pack(name, int(most), [*map(Path, paths)])
        case _:
            sys.exit(__doc__)
