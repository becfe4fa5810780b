"""The commands that an operator tries first."""

from __future__ import annotations

import json

import pytest
from guarded import BIN, V2, run


@pytest.mark.quick
def test_the_demo_evicts_the_hog_and_no_other_pod() -> None:
    print(run(BIN, "demo"))


@pytest.mark.quick
def test_doctor_names_the_source_that_this_kernel_offers() -> None:
    found = json.loads(run(BIN, "doctor", "--output", "json"))
    used = {plan["name"] for plan in found["sources"] if plan["used"]}
    assert ({"ebpf", "ebpf-pids"} if V2 else {"memcg-eventfd", "processes"}) <= used
    assert {"psi", "ticker"} <= used
