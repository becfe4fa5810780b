"""What a function does is said, but where its one statement says it; ruff's rules count no statements."""

from __future__ import annotations

import ast
import re
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


def unknown_modules(package: Path) -> list[str]:
    """Return what the docstring of a package lists as its modules, and is none.

    A line of a list is a name, or several, two blanks and what is in it; `; another: …` may follow.
    """
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    lines = re.findall(r"^ {0,4}([a-z_]+(?:, [a-z_]+)*)  +(\S.*)$", text, re.MULTILINE)
    listed = [name for names, more in lines for name in (*names.split(", "), *re.findall(r"; (\w+):", more))]
    return [one for one in listed if not (package / f"{one}.py").exists() and one != "here"]


@pytest.mark.parametrize(
    ("docstring", "unknown"),
    [
        ("Parts.\n\n    one   the first; two: the second", []),
        ("Parts.\n\none, two   both\nthree   the third; four: another", ["three", "four"]),
        ("Text of two  columns is no list, nor is one; so: this.", []),
    ],
)
def test_a_module_that_a_package_lists_is_looked_for(
    tmp_path: Path, docstring: str, unknown: list[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "__init__.py").write_text(f'"""{docstring}"""\n')

    assert unknown_modules(tmp_path) == unknown


def test_each_module_that_a_package_lists_exists() -> None:
    packages = (path.parent for path in _PACKAGE.rglob("__init__.py"))
    unknown = {package.name: names for package in packages if (names := unknown_modules(package))}
    assert unknown == {}


def test_all_others_say_what_they_do() -> None:
    missing = {
        str(path.relative_to(_PACKAGE)): names
        for path in _PACKAGE.rglob("*.py")
        if (names := undocumented(path.read_text()))
    }
    assert missing == {}
