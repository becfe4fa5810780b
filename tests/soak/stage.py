"""The other end of stage.c: pods' processes, their orders, deaths, and the kernel's counters over time."""

from __future__ import annotations

import mmap
import os
import selectors
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from reactor.testbed.allocator import compiled_tool
from tests.soak.oracle import Counters, Sample

SLOTS: Final = 32
_HEADER_WORDS: Final = 64
_SLOT_WORDS: Final = 16
_SAMPLE_HEAD: Final = 8
_SAMPLE_WORDS: Final = _SAMPLE_HEAD + 3 * SLOTS
SAMPLES: Final = 32768
_FIRST_SAMPLE: Final = _HEADER_WORDS + SLOTS * _SLOT_WORDS
_WORDS: Final = _FIRST_SAMPLE + SAMPLES * _SAMPLE_WORDS
# The same numbers as stage.c's enums.
_CAPACITY, _THRESHOLD, _SAMPLING, _LEVEL, _CROSSED_NS, _HEAD, _NEAR_BYTES = range(7)
_STOP, _BEAT_NS, _SAVE_NS = 1, 3, 11
_NEAR_THE_LEVEL_BYTES: Final = 4 << 20
_FAR_NS: Final = 4_000_000
_SOON_SECONDS: Final = 60.0
_SILENT_NS: Final = 20_000_000  # twenty beats


class StageError(Exception):
    """The stage itself failed: nothing can be said of the daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process of an instance of a pod that ended, at an instant in ns; `seen_ns` is when that was seen.

    Its `canary`; its `actor`, with the last that took memory; a `worker` that ended before its actor.
    """

    instance: int
    who: str
    at_ns: int
    seen_ns: int


def _peak(node_directory: Path, *, is_v2: bool) -> str:
    """Return the file of the most that the node used, which a reader can begin anew; - where there is none.

    That of v2 begins anew for each reader alone, and since Linux 6.12. Without it a crossing is not seen that
    the kernel itself ended by a kill.
    """
    path = node_directory / ("memory.peak" if is_v2 else "memory.max_usage_in_bytes")
    return str(path) if path.exists() and path.stat().st_mode & stat.S_IWUSR else "-"


