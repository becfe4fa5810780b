"""Which tests `make quick` runs for a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.affected import ROOT, main, of_files, of_packages


@pytest.mark.slow
def test_a_package_has_its_own_tests_and_those_of_what_imports_it() -> None:
    tests = of_packages(["rules"])
    assert {"tests/unit/rules", "tests/unit/simulate/test_rules.py"} <= set(tests)
    assert not [test for test in tests if test.startswith(("tests/unit/kube", "tests/unit/vm"))]


@pytest.mark.parametrize("name", ["kube", "reactor/kube", "reactor.kube", "reactor/kube/"])
def test_a_package_is_named_by_its_path_or_as_it_is_imported(name: str) -> None:
    assert of_packages(["kube"]) == of_packages([name])


def test_a_changed_module_takes_the_tests_of_its_package_and_of_modules_that_import_it() -> None:
    tests = of_files({"reactor/podman/client.py"})
    assert "tests/unit/podman" in tests
    assert any(test.startswith("tests/unit/steward/") for test in tests)
    assert len(tests) < len(list((ROOT / "tests/unit").rglob("test_*.py"))) / 4


def test_what_the_tests_share_takes_the_tests_that_import_it() -> None:
    tests = set(of_files({"tests/support/logind.py"}))
    imported = "tests.support.logind"
    users = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/unit").rglob("test_*.py")}
    users = {path for path in users if f"from {imported} import" in (ROOT / path).read_text()}
    assert users
    assert users <= tests


def test_a_test_that_is_changed_is_run_and_one_that_is_gone_is_not() -> None:
    here = str(Path(__file__).relative_to(ROOT))
    assert here in of_files({here, "tests/unit/support/test_gone.py"})
    assert "tests/unit/support/test_gone.py" not in of_files({"tests/unit/support/test_gone.py"})


def test_what_holds_for_all_tests_takes_all_of_them() -> None:
    assert ["tests/unit"] == of_files({"pyproject.toml", "README.md"})


def test_an_unknown_package_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["rulez"])
    assert "'rulez' is no package of reactor or bench, such as rules or bench/race" in capsys.readouterr().err
