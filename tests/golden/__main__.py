"""`python -m tests.golden`: record anew what the tests compare with."""

from __future__ import annotations

from tests.golden.deferrals import texts
from tests.golden.files import write_json


def main() -> None:
    """Record everything anew."""
    write_json("deferred_because.json", texts())


if __name__ == "__main__":
    main()
