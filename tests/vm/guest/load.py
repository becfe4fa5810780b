"""What the guarded units run: memory that is taken and held, processes without end, page cache.

load.py hold MIB [stubborn]     take this much at once and hold it; a stubborn one ignores SIGTERM
load.py grow MIB MIB_A_SECOND   take it at that pace, then hold it
load.py edge CGROUP BYTES MIB   take memory until that is its working set, and on SIGUSR1 so much more
load.py survive MIB             have a child hold this much, and go on when that is killed
load.py cache PATH MIB          write a file and read it again, three times over
load.py read PATH MIB           write a file, and read it again and again until ended
load.py scan PATH MIB           the same without a pause
load.py probe PATH              answer 20 times a second, and write to the file how often
load.py revisit MIB             take this much and write to all of it again and again
load.py fork                    start processes that stay, as fast as it goes, from each of them too
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import count

MIB = 1 << 20


def hold(mib: int, *, stubborn: bool) -> None:
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kept = b"\1" * (mib * MIB)
    while kept:
        signal.pause()


def grow(mib: int, mib_per_second: float) -> None:
    kept = []
    for _ in range(mib):
        kept.append(b"\1" * MIB)
        time.sleep(1 / mib_per_second)
    while kept:
        signal.pause()


def edge(cgroup: str, level_bytes: int, mib: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    kept = []
    while working_set_bytes(cgroup) < level_bytes:
        kept.append(b"\1" * (256 << 10))
    signal.sigwait({signal.SIGUSR1})
    hold(mib, stubborn=False)


def working_set_bytes(cgroup: str) -> int:
    with open(f"{cgroup}/memory.stat") as file:
        stat = {name: int(value) for name, value in map(str.split, file)}
    try:
        with open(f"{cgroup}/memory.current") as file:
            used = int(file.read())
    except FileNotFoundError:  # of the machine
        used = stat["anon"] + stat["file"]
    return used - stat["inactive_file"]


def survive(mib: int) -> None:
    if os.fork() == 0:
        hold(mib, stubborn=False)
    while True:
        signal.pause()


def thrash(path: str, mib: int) -> None:
    kept = b"\1" * (mib * MIB)
    while kept:
        with open(path, "wb") as file:
            file.writelines(kept[:MIB] for _ in range(200))
        os.unlink(path)


def cache(path: str, mib: int) -> None:
    block = b"\1" * MIB
    for _ in range(3):
        with open(path, "wb") as file:
            for _ in range(mib):
                file.write(block)
            os.fsync(file.fileno())
        with open(path, "rb") as file:
            while file.read(MIB):
                pass
    os.unlink(path)


def read(path: str, mib: int, pause_seconds: float) -> None:
    block = b"\1" * MIB
    with open(path, "wb") as file:
        file.writelines(block for _ in range(mib))
        file.flush()
        os.fsync(file.fileno())  # dirty pages could not be reclaimed
    while True:
        with open(path, "rb", buffering=0) as file:
            while file.read(MIB):
                pass
        time.sleep(pause_seconds)


def probe(path: str) -> None:
    kept = bytearray(8 * MIB)
    for answers in count(1):
        for offset in range(0, len(kept), mmap.PAGESIZE):
            kept[offset] = answers % 256
        with open(f"{path}.new", "w") as file:
            file.write(str(answers))
        os.rename(f"{path}.new", path)
        time.sleep(0.05)


def revisit(mib: int) -> None:
    kept = bytearray(mib * MIB)
    while True:
        for page in range(0, len(kept), 4096):
            kept[page] = (kept[page] + 1) & 0xFF


def fork() -> None:
    while True:
        try:
            os.fork()
        except OSError:  # the machine has no more to give: what there is stays
            time.sleep(0.1)


VERBS: dict[str, Callable[..., None]] = {
    "hold": lambda mib, *how: hold(int(mib), stubborn="stubborn" in how),
    "grow": lambda mib, mib_per_second: grow(int(mib), float(mib_per_second)),
    "edge": lambda cgroup, level_bytes, mib: edge(cgroup, int(level_bytes), int(mib)),
    "survive": lambda mib: survive(int(mib)),
    "thrash": lambda path, mib: thrash(path, int(mib)),
    "cache": lambda path, mib: cache(path, int(mib)),
    "read": lambda path, mib: read(path, int(mib), 0.2),
    "scan": lambda path, mib: read(path, int(mib), 0.0),
    "probe": probe,
    "revisit": lambda mib: revisit(int(mib)),
    "fork": fork,
}


def main(verb: str, *arguments: str) -> None:
    VERBS[verb](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
