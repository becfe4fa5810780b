import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import run, summary

PYTEST = """
import sys
print("FAILED tests/unit/test_one.py::test_a[x - y] - AssertionError: a - b")
print("ERROR tests/unit/test_two.py::test_b", file=sys.stderr)
print("FAILED tests/unit/test_one.py::test_a[x - y] - AssertionError: a - b")
print("FAILED to open a file")
sys.exit(3)
"""


def test_a_part_is_printed_whole_and_the_summary_names_what_failed_in_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert 0 == run("lint", [sys.executable, "-c", "print('fine')"], tmp_path)
    assert 3 == run("unit-tests", [sys.executable, "-c", PYTEST], tmp_path)
    assert "fine\n" in capfd.readouterr().out
    lint, unit, *tests = summary(tmp_path)
    assert lint.startswith("lint           passed in ")
    assert unit.startswith("unit-tests     failed in ")
    assert {"    tests/unit/test_one.py::test_a[x - y]", "    tests/unit/test_two.py::test_b"} == set(tests)


def test_many_failures_are_counted_and_not_all_named(tmp_path: Path) -> None:
    script = "for n in range(20): print(f'FAILED tests/a.py::test_{n}')\nraise SystemExit(1)"
    run("unit-tests", [sys.executable, "-c", script], tmp_path)
    assert 14 == len(lines := list(summary(tmp_path)))
    assert "    and 8 more" == lines[-1]


def test_of_a_part_that_passed_no_test_is_named(tmp_path: Path) -> None:
    run("unit-tests", [sys.executable, "-c", "print('FAILED tests/a.py::test_planted')"], tmp_path)
    assert 1 == len(list(summary(tmp_path)))


def test_make_runs_all_parts_says_which_failed_and_fails(tmp_path: Path) -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    rules = makefile[makefile.index("\ntest: ") : makefile.index("\nlint: setup")]
    parts = "setup promtool:\nlint types imports unit-tests unit-policy kernel-tests:\n\t@echo $@\n"
    parts += "size-check:\n\t@echo 'FAILED tests/a.py::test_b - no'; false\n"
    (tmp_path / "Makefile").write_text(f"BIN := {Path(sys.executable).parent}\n{rules}\n{parts}")
    (tmp_path / "tests").symlink_to(Path(__file__).parents[2])
    made = subprocess.run(
        ["make", "test"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert 2 == made.returncode, made
    said = made.stdout.split("make test:\n")[-1].splitlines()
    assert 6 == sum(" passed in " in line for line in said)
    failed = next(number for number, line in enumerate(said) if line.startswith("size-check     failed"))
    assert "    tests/a.py::test_b" == said[failed + 1]
