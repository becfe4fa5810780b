"""The list of deliberate differences in docs/policy.md, made from `known.KNOWN`."""

from __future__ import annotations

from typing import Final

from tests.upstream.differential.known import KNOWN, NEWER, OURS, Known

BEGINS: Final = "<!-- made by `make policy-page` from tests/upstream/differential/known.py -->\n"
ENDS: Final = "<!-- end -->\n"
_TITLES: Final = {OURS: "### Ours", NEWER: "### Newer upstream, which 1.20.2 does not have yet"}


def section() -> str:
    """Return the list as Markdown, what is ours first."""
    parts = [_list(whose, [each for each in KNOWN if each.whose == whose]) for whose in _TITLES]
    return "\n".join(parts)


def with_section(page: str) -> str:
    """Return the page with its list made anew. Raises ValueError where the page has no place for it."""
    if page.count(BEGINS) != 1 or page.count(ENDS) != 1:
        raise ValueError(f"the page has to have {BEGINS.strip()!r} and {ENDS.strip()!r} once each")
    before, rest = page.split(BEGINS)
    return f"{before}{BEGINS}\n{section()}\n{ENDS}{rest.split(ENDS)[1]}"


def _list(whose: str, known: list[Known]) -> str:
    # The reason of what is newer is always that 1.20.2 decides otherwise, and only `known` says how.
    lines = (f"- {each.rule}" if whose == NEWER else f"- {each.rule} {each.reason}" for each in known)
    return "\n".join((_TITLES[whose], "", *lines, ""))
