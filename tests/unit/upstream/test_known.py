"""The list of deliberate differences, and what is made from it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.upstream.differential.draw import AREAS
from tests.upstream.differential.known import KNOWN, NEWER, OURS
from tests.upstream.differential.mutants import MUTANTS
from tests.upstream.differential.policy_page import with_section

_ROOT = Path(__file__).parents[3]


def test_the_documentation_has_the_list_as_it_is() -> None:
    page = (_ROOT / "docs" / "policy.md").read_text(encoding="utf-8")

    assert with_section(page) == page, "run `make policy-page`"


def test_each_difference_has_a_name_an_owner_a_rule_and_a_reason() -> None:
    assert len({known.name for known in KNOWN}) == len(KNOWN)
    for known in KNOWN:
        assert known.whose in {NEWER, OURS}
        assert known.rule.endswith(".")
        assert known.reason.endswith(".")


def test_each_difference_is_taught_or_recognised_or_expected_by_the_comparison() -> None:
    for known in KNOWN:
        ways = (known.flag, known.amend is not None, known.recognises is not None, known.compared)
        assert ways.count(True) == 1, known.name


def test_each_difference_is_sought_in_an_area_that_the_generator_has() -> None:
    assert {known.area for known in KNOWN} - {None} <= set(AREAS)


def test_the_oracle_knows_every_flag_by_its_name() -> None:
    program = (_ROOT / "tests/upstream/go/eviction_differential_test.go").read_text(encoding="utf-8")
    flags = set(re.findall(r'^\t\w+ = "([a-z-]+)"$', program, re.MULTILINE))

    assert flags == {known.name for known in KNOWN if known.flag}


def test_each_fault_of_the_mutation_test_fits_one_place_of_the_code() -> None:
    fitting = [
        (_ROOT / "reactor" / each.path).read_text(encoding="utf-8").count(each.old) for each in MUTANTS
    ]

    assert [each for each, count in zip(MUTANTS, fitting, strict=True) if count != 1] == []
