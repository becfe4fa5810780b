"""oomd.conf(5) and its drop-ins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.managed_oom import OomdDefaults
from reactor.rules.managed import oomd_defaults, with_oomd_conf

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
