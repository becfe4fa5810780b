"""Courses under pressure: who runs them, how a probe's stall is told, what follows from the heats."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench.race import pressed_contestants as field
from bench.race.contestants import Contestant, Entrant, Ground, Programs, Role
from bench.race.heat import Course
from bench.race.pressed import (
    MEMORY_BYTES,
    PRESSED,
    REPLAYS,
    SESSION_MEMORY_BYTES,
    SWAP_BYTES,
    Answer,
    Innocent,
    PressedFinish,
    Stall,
    disk_of,
    measured_under_pressure,
    stall,
)
from bench.race.results import report, table
from reactor.config.settings import load_settings
from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.swap import SwapSpace

MIB = 1 << 20
MS = 1_000_000
NODE = "/reactor-race-1"


def answers(*took_ms: int, every_ms: int = 10) -> list[Answer]:
    """Return answers, each begun 10 ms after the one before, or at its end where that is later."""
    found: list[Answer] = []
    begin = 0
    for ms in took_ms:
        found.append((begin, begin + ms * MS))
        begin = max(begin + every_ms * MS, found[-1][1])
    return found


def contestant(ground: Ground) -> Contestant:
    return Contestant(
        name="one",
        role=Role.PEER,
        settings="",
        enter=lambda _: nullcontext(Entrant()),
        ground=ground,
    )


def finish(
    condition_ms: int | None, dead_ms: int | None, *, given: list[Answer], dead: tuple[str, ...] = ()
) -> PressedFinish:
    return PressedFinish(
        began_ns=50 * MS,
        condition_ns=None if condition_ms is None else condition_ms * MS,
        dead_ns=None if dead_ms is None else dead_ms * MS,
        ended_ns=given[-1][1],
        answers=given,
        innocents=[
            Innocent(name=name, held_bytes=held * MIB, lives=name not in dead)
            for name, held in (("resident", 120), ("probe", 4))
        ],
    )


def test_longest_answer_and_the_end_of_the_last_late_one_are_the_stall() -> None:
    given = answers(1, 1, 1, 1, 1, 200, 1, 90, 1, 1)
    assert Stall(longest_ns=200 * MS, last_late_ns=given[7][1]) == stall(given, 50 * MS, given[-1][1])


def test_answers_that_take_a_little_longer_are_no_stall() -> None:
    given = answers(1, 1, 1, 1, 1, 40, 50, 1)
    assert Stall(longest_ns=50 * MS, last_late_ns=None) == stall(given, 50 * MS, given[-1][1])


def test_a_slow_machines_usual_answers_are_no_stall() -> None:
    given = answers(100, 100, 100, 600, 900, 1100, 100, every_ms=100)
    found = stall(given, 300 * MS, given[-1][1])
    assert given[5][1] == found.last_late_ns  # ten times as long as usual; 900 ms are not


def test_an_answer_that_is_not_given_any_more_took_until_the_end() -> None:
    given = answers(1, 1, 1, 1, 1, 1)
    end_ns = 60_000 * MS
    found = stall(given, 50 * MS, end_ns)
    assert (end_ns - given[-1][1], end_ns) == (found.longest_ns, found.last_late_ns)


def test_without_answers_from_before_nothing_can_be_told() -> None:
    with pytest.raises(ValueError, match="median"):
        stall(answers(1, 1), 0, 100 * MS)


def test_heat_is_distinguished_from_the_condition_and_names_who_was_killed_wrongly() -> None:
    given = answers(1, 1, 1, 1, 1, 200, 1, 1)
    assert {
        "kill_ms": 100.0,
        "early": False,
        "back_ms": None,
        "overshoot_mib": None,
        "stall_ms": 200.0,
        "answers_ms": 190.0,
        "wrong": ["resident"],
        "lost_mib": 120.0,
        "kernel_oom_kills": 0,
    } == measured_under_pressure(finish(60, 160, given=given, dead=("resident",)))


def test_kill_before_the_condition_is_early_and_has_no_latency() -> None:
    given = answers(1, 1, 1, 1, 1, 1, 1, 1)
    for condition_ms in (None, 90):
        found = measured_under_pressure(finish(condition_ms, 70, given=given))
        assert (None, True, None) == (found["kill_ms"], found["early"], found["answers_ms"])


def test_trouble_that_is_not_ended_has_no_end_of_the_stall() -> None:
    found = measured_under_pressure(finish(60, None, given=answers(1, 1, 1, 1, 1, 500)))
    assert (None, False, None, 500.0) == tuple(
        found[name] for name in ("kill_ms", "early", "answers_ms", "stall_ms")
    )


def test_disk_is_the_whole_one_that_a_path_lies_on(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    disk = tmp_path / "devices/vda"
    (disk / "vda1").mkdir(parents=True)
    (disk / "dev").write_text("254:0\n")
    (disk / "vda1/dev").write_text(f"{number}\n")
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / f"dev/block/{number}").symlink_to(disk / "vda1")
    assert number == disk_of(tmp_path, tmp_path)
    (disk / "vda1/partition").touch()
    assert "254:0" == disk_of(tmp_path, tmp_path)


def test_path_on_no_disk_has_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk_of(tmp_path, tmp_path)


def test_each_course_is_for_those_who_guard_a_node_with_as_much_memory() -> None:
    pressed = contestant(Ground(memory_bytes=MEMORY_BYTES, swap_bytes=SWAP_BYTES))
    replaying = contestant(Ground(memory_bytes=SESSION_MEMORY_BYTES))
    plain = contestant(Ground())
    for courses, taking in (PRESSED, pressed), (REPLAYS, replaying), ((Course(pace="step"),), plain):
        for course in courses:
            assert [one is taking for one in (pressed, replaying, plain)] == [
                one.takes_part(course) for one in (pressed, replaying, plain)
            ]


@pytest.mark.parametrize("rules", [field.OOMD_RULES, field.PAGE_RULES, field.FASTEST_RULES])
def test_rules_of_the_race_are_rules_of_the_daemon_for_the_node(rules: Any, tmp_path: Path) -> None:
    written = field.rules_for(NODE, rules)
    config = tmp_path / "reactor.json"
    config.write_text(json.dumps({"evictionHard": {}, "reactor": {"nodeCgroup": NODE, "rules": written}}))
    read = load_settings(config).rules
    assert [rule["name"] for rule in rules] == [one.name for one in read]
    assert {NODE, f"{NODE}/*"} >= {cgroup for rule in written for cgroup in rule["cgroups"]}


def test_oomd_keeps_debians_rules_and_names_nothing_but_the_node() -> None:
    shipped = json.dumps(field.oomd_rulesets("node"))
    assert all(f'"{number}"' in shipped for number in ("60", "30", "10"))
    for rulesets in (field.oomd_rulesets, field.oomd_fastest_rulesets):
        named = [part for part in json.dumps(rulesets("node")).split('"') if part.startswith("node")]
        assert {"node", "node/*"} == set(named)


def test_without_cgroup_v2_or_swap_the_courses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match="cgroup v2"):
        field.pressed_field(CgroupVersion.V1, Programs())
    monkeypatch.setattr(field, "machine_swap", lambda: SwapSpace(total_bytes=100 * MIB, free_bytes=0))
    with pytest.raises(RefusedError, match="need 256 MiB of swap; the machine has 100"):
        field.pressed_field(CgroupVersion.V2, Programs())


def test_everybody_is_there_as_shipped_and_at_the_fastest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(field, "machine_swap", lambda: SwapSpace(total_bytes=SWAP_BYTES, free_bytes=0))
    monkeypatch.setattr(field, "_systemd_oomd_missing", lambda: None)
    for name in ("earlyoom", "nohang", "oomd"):
        (tmp_path / "usr/bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "usr/bin" / name).touch()
    taken, left_out = field.pressed_field(CgroupVersion.V2, Programs(directory=tmp_path))
    names = [one.name for one in taken]
    assert {} == left_out
    for peer in ("earlyoom", "nohang", "oomd", "systemd-oomd", "reactor-rules"):
        assert {peer, f"{peer}-fastest"} <= set(names)
    assert all(one.ground.swap_bytes == SWAP_BYTES for one in taken)
    assert len(names) == len(set(names))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field, "machine_swap", lambda: SwapSpace(total_bytes=SWAP_BYTES, free_bytes=0))
    monkeypatch.setattr(field, "_systemd_oomd_missing", lambda: "not installed")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    taken, left_out = field.pressed_field(CgroupVersion.V2, Programs())
    assert {"earlyoom", "nohang", "oomd", "systemd-oomd"} == set(left_out)
    assert "no-daemon" in [one.name for one in taken]


@pytest.fixture
def found() -> dict[str, Any]:
    def heat(name: str, kill_ms: float | None, **others: Any) -> dict[str, Any]:
        plain = {"early": False, "back_ms": None, "overshoot_mib": None, "wrong": [], "lost_mib": 0.0}
        plain |= {"kernel_oom_kills": 0, "decisions": []}
        answered = None if kill_ms is None else kill_ms + 100
        figures = {"kill_ms": kill_ms, "stall_ms": 400.0, "answers_ms": answered}
        return {"contestant": name, "course": "swap", "round": 1, **plain, **figures, **others}

    about = {"role": Role.PEER, "settings": "", "rss_mib": None, "at_rest_cpu_percent": None, "problems": []}
    return {
        "about": {"date": "", "kernel": "6.12", "cgroup": "v2", "cpu": "one", "cpus": 2, "level_mib": 1},
        "courses": {"swap": "a pod grows"},
        "contestants": dict.fromkeys(("never", "rules", "wrong", "early"), about),
        "left_out": {},
        "heats": [
            heat("never", None),
            heat("rules", 2000.0),
            heat("rules", 4000.0, kernel_oom_kills=1),
            heat("wrong", 9000.0, wrong=["resident"], lost_mib=120.0),
            heat("early", None, early=True),
        ],
        "traces": {},
    }


def test_table_has_the_stall_the_victims_and_what_was_lost(found: dict[str, Any]) -> None:
    lines = list(table(found))
    assert "| rules | 2, 1 by the kernel | 2 / 4 | 0.4 / 0.4 | 2.1 / 4.1 | 0 | 0 |" in lines
    assert "| wrong | 1 | 9 / 9 | 0.4 / 0.4 | 9.1 / 9.1 | 1 | 120 |" in lines
    assert "| never | 1, 1 never | - | 0.4 / 0.4 | - | 0 | 0 |" in lines
    assert "| early | 1, 1 early | - | 0.4 / 0.4 | - | 0 | 0 |" in lines


def test_report_has_a_section_for_the_course(found: dict[str, Any]) -> None:
    sections = {one.heading: one for one in report(found).sections}
    assert "Longest stall of the probe" in [figure.title for figure in sections["swap"].figures]


@pytest.mark.parametrize(
    ("state", "swap", "because"),
    [
        ("active", "auto", "it guards this machine"),
        ("activating", "auto", "it guards this machine"),
        ("failed", "auto", None),
        ("inactive", "kill", "would kill units of this machine"),
        ("inactive", "auto", None),
    ],
)
def test_systemd_oomd_is_not_taken_from_a_machine_that_it_guards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, swap: str, because: str | None
) -> None:
    systemctl = tmp_path / "systemctl"
    answers = {"--version": "systemd 257 (257.13)", "ActiveState": state, "ManagedOOMSwap": swap}
    cases = "".join(f"*{name}*) echo '{answer}';; " for name, answer in answers.items())
    systemctl.write_text(f'#!/bin/sh\ncase "$*" in {cases} esac\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(field, "_SYSTEMD_OOMD", systemctl)
    monkeypatch.setattr(field, "_SYSTEMD", tmp_path)
    monkeypatch.setattr(field, "machine_swap", lambda: SwapSpace(total_bytes=SWAP_BYTES, free_bytes=0))
    taken, left_out = field.pressed_field(CgroupVersion.V2, Programs())
    assert (because is None) == ("systemd-oomd" in [one.name for one in taken])
    assert (because is None) == ("systemd-oomd" not in left_out)
    assert because is None or because in left_out["systemd-oomd"]