class Stage:
    """The stage's process. A context manager: nothing that it started outlives it.

    `slowness`: how many times as long as on real hardware everything takes; as much less often its processes
    run.
    """

    def __init__(
        self, node_directory: Path, capacity_bytes: int, *, is_v2: bool, slowness: float = 1.0
    ) -> None:
        self.slowness = slowness
        # No file of a disk: a page that has to be read again is charged, with all that is read ahead, to
        # the pod that touches it first.
        shared = os.memfd_create("soak-stage")
        os.ftruncate(shared, 8 * _WORDS)
        self._mapped = mmap.mmap(shared, 8 * _WORDS)
        self._bytes = memoryview(self._mapped)
        self._words = self._bytes.cast("q")
        self.names = (
            ("memory.current", "inactive_file")
            if is_v2
            else (
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        )
        usage_name, key = self.names
        tool = compiled_tool("stage", "tests.soak")
        self._process = subprocess.Popen(
            [
                str(tool),
                str(shared),
                str(capacity_bytes),
                str(node_directory / usage_name),
                str(node_directory / "memory.stat"),
                key,
                _peak(node_directory, is_v2=is_v2),
                str(slowness),
                str(node_directory / "cpu.stat") if is_v2 else "-",  # all statistics, until 6.15
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=(shared,),
        )
        os.close(shared)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)
        self._unread = b""
        self.up: set[int] = set()
        self.stillborn: set[int] = set()
        self.done: list[int] = []
        self.saved: set[int] = set()
        self.deaths: list[Death] = []
        self.struck: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._orders.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._selector.close()
        self._words.release()
        self._bytes.release()
        self._mapped.close()

    def guard(self, capacity_bytes: int, threshold_bytes: int, soft_bytes: int = 0) -> None:
        """Take these for the level at which actors note their crossing; from a soft one on it is near."""
        self._words[_CAPACITY] = capacity_bytes
        self._words[_THRESHOLD] = threshold_bytes
        self._words[_NEAR_BYTES] = _NEAR_THE_LEVEL_BYTES + max(0, soft_bytes - threshold_bytes)

    def sample(self, *, on: bool) -> int:
        """Begin to sample, or end it; return the number of the next sample."""
        self._words[_SAMPLING] = on
        return self._words[_HEAD]

    def watch_crossing(self) -> None:
        """Note the instant of the next crossing."""
        self._words[_CROSSED_NS] = 0

    @property
    def crossed_ns(self) -> int | None:
        """Return the instant before the chunk that crossed was touched, by its actor; None before that."""
        return self._words[_CROSSED_NS] or None

    def is_dying(self, slot: int) -> bool:
        """Tell whether the slot's canary does not run any more, though it may not have ended."""
        beat_ns = self._words[_HEADER_WORDS + slot * _SLOT_WORDS + _BEAT_NS]
        return bool(beat_ns) and time.monotonic_ns() - beat_ns > _SILENT_NS * self.slowness

    def stop_growth(self, slot: int) -> None:
        """Have the slot's actor be content with what it has."""
        self._words[_HEADER_WORDS + slot * _SLOT_WORDS + _STOP] = 1

    def save(self, slot: int, seconds: float) -> None:
        """Have the slot's actor need so long to end at SIGTERM."""
        self._words[_HEADER_WORDS + slot * _SLOT_WORDS + _SAVE_NS] = int(seconds * 1e9)

    def start(self, slot: int, instance: int, directory: Path, procs: Sequence[Path]) -> None:
        """Start an actor and its canary in the cgroups whose cgroup.procs are given; see `wait_up`."""
        usage = directory / self.names[0]
        self._order("pod", slot, instance, usage, directory / "memory.stat", *procs)

    def act(
        self, slot: int, kind: str, size_bytes: int, rate_bytes: int = 0, path: Path | None = None
    ) -> None:
        """Have the slot's actor take `size_bytes` more, at a rate a second or at once (0)."""
        self._words[_HEADER_WORDS + slot * _SLOT_WORDS + _STOP] = 0
        self._order("act", slot, kind, size_bytes, rate_bytes, path or "-")

    def kill(self, slot: int) -> None:
        """End the slot's processes ourselves."""
        self._order("kill", slot)

    def free(self, slot: int) -> None:
        """Close the slot's counters: its cgroup is about to be removed."""
        self._order("free", slot)

    def read(self, timeout_seconds: float = 0.0) -> None:
        """Take in what the stage says; wait for something to be said for as long as this."""
        while self._selector.select(timeout_seconds):
            timeout_seconds = 0.0
            found = os.read(self._answers.fileno(), 65536)
            if not found:
                raise StageError(f"the stage ended with status {self._process.wait(5)}")
            *lines, self._unread = (self._unread + found).split(b"\n")
            for line in lines:
                self._take(line.decode().split())

    def wait(self, true: Callable[[], bool], timeout_seconds: float) -> bool:
        """Return whether it became true in time, by what the stage says or otherwise; looks every 2 ms."""
        deadline = time.monotonic() + timeout_seconds
        self.read()
        while not true():
            if time.monotonic() > deadline:
                return False
            self.read(0.002 * self.slowness)
        return True

    def wait_up(self, instances: set[int]) -> None:
        """Wait until these have been started, or killed before they stood. Raises StageError."""
        if not self.wait(lambda: instances <= self.up | self.stillborn, _SOON_SECONDS * self.slowness):
            raise StageError(f"not started: {sorted(instances - self.up)}")

    def wait_done(self, instances: Sequence[int]) -> None:
        """Wait until these have done what they were told, or are dead. Raises StageError."""
        left = list(instances)

        def over() -> bool:
            for instance in [one for one in left if one in self.done or self.is_dead(one)]:
                left.remove(instance)
                if instance in self.done:
                    self.done.remove(instance)
            return not left

        if not self.wait(over, _SOON_SECONDS * self.slowness):
            raise StageError(f"not done: {left}")

    def is_dead(self, instance: int) -> bool:
        """Tell whether the instance's actor has ended."""
        return any(death.instance == instance and death.who == "actor" for death in self.deaths)

    def samples(self, since: int) -> Iterator[Sample]:
        """Yield what was sampled from that number on, oldest first; what was overwritten is not there.

        Far from the level one in some milliseconds is enough, and the last before it came near.
        """
        head = self._words[_HEAD]
        far_bytes = self._words[_CAPACITY] - self._words[_THRESHOLD] - self._words[_NEAR_BYTES]
        told_ns, skipped = 0, -1
        for number in range(max(since, head - SAMPLES + 2), head):
            first = _FIRST_SAMPLE + (number % SAMPLES) * _SAMPLE_WORDS
            is_far = self._words[first + 2] - self._words[first + 3] < far_bytes
            if is_far and self._words[first] - told_ns < _FAR_NS and number < head - 1:
                skipped = number
                continue
            if skipped == number - 1 and not is_far:
                yield self._sample(skipped)
            told_ns = self._words[first]
            yield self._sample(number)

    def last_node(self) -> Counters:
        """Return the node's counters in the latest sample."""
        first = _FIRST_SAMPLE + ((self._words[_HEAD] - 1) % SAMPLES) * _SAMPLE_WORDS
        return Counters(self._words[first + 2], self._words[first + 3])

    def last_sample(self) -> Sample:
        """Return the latest sample."""
        return self._sample(self._words[_HEAD] - 1)

    def _sample(self, number: int) -> Sample:
        first = _FIRST_SAMPLE + (number % SAMPLES) * _SAMPLE_WORDS
        words = self._words[first : first + _SAMPLE_WORDS].tolist()
        before = _FIRST_SAMPLE + ((number - 1) % SAMPLES) * _SAMPLE_WORDS
        return Sample(
            began_ns=words[0],
            ended_ns=words[1],
            node=Counters(words[2], words[3]),
            peak_bytes=words[4],
            cached_before_bytes=self._words[before + 3] if number else None,
            pods={
                words[at]: Counters(words[at + 1], words[at + 2])
                for at in range(_SAMPLE_HEAD, _SAMPLE_WORDS, 3)
                if words[at] and words[at + 1] >= 0
            },
        )

    def _order(self, *words: object) -> None:
        self._orders.write((" ".join(map(str, words)) + "\n").encode())

    def _take(self, words: Sequence[str]) -> None:
        match words:
            case ["up", instance]:
                self.up.add(int(instance))
            case ["stillborn", instance]:
                self.stillborn.add(int(instance))
                now_ns = time.monotonic_ns()
                death = Death(instance=int(instance), who="actor", at_ns=now_ns, seen_ns=now_ns)
                self.deaths.append(death)
            case ["done", instance]:
                self.done.append(int(instance))
            case ["saved", instance]:
                self.saved.add(int(instance))
            case ["struck", instance, at_ns]:
                self.struck.setdefault(int(instance), int(at_ns))
            case ["dead", instance, who, at_ns, seen_ns]:
                death = Death(instance=int(instance), who=who, at_ns=int(at_ns), seen_ns=int(seen_ns))
                self.deaths.append(death)
            case _:
                raise StageError(f"the stage says: {' '.join(words)}")
