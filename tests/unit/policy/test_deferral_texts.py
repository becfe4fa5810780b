"""Each text of `deferred_because` is in a golden record, and each template of the policy's is in a text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import reactor.policy
from tests.golden.deferrals import texts
from tests.golden.files import CHANGED, read_json

RECORDED: Final = read_json("deferred_because.json")
_POLICY: Final = Path(reactor.policy.__file__).parent
# The texts of these are no reasons why an eviction waits. Those of any other module are to be recorded.
_OTHER_TEXTS: Final = {
    "admission.py": None,
    "claims.py": {"_spared"},
    "certainty.py": None,
    "list_entries.py": None,
    "lists.py": None,
    "managed_oom.py": None,
    "messages.py": None,
    "no_victim.py": None,
    "process_victims.py": None,
    "rules.py": {"why_not", "_message"},
    "disks.py": {"_broken_limits"},
    "thresholds.py": None,
}


def _templates() -> Iterator[tuple[str, str]]:
    """Yield where the policy has a text, and a pattern of it."""
    for path in sorted(_POLICY.glob("*.py")):
        others = _OTHER_TEXTS.get(path.name, set())
        if others is not None:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node, pattern in _texts_of(tree, others):
                yield f"{path.name}:{node.lineno}", pattern


def _texts_of(tree: ast.AST, others: set[str]) -> Iterator[tuple[ast.expr, str]]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef) and child.name in others:
            continue
        if isinstance(child, ast.Raise) or _is_docstring(child):
            continue
        pattern = _pattern(child)
        if pattern is not None and isinstance(child, ast.expr):
            yield child, pattern
        else:
            yield from _texts_of(child, others)
        if isinstance(child, ast.JoinedStr):  # a text within a text: a conditional part of it
            for part in child.values:
                if isinstance(part, ast.FormattedValue):
                    yield from _texts_of(part, others)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _pattern(node: ast.AST) -> str | None:
    """Return a pattern of a text with words in it; None for whatever else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        parts = [node.value]
    elif isinstance(node, ast.JoinedStr):
        parts = [str(one.value) if isinstance(one, ast.Constant) else "" for one in node.values]
    else:
        return None
    if not re.search(r"[a-z]{2}.*\s|\s.*[a-z]{2}", "".join(parts)):
        return None
    return "".join(re.escape(part) or ".*" for part in parts)


def test_every_case_has_the_text_that_was_recorded():
    assert RECORDED == texts(), CHANGED


@pytest.mark.parametrize("name", RECORDED)
def test_no_case_evicts(name):
    assert RECORDED[name]


@pytest.mark.parametrize(("place", "pattern"), tuple(_templates()))
def test_every_text_of_the_policy_is_in_some_case(place, pattern):
    assert [text for text in texts().values() if re.search(pattern, text or "")], (
        f"{place}: a text that no case in tests/golden/deferrals.py has"
    )


def test_a_text_that_no_case_has_would_be_found():
    new = """def waits(name):
        'Return why.'
        return f"wait: {name} is {'too late' if name else 'ended'} now"
    """

    found = [pattern for _, pattern in _texts_of(ast.parse(new), set())]

    assert [r"wait:\ .*\ is\ .*\ now", r"too\ late"] == found
