"""What the guarded units run: memory that is taken and held, processes without end, page cache.

load.py hold MIB [stubborn]     take this much at once and hold it; a stubborn one ignores SIGTERM
load.py grow MIB MIB_A_SECOND   take it at that pace, then hold it
load.py survive MIB             have a child hold this much, and go on when that is killed
load.py cache PATH MIB          write a file and read it again, three times over
load.py fork                    start processes that stay, as fast as it goes, from each of them too
"""

from __future__ import annotations

import os
import signal
import sys
import time

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


def fork() -> None:
    while True:
        try:
            os.fork()
        except OSError:  # the machine has no more to give: what there is stays
            time.sleep(0.1)


def main(verb: str, *arguments: str) -> None:
    if verb == "hold":
        hold(int(arguments[0]), stubborn="stubborn" in arguments)
    elif verb == "grow":
        grow(int(arguments[0]), float(arguments[1]))
    elif verb == "survive":
        survive(int(arguments[0]))
    elif verb == "thrash":
        thrash(arguments[0], int(arguments[1]))
    elif verb == "cache":
        cache(arguments[0], int(arguments[1]))
    elif verb == "fork":
        fork()


if __name__ == "__main__":
    main(*sys.argv[1:])
