"""Globs and regular expressions over names: as Python's where those end, and ending where they do not."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reactor.model.name_patterns import matcher

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\.", r"\d", "[a-c]", r"[\]x]", r"\w"])
TIMES = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,}", "{0,2}"])
EXPRESSIONS = st.recursive(
    st.tuples(ATOMS, TIMES).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(st.lists(inner, min_size=1, max_size=3).map("|".join), TIMES).map(
            lambda group: f"({group[0]}){group[1]}"
        ),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.text(alphabet="abc.1]x", max_size=6))
def test_an_expression_matches_what_pythons_matches(expression: str, name: str) -> None:
    try:
        matches = matcher(f"~{expression}")
    except ValueError as error:
        assume("inside each other" not in str(error))
        raise
    assert matches(name) == (re.fullmatch(expression, name, re.DOTALL) is not None)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("nginx.service", "nginx.service", "nginxxservice"),
        ("nginx*", "nginx@1.service", "anginx"),
        ("[!n]*", "web", "nginx"),
        ("~nginx(-[0-9]+)?\\.service", "nginx-12.service", "nginx-.service"),
        ("~^(web|db)-[a-z]{2,3}$", "db-abc", "db-abcd"),
        ("~(?:a|b)*c", "abbac", "abba"),
        ("~a\\$", "a$", "a"),
        ("~a\\\\$", "a\\", "a$"),
        ("~", "", "a"),
        ("~a|", "", "b"),
        ("~(a*)*", "aaa", "ab"),
        ("~a{0,2}b", "aab", "aaab"),
        ("~[[]a", "[a", "a"),
    ],
)
def test_whole_names_match(pattern: str, matching: str, other: str) -> None:
    matches = matcher(pattern)
    assert (True, False) == (matches(matching), matches(other))


@pytest.mark.parametrize(
    "expression",
    [
        "(a",
        "a)",
        "*a",
        "a**",
        "[a",
        "a{65}",
        "a{3,2}",
        "{2}",
        "a^b",
        "a$b",
        "a\\",
        "\\1",
        "\\bweb",
        "(?=a)",
        "(?i)a",
        "a+?",
        "[z-a]",
        "((((a*)*)*)*)*",
        "a" * 257,
    ],
)
def test_what_is_no_such_expression_is_refused_with_the_accepted_form(expression: str) -> None:
    with pytest.raises(ValueError, match="a regular expression"):
        matcher(f"~{expression}")


@pytest.mark.parametrize("expression", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "a*a*a*a*a*b", "((a*)*)*b"])
def test_an_expression_that_pythons_does_not_end_on_ends(expression: str) -> None:
    """Python's would take longer than the machine lasts."""
    assert not matcher(f"~{expression}")("a" * 255)


@given(st.text(max_size=20))
def test_arbitrary_text_is_an_expression_or_refused(text: str) -> None:
    with suppress(ValueError):
        matcher(f"~{text}")("name")
