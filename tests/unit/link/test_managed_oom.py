"""The file of what units say of being killed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.forms import FormError
from reactor.link.managed_oom import (
    LONGEST_BYTES,
    LONGEST_CGROUP_BYTES,
    MAGIC,
    MOST_UNITS,
    ManagedOomKind,
    ManagedOomReport,
    ManagedOomUnit,
    read_report_at_once,
    sorted_units,
    unit_problem,
    write_report,
)

SWAP, PRESSURE, RULES = ManagedOomKind
OF_SYSTEM = ManagedOomUnit(kind=PRESSURE, cgroup="/system.slice/a.service", limit_percent=12.34)
OF_USER = ManagedOomUnit(
    kind=PRESSURE,
    cgroup="/user.slice/user-1000.slice/user@1000.service/app.slice",
    uid=1000,
    duration_seconds=2.5,
)


def unit(**changed: Any) -> ManagedOomUnit:
    return replace(OF_SYSTEM, **changed)


@pytest.mark.parametrize(
    "report",
    [
        ManagedOomReport(),
        ManagedOomReport(units=(OF_SYSTEM, OF_USER, ManagedOomUnit(kind=SWAP, cgroup="/"))),
        ManagedOomReport(units=(unit(cgroup="/ä.slice"),), problem="PID 1 is away", left_out=3),
        ManagedOomReport(units=(unit(limit_percent=100.0, duration_seconds=86400.0),)),
        ManagedOomReport(
            units=(ManagedOomUnit(kind=RULES, cgroup="/a", rules=("stall", "ä" * 64)),), reloads=7
        ),
    ],
)
def test_what_is_written_is_read(report: ManagedOomReport) -> None:
    assert report == read_report_at_once(write_report(report))


@pytest.mark.parametrize(
    "changed",
    [
        {"cgroup": ""},
        {"cgroup": "system.slice"},
        {"cgroup": "/a/../b"},
        {"cgroup": "/a//b"},
        {"cgroup": "/a/"},
        {"cgroup": "/a/./b"},
        {"cgroup": "/a\0"},
        {"cgroup": "/a\n"},
        {"cgroup": "/\ud800"},
        {"cgroup": "/system.slice/*"},
        {"cgroup": "/system.slice/?"},
        {"cgroup": "/system.slice/[a]"},
        {"cgroup": "/" + "a" * LONGEST_CGROUP_BYTES},
        {"limit_percent": 0.5},
        {"limit_percent": 100.5},
        {"limit_percent": float("nan")},
        {"duration_seconds": 0.5},
        {"duration_seconds": 86401.0},
        {"rules": ("a",)},
        {"kind": RULES},
        {"kind": RULES, "rules": tuple("abcdefghi")},
        {"kind": RULES, "rules": ("a/b",)},
        {"kind": RULES, "rules": ("a\nb",)},
        {"uid": 1000},
        {"uid": 1000, "cgroup": "/user.slice/user-1000.slice"},
        {"uid": 1000, "cgroup": "/user.slice/user-1001.slice/user@1001.service"},
    ],
)
def test_a_unit_that_can_not_be_is_neither_written_nor_read(changed: dict[str, Any]) -> None:
    wrong = unit(**changed)
    assert unit_problem(wrong) is not None
    left = read_report_at_once(write_report(ManagedOomReport(units=(wrong, OF_USER), left_out=1)))
    assert ManagedOomReport(units=(OF_USER,), left_out=2) == left


def test_a_path_of_another_user_s_is_refused_where_it_is_read() -> None:
    raw = write_report(ManagedOomReport(units=(OF_USER,)))
    with pytest.raises(FormError, match="user 1000"):
        read_report_at_once(raw.replace(b"user-1000.slice", b"user-1001.slice"))


def test_what_is_too_much_is_left_out_and_counted() -> None:
    many = tuple(unit(cgroup=f"/a{number}") for number in range(MOST_UNITS + 5))
    found = read_report_at_once(write_report(ManagedOomReport(units=many, problem="ä" * 1000)))
    assert (many[:MOST_UNITS], 5) == (found.units, found.left_out)
    assert found.problem.startswith("ää")

    long = tuple(unit(cgroup=f"/{number:04}{'x' * 1000}") for number in range(MOST_UNITS))
    raw = write_report(ManagedOomReport(units=long, left_out=2**40))
    assert len(raw) <= LONGEST_BYTES
    found = read_report_at_once(raw)
    assert 0 < len(found.units) < MOST_UNITS
    assert 2**32 - 1 == found.left_out


def test_the_systems_units_come_first_where_there_are_too_many() -> None:
    assert [OF_SYSTEM, OF_USER] == sorted_units([OF_USER, OF_SYSTEM])


_ONE = write_report(ManagedOomReport(units=(OF_SYSTEM,)))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        MAGIC,
        b"x" * len(_ONE),
        _ONE[:-1],
        _ONE[: -len(OF_SYSTEM.cgroup) - 1],
        _ONE + b"x",
        _ONE.replace(b"\3\0\1\0", b"\2\0\1\0", 1),
        _ONE.replace(b"\2\0\x17\0", b"\4\0\x17\0", 1),
        _ONE.replace(b"a.service", b"\xff.service"),
        _ONE.replace(b"a.service", b"..service").replace(b"/..service", b"/../ervice"),
        _ONE + b"x" * LONGEST_BYTES,
        write_report(ManagedOomReport(problem="why"))[:-1],
    ],
)
def test_what_is_of_no_fixed_form_is_refused(raw: bytes) -> None:
    with pytest.raises(FormError):
        read_report_at_once(raw)


@given(st.binary(max_size=400), st.integers(0, len(_ONE)))
def test_no_bytes_bring_anything_but_a_report_that_can_be_or_a_refusal(noise: bytes, at: int) -> None:
    for raw in (noise, _ONE[:at] + noise, _ONE[:at] + noise + _ONE[at + len(noise) :]):
        try:
            report = read_report_at_once(raw)
        except FormError:
            continue
        assert all(unit_problem(one) is None for one in report.units)
        assert len(report.units) <= MOST_UNITS
