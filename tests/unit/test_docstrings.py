"""What a function does is said, but where its one statement says it; ruff's rules count no statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import reactor

_PACKAGE = Path(reactor.__file__).parent
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _public(body: list[ast.stmt]) -> Iterator[_Function]:
    for one in body:
        if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
            yield from _public(one.body)
        elif isinstance(one, _Function) and not one.name.startswith("_"):
            yield one


def undocumented(text: str) -> list[str]:
    """Return the public functions of more than one statement that have no docstring."""
    return [
        one.name
        for one in _public(ast.parse(text).body)
        if (len(one.body) > 1 or not isinstance(one.body[0], _SIMPLE)) and ast.get_docstring(one) is None
    ]


_SIMPLE = (ast.Return, ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Raise, ast.Delete, ast.Pass)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def one():\n return 1", []),
        ("def two():\n a = 1\n return a", ["two"]),
        ("def loop():\n for _ in a:\n  b()", ["loop"]),
        ("def said():\n 'Return it.'\n a = 1\n return a", []),
        ("class A:\n async def two(self):\n  a = 1\n  return a", ["two"]),
        ("class _A:\n def two(self):\n  a = 1\n  return a", []),
        ("def _two():\n a = 1\n return a", []),
    ],
)
def test_a_public_function_of_one_statement_alone_may_go_without(text: str, found: list[str]) -> None:
    assert undocumented(text) == found


def test_all_others_say_what_they_do() -> None:
    missing = {
        str(path.relative_to(_PACKAGE)): names
        for path in _PACKAGE.rglob("*.py")
        if (names := undocumented(path.read_text()))
    }
    assert missing == {}
