"""`reactor simulate --sweep` over the limit and the time of a rule."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from reactor.cli import main
from reactor.errors import ConfigError
from reactor.simulate.scenario import Scenario, scenario_from_text
from reactor.simulate.sweep import Outcome, Speed, sweep
from reactor.simulate.sweep_axes import axes_of, combinations, ruled
from tests.unit.simulate.test_rules import RULE, full, scenario

GAUGE = {**RULE, "when": [{"usage": "90%"}]}
STEPS = [
    {"at": f"{10 * number}s", "cgroups": full(percent=percent)}
    for number, percent in enumerate((50, 85, 85, 95, 95, 50))
]


def made(*steps: dict[str, Any], rules: tuple[Any, ...] = (GAUGE,)) -> Scenario:
    return scenario_from_text(scenario(*(steps or STEPS), rules=rules), "s")


def outcomes(*texts: str) -> dict[str, Outcome]:
    axes = axes_of(texts)
    swept = sweep([("s", made())], axes, Speed())
    return {", ".join(map(str, one.combination)): one.outcome for one in swept}


def test_each_limit_and_time_says_how_often_the_rule_would_have_acted_and_when_first() -> None:
    found = outcomes("rule:thrash>=80%,90%,99%@0s,20s")
    assert {
        "rule:thrash>=80%@0s": (1, 1, 10.0),
        "rule:thrash>=90%@0s": (1, 1, 30.0),
        "rule:thrash>=99%@0s": (0, 0, None),
        "rule:thrash>=80%@20s": (1, 1, 30.0),
        "rule:thrash>=90%@20s": (0, 0, None),
        "rule:thrash>=99%@20s": (0, 0, None),
    } == {text: (one.acted, one.acted_evictions, one.first_acted_seconds) for text, one in found.items()}


def test_a_limit_or_a_time_alone_leaves_the_other_as_it_is() -> None:
    assert [1, 0] == [one.acted for one in outcomes("rule:thrash>=80%..90%/10%").values()]
    assert [1, 1, 0] == [one.acted for one in outcomes("rule:thrash@0s,10s,11s").values()]


def test_a_rule_is_varied_beside_thresholds_and_waits_for_hard_ones() -> None:
    found = outcomes("memory.available<400Mi,600Mi", "rule:thrash@0s")
    assert [(0, 1), (1, 0)] == [(one.crossings, one.acted) for one in found.values()]


@pytest.mark.parametrize(
    ("condition", "limit", "expected"),
    [
        ({"pressure": "memory some", "stall": "1s", "within": "5s"}, "1500ms", 1.5),
        ({"events": "max", "atLeast": 5, "within": "5s"}, "20", 20),
        ({"swapTraffic": "1Mi", "within": "5s"}, "2Mi", 2 << 20),
        ({"pagesScanned": 1000, "within": "5s"}, "5k", 5000),
        ({"pressure": "io full", "avg60": "5%"}, "12.5%", 12.5),
    ],
)
def test_a_limit_is_written_as_that_of_the_rules_first_condition(
    condition: dict[str, Any], limit: str, expected: float
) -> None:
    rules = made(rules=({**RULE, "when": [condition, {"usage": "1%"}]},)).rules
    (combination,) = combinations(axes_of([f"rule:thrash>={limit}"]))
    (rule,) = ruled(rules, combination)
    assert [expected, 1.0] == [one.limit for one in rule.conditions]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rule:other>=80%", "'other'; accepted: a rule of the scenario: thrash"),
        ("rule:thrash>=500ms", "a limit as that of usage of the limit >= 90 %"),
        ("rule:thrash>=5Mi", "a share above 0%"),
        ("rule:thrash>=0%", "a share above 0%"),
    ],
)
def test_a_limit_that_is_none_and_a_rule_that_is_not_there_are_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        outcomes(text)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ({"pressure": "memory some", "stall": "1s", "within": "5s"}, "rule:thrash>=6s"),
        ({"events": "max", "within": "5s"}, "rule:thrash>=0"),
    ],
)
def test_a_limit_out_of_its_range_is_refused(condition: dict[str, Any], text: str) -> None:
    rules = made(rules=({**RULE, "when": [condition]},)).rules
    with pytest.raises(ConfigError):
        ruled(rules, next(combinations(axes_of([text]))))


@pytest.mark.parametrize(
    "texts", [["rule:thrash"], ["rule:thrash>="], ["rule:thrash@x"], ["rule:thrash@-1s"], ["rule:a@1s"] * 2]
)
def test_what_is_no_axis_is_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError):
        axes_of(texts)


def test_table_csv_and_report_have_the_rules_columns_and_none_where_no_rule_is_varied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "s.json", tmp_path / "out.csv"
    file.write_text(scenario(*STEPS, rules=(GAUGE,)))
    sweeps = ["--sweep", "rule:thrash>=80%,99%@0s"]
    assert 0 == main(["simulate", *sweeps, "--csv", str(out), str(file)])
    printed = capsys.readouterr().out.split()
    assert ["rule", "thrash"] == [word for word in printed if word in {"rule", "thrash"}]
    assert "crossed" not in printed
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [("80%", "0.0", "1"), ("99%", "0.0", "0")] == [
        (row["rule thrash limit"], row["rule thrash for_seconds"], row["acted"]) for row in rows
    ]
    assert 0 == main(["simulate", "--sweep", "memory.available<1Gi", "--csv", str(out), str(file)])
    assert "acted" not in out.read_text()
    assert 0 == main(["simulate", *sweeps, "--output", "json", str(file)])
    assert "acted_evictions" in json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_report_draws_what_a_rule_does(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` draws it")
    file, out = tmp_path / "s.json", tmp_path / "out.html"
    file.write_text(scenario(*STEPS, rules=(GAUGE,)))
    sweeps = ["--sweep", "rule:thrash>=80%,99%@0s", "--sweep", "memory.available<1Gi,2Gi"]
    assert 0 == main(["simulate", *sweeps, "--report", str(out), str(file)])
    assert "rules acted first at, s" in out.read_text()
