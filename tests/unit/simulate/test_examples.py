"""Every scenario below tests/fixtures/scenarios is replayed and compared with what is expected of it.

Of a step only the keys that it names are compared; a ranking by how it begins; of pods and admissions only
the fields that are given.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reactor.cli import main
from reactor.config.documents import load_document

FIXTURES = Path(__file__).parents[2] / "fixtures"
EXAMPLES = sorted((FIXTURES / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_scenario_as_it_lies_there_comes_out_as_expected(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = load_document((FIXTURES / "expected" / path.name).read_text(), path.name)
    status = main(["simulate", str(path), "--output", "json"])
    output = capsys.readouterr()
    steps, errors = [json.loads(line) for line in output.out.splitlines()], output.err
    if expected[0].get("invalid"):
        assert 2 == status
        for pattern in expected[0]["stderr"]:
            assert re.search(pattern, errors), errors
        return
    assert 0 == status, errors
    assert len(expected) == len(steps)
    for wanted, got in zip(expected, steps, strict=True):
        assert wanted == {key: _comparable(key, wanted[key], got[key]) for key in wanted}


def _comparable(key: str, wanted: Any, got: Any) -> Any:
    """Return the part of `got` that is compared with `wanted`."""
    if key == "ranking":
        return got[: len(wanted)]
    if key == "evicted" and len(wanted) == len(got):
        return [{name: pod[name] for name in fields} for fields, pod in zip(wanted, got, strict=True)]
    if key == "admit":
        return {pod: {name: got[pod][name] for name in fields} for pod, fields in wanted.items()}
    return got
