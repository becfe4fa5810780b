"""`python -m tests.golden`: record anew what the tests compare with.

`python -m tests.golden SEED` prints the lines of a seed of driver.py instead, to compare two checkouts.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.golden import driver, scenarios
from tests.golden.deferrals import texts
from tests.golden.files import RECORD, read_lines, write_json, write_jsonl, write_lines
from tests.golden.passes import RECORDS, replayed

_DOCUMENTS = ("tests/unit/guard/test_recorded_documents.py", "tests/unit/steward/test_recorded_status.py")


def main(arguments: list[str]) -> None:
    """Record everything anew, or print the lines of seeds."""
    for seed in map(int, arguments):
        print(*driver.lines_of(seed), sep="\n")
    if not arguments:
        write_json("deferred_because.json", texts())
        write_lines("scenarios.jsonl.gz", scenarios.lines())
        write_lines("events.jsonl.gz", driver.whole())
        write_jsonl("events-digests.jsonl", driver.digests())
        for name in RECORDS:  # of the same daemons, what is decided now
            write_lines(name, [*replayed(read_lines(name))])
        again = [sys.executable, "-m", "pytest", "--quiet", *_DOCUMENTS]
        subprocess.run(again, env={**os.environ, RECORD: "1"}, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
