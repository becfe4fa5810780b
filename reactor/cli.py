"""Arguments, one call, an exit status. Each command's module is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    raise SystemExit(f"reactor: no command yet: {arguments!r}")
