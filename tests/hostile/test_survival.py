"""Where the guard comes too late the kernel takes no innocent: heats of `make survival`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.support.this_machine import cgroup_tree
from tests.support.trials import Trial
from tests.survival.heat import Case, Condition, Hog, Scores, run_heat

pytestmark = pytest.mark.suite("storms")


@pytest.mark.parametrize("condition", [Condition.STOPPED, Condition.DEAD])
@pytest.mark.parametrize("scores", Scores)
def test_a_pod_that_grows_costs_no_innocent_though_the_guard_can_do_nothing(
    trial: Trial, tmp_path: Path, scores: Scores, condition: Condition
) -> None:
    cgroup_tree()
    case = Case(hog=Hog.POD, scores=scores, is_ordered=True, condition=condition)
    trial.rounds = 3
    for seed in range(trial.rounds):
        outcome = run_heat(case, Random(seed), tmp_path)
        assert outcome.is_over, f"seed {seed}: {outcome}"
        assert outcome.innocents == 0, f"seed {seed}: {outcome}"
