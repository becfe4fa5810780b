"""The check of the language finds what STYLE asks for, and leaves the rest alone."""

from __future__ import annotations

import pytest

from tests.language import problems

_LONG = "The guard " + "waits and " * 15 + "kills."


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        (_LONG, [(1, "33 words")]),
        (f"One sentence.\nAnother one. {_LONG}", [(1, "33 words")]),
        (f"# {_LONG}", []),
        (f"```\n{_LONG}\n```\n\n{_LONG}", [(5, "33 words")]),
        (f"| a | b |\n|---|---|\n| x | {_LONG} |", [(3, "33 words")]),
        ("The command `" + "reactor " * 40 + "` works.", []),
        ("What the guard reads is bounded.", [(1, "subject first")]),
        ("Told are the times.", [(1, "subject first")]),
        ("Of the pods one dies.", [(1, "subject first")]),
        ("What to do: limit the service.", []),
        ("What does the guard read?", []),
        ("## What never happens", []),
        ("The guard (which kills (at once)) waits.", [(1, "parenthesis within a parenthesis")]),
        ("The guard ([a link](page.md)) waits (or kills).", []),
        ("- An item.\n- " + _LONG, [(2, "33 words")]),
    ],
)
def test_a_sentence_to_rewrite_is_named_with_its_line(markdown: str, expected: list[tuple[int, str]]) -> None:
    found = list(problems(markdown))
    assert [(line, problem.split(":")[0]) for line, problem in found] == expected
