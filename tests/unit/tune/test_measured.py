import dataclasses
import json
from pathlib import Path

import pytest

from reactor.errors import ConfigError
from reactor.tune.history import History
from reactor.tune.measured import Measured, document_of, stored_in
from tests.unit.tune.crossings import make_crossing

HISTORY = History(
    decisions=3,
    crossings=(make_crossing(1.5),),
)


def test_what_is_stored_is_read_back_the_same(tmp_path: Path, measured: Measured) -> None:
    path = tmp_path / "measured.json"
    whole = dataclasses.replace(measured, missed={"x": 1}, problems=("one",))
    path.write_text(json.dumps({**document_of(whole, HISTORY), "recommendation": {}}))
    assert (whole, HISTORY) == stored_in(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Expecting"),
        ("[]", "got None; accepted: 'reactor-tune/1'"),
        ('{"format": "reactor-tune/0"}', "got 'reactor-tune/0'"),
        ('{"format": "reactor-tune/1", "measured": {"x": 1}, "history": {}}', "a file that reactor tune"),
        ('{"format": "reactor-tune/1", "measured": 5, "history": {}}', "a file that reactor tune"),
    ],
)
def test_another_file_is_refused_by_its_path(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        stored_in(path)
    assert told in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "measured.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="accepted: a file that reactor tune has stored"):
        stored_in(tmp_path / "measured.json")
