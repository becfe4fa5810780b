"""oomd.conf(5) and its drop-ins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.rules.oomd_conf import (
    OomAction,
    OomdDefaults,
    OomRuleset,
    oomd_defaults,
    ruleset_of,
    with_oomd_conf,
)

DEFAULTS = OomdDefaults()


def read(text: str) -> tuple[OomdDefaults, list[str]]:
    refused: list[str] = []
    return with_oomd_conf(DEFAULTS, text, refused.append), refused


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_files_the_defaults_are_those_of_systemd_oomd(tmp_path: Path) -> None:
    problems: dict[str, str] = {}
    assert OomdDefaults(swap_used_percent=90, pressure_percent=60, pressure_seconds=30) == oomd_defaults(
        problems, root=tmp_path
    )
    assert {} == problems


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("SwapUsedLimit=80%", OomdDefaults(swap_used_percent=80)),
        ("SwapUsedLimit = 805‰", OomdDefaults(swap_used_percent=80.5)),
        ("SwapUsedLimit=8055‱", OomdDefaults(swap_used_percent=80.55)),
        ("SwapUsedLimit=0%", OomdDefaults(swap_used_percent=1)),
        ("SwapUsedLimit=\\\n 70%", OomdDefaults(swap_used_percent=70)),
        ("DefaultMemoryPressureLimit=4%", OomdDefaults(pressure_percent=4)),
        ("DefaultMemoryPressureLimit=4%\nDefaultMemoryPressureLimit=", DEFAULTS),
        ("DefaultMemoryPressureDurationSec=20", OomdDefaults(pressure_seconds=20)),
        ("DefaultMemoryPressureDurationSec=1min 30s", OomdDefaults(pressure_seconds=90)),
        ("DefaultMemoryPressureDurationSec=1500ms", OomdDefaults(pressure_seconds=1.5)),
        ("DefaultMemoryPressureDurationSec=0", DEFAULTS),
        ("# SwapUsedLimit=80%", DEFAULTS),
        ("; SwapUsedLimit=80%", DEFAULTS),
        ("PrekillHookTimeoutSec=1s", DEFAULTS),
        ("[Other]\nSwapUsedLimit=80%", DEFAULTS),
        ("nothing", DEFAULTS),
    ],
)
def test_a_line_counts_as_for_systemd_oomd(line: str, expected: OomdDefaults) -> None:
    assert (expected, []) == read(f"[OOM]\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "SwapUsedLimit=80",
        "SwapUsedLimit=101%",
        "SwapUsedLimit=-1%",
        "DefaultMemoryPressureLimit=much",
        "DefaultMemoryPressureDurationSec=500ms",
        "DefaultMemoryPressureDurationSec=soon",
        "DefaultMemoryPressureDurationSec=2d",
    ],
)
def test_what_is_wrong_is_named_and_the_default_counts(line: str) -> None:
    found, refused = read(f"[OOM]\n{line}\n")
    assert DEFAULTS == found
    (why,) = refused
    assert line.partition("=")[0] in why


def test_drop_ins_count_by_name_over_the_first_main_file(tmp_path: Path) -> None:
    put(tmp_path, "usr/lib/systemd/oomd.conf", "[OOM]\nSwapUsedLimit=10%\nDefaultMemoryPressureLimit=10%\n")
    put(tmp_path, "etc/systemd/oomd.conf", "[OOM]\nSwapUsedLimit=20%\n")
    put(tmp_path, "usr/lib/systemd/oomd.conf.d/10-a.conf", "[OOM]\nDefaultMemoryPressureDurationSec=20s\n")
    put(tmp_path, "usr/lib/systemd/oomd.conf.d/20-b.conf", "[OOM]\nSwapUsedLimit=30%\n")
    put(tmp_path, "etc/systemd/oomd.conf.d/10-a.conf", "[OOM]\nDefaultMemoryPressureDurationSec=40s\n")
    put(tmp_path, "etc/systemd/oomd.conf.d/15.txt", "[OOM]\nDefaultMemoryPressureLimit=1%\n")
    put(tmp_path, "run/systemd/oomd.conf.d/30-c.conf", "[OOM]\nSwapUsedLimit=40%\n")
    os.symlink("/dev/null", tmp_path / "etc/systemd/oomd.conf.d/30-c.conf")
    problems: dict[str, str] = {}
    assert OomdDefaults(swap_used_percent=30, pressure_seconds=40) == oomd_defaults(problems, root=tmp_path)
    assert {} == problems


def test_files_that_can_not_be_read_are_named_and_the_others_count(tmp_path: Path) -> None:
    drop_ins = tmp_path / "etc/systemd/oomd.conf.d"
    put(tmp_path, "etc/systemd/oomd.conf.d/10.conf", "[OOM]\nSwapUsedLimit=30%\n")
    os.mkfifo(drop_ins / "20.conf")
    (drop_ins / "30.conf").write_bytes(b"\xff")
    (drop_ins / "40.conf").write_bytes(b"#" * (65 << 10))
    (drop_ins / "50.conf").mkdir()
    put(tmp_path, "etc/systemd/oomd.conf.d/60.conf", "[OOM]\nSwapUsedLimit=x\n")
    problems: dict[str, str] = {}
    assert 30 == oomd_defaults(problems, root=tmp_path).swap_used_percent
    assert [str(drop_ins / f"{number}.conf") for number in (20, 30, 40, 50, 60)] == sorted(problems)
    assert "not a regular file" == problems[str(drop_ins / "20.conf")]


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/oomd.conf.d", "")
    problems: dict[str, str] = {}
    assert DEFAULTS == oomd_defaults(problems, root=tmp_path)
    assert {str(tmp_path / "etc/systemd/oomd.conf.d"): "Not a directory"} == problems


@given(st.text(max_size=200))
def test_no_text_brings_anything_but_limits_that_can_be(text: str) -> None:
    for found, _ in (
        read(text),
        read(f"[OOM]\nSwapUsedLimit={text}\nDefaultMemoryPressureDurationSec={text}"),
    ):
        assert 1 <= found.swap_used_percent <= 100
        assert 1 <= found.pressure_percent <= 100
        assert 1 <= found.pressure_seconds <= 86400


RULES = "etc/systemd/oomd/rules.d"


def rule(text: str) -> tuple[OomRuleset | None, list[str]]:
    refused: list[str] = []
    return ruleset_of("stall", text, refused.append), refused


def test_a_rule_file_says_all_its_conditions_and_what_is_done() -> None:
    text = "[Rule]\nMemoryPressureAbove=50%\nSwapUsageMax=805‰\nLastingSec=1min 2s\nAction=kill-by-pgscan\n"
    expected = OomRuleset(
        action=OomAction.KILL_BY_PGSCAN,
        pressure_percent=50,
        swap_percent=80.5,
        seconds=62,
    )
    assert (expected, []) == rule(text)
    assert (expected, []) == rule(text.replace("kill-by-pgscan", "kill_by_pgscan"))


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("MemoryPressureAbove=50%", "Action"),
        ("Action=kill-all", "condition"),
        ("Action=kill-all\nLastingSec=3s", "condition"),
        ("Action=kill\nSwapUsageMax=5%", "'kill'"),
        ("Action=kill-all\nSwapUsageMax=5", "'5'"),
        ("Action=kill-all\nSwapUsageMax=", "SwapUsageMax"),
        ("Action=kill-all\nSwapUsageMax=5%\nLastingSec=2d", "LastingSec"),
        ("Action=kill-all\nSwapUsageMax=5%\nLastingSec=", "LastingSec"),
        ("Action=kill-all\nSwapUsageMax=5%\nMemoryPresureAbove=1%", "MemoryPresureAbove"),
    ],
)
def test_a_rule_file_with_one_fault_is_not_in_force_and_the_fault_is_named(lines: str, named: str) -> None:
    found, (why,) = rule(f"[Rule]\n{lines}\n")
    assert found is None
    assert named in why
    assert "accepted: " in why


def test_rule_files_are_those_of_the_first_place_of_each_name_and_an_empty_one_switches_off(
    tmp_path: Path,
) -> None:
    of_vendor = "[Rule]\nSwapUsageMax=70%\nAction=kill-by-swap\n"
    for name in ("own", "off", "masked", "vendors"):
        put(tmp_path, f"usr/lib/systemd/oomd/rules.d/{name}.oomrule", of_vendor)
    put(tmp_path, f"{RULES}/own.oomrule", of_vendor.replace("70", "50"))
    put(tmp_path, f"{RULES}/off.oomrule", "")
    (tmp_path / RULES / "masked.oomrule").symlink_to(os.devnull)
    put(tmp_path, f"{RULES}/wrong.oomrule", "[Rule]\nAction=kill\n")
    put(tmp_path, f"{RULES}/no-rule.conf", of_vendor)
    problems: dict[str, str] = {}
    found = oomd_defaults(problems, root=tmp_path).rulesets
    assert {"own": 50, "vendors": 70} == {name: one.swap_percent for name, one in found.items()}
    assert [str(tmp_path / RULES / "wrong.oomrule")] == list(problems)


def test_more_rule_files_than_are_read_are_a_problem(tmp_path: Path) -> None:
    for number in range(257):
        put(tmp_path, f"{RULES}/{number:03}.oomrule", "[Rule]\nSwapUsageMax=70%\nAction=kill-all\n")
    problems: dict[str, str] = {}
    assert 256 == len(oomd_defaults(problems, root=tmp_path).rulesets)
    assert "257 files" in problems["oomd/rules.d"]


@given(st.text(max_size=200), st.text(max_size=20))
def test_no_text_brings_anything_but_a_rule_that_can_be_or_a_refusal(text: str, name: str) -> None:
    lines = f"[Rule]\nAction=kill-all\nSwapUsageMax=5%\nLastingSec={text}\nMemoryPressureAbove={text}"
    for content in (text, f"[Rule]\n{text}\nAction=kill-all\nSwapUsageMax=5%", lines):
        refused: list[str] = []
        found = ruleset_of(name, content, refused.append)
        assert (found is None) == bool(refused)
        if found is not None:
            limits = [one for one in (found.pressure_percent, found.swap_percent) if one is not None]
            assert limits
            assert all(1 <= limit <= 100 for limit in limits)
            assert 0 <= found.seconds <= 86400
