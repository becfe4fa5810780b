"""The policy's state is written by the policy, and held in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import reactor

ROOT: Final = Path(reactor.__file__).parent
HOLDERS: Final = {"policy", "guard/node.py", "simulate/replay.py"}
OTHERS: Final = {"cluster", "sources"}  # their states are of another kind: a runtime's, a source's


def writers(source: str) -> Iterator[int]:
    """Yield the lines in which a state is assigned, or made from another one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Attribute) and part.attr == "state":
                        yield node.lineno
        elif (
            isinstance(node, ast.Attribute)
            and node.attr == "_replace"
            and _name(node.value).endswith("state")
        ):
            yield node.lineno


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.slow
def test_nothing_outside_the_policy_writes_its_state_but_those_who_hold_it():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if not {str(one.relative_to(ROOT)) for one in (path, path.parent)} & (HOLDERS | OTHERS)
        for line in writers(path.read_text(encoding="utf-8"))
    ]

    assert [] == found


def test_a_writer_would_be_found():
    source = "a.state = x\nstate, a.state = 1, 2\nb = a.state._replace(c=1)\nb = state\n"

    assert [1, 2, 3] == sorted(writers(source))
