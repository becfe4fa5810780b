"""Where the guard comes too late the kernel takes whom the policy would: heats of `make survival`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.support.this_machine import allocator, cgroup_tree
from tests.support.trials import Trial
from tests.survival.heat import Case, Condition, Scores, run_heat

pytestmark = pytest.mark.suite("storms")


@pytest.mark.parametrize("condition", [Condition.STOPPED, Condition.DEAD])
@pytest.mark.parametrize("scores", Scores)
def test_policys_first_dies_first_though_the_guard_can_do_nothing(
    trial: Trial, tmp_path: Path, scores: Scores, condition: Condition
) -> None:
    cgroup_tree()
    case = Case(scores=scores, is_ordered=True, condition=condition)
    spin = [str(allocator()), "spin"]
    trial.rounds = 0
    for seed in range(3):
        outcome = run_heat(case, Random(seed), tmp_path, spin)
        if outcome.is_clear and not outcome.has_changed:
            trial.rounds += 1
            assert outcome.is_right, f"seed {seed}: {outcome}"
    assert trial.rounds
