"""What a dry run says to `systemctl status`, and a ranking of each pod."""

from __future__ import annotations

import pytest

from reactor.config.settings import settings_from_text
from reactor.guard.daemon import guarding, in_dry_run
from reactor.guard.record import why_ranked
from reactor.model.decisions import RankedPod
from reactor.model.pod_lists import Preference
from reactor.model.pods import Pod
from reactor.model.rules import RankedBy
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observation

TEXT = """
evictionHard: {memory.available: 200Mi, pid.available: 5%}
reactor: {dryRun: true, pods: {parents: [/system.slice, "/odd\\u001b(B"]}}
"""


def test_dry_run_says_what_it_would_guard_and_how_it_is_ended() -> None:
    said = in_dry_run(settings_from_text(TEXT, "x.yaml"), "reactor.dryRun: false in x.yaml")

    assert said.startswith("no pod is evicted; would evict from /system.slice, /odd")
    assert "memory.available<200Mi, pid.available<5%. To evict: reactor.dryRun: false in x.yaml" in said
    assert "\x1b" not in said


def test_dry_run_without_parents_says_that_no_pod_could_be_evicted() -> None:
    said = in_dry_run(settings_from_text("evictionHard: {memory.available: 1Gi}", "x.yaml"), "…")

    assert "would evict from nowhere (pods.parents is empty) at memory.available<1Gi" in said


def test_the_start_says_what_is_guarded_with_shares_as_amounts() -> None:
    observed = {
        Signal.MEMORY_AVAILABLE: Observation(available=1, capacity=1 << 30),
        Signal.PID_AVAILABLE: Observation(available=1, capacity=1000),
    }
    said = guarding(settings_from_text(TEXT, "x.yaml"), 1, observed)

    assert ", dry run: guards this machine of 1Gi at memory.available<200Mi, pid.available<5% (50); " in said
    assert "1 pod now, from /system.slice, /odd" in said
    assert "\x1b" not in said


def test_the_start_says_that_nothing_is_guarded() -> None:
    said = guarding(settings_from_text("evictionHard: {}", "x.yaml"), 0, {})

    assert "guards this machine at no threshold; 0 pods now, from nowhere (pods.parents is empty)" in said


def test_ranking_says_who_is_preferred_and_who_avoided() -> None:
    def said(preference: Preference) -> str:
        pod = Pod(name="a", namespace="cgroup", uid="a", preference=preference)
        return why_ranked(RankedPod(pod=pod, usage=5, request=0, exceeds_request=True), Resource.MEMORY)

    assert "avoided; priority 0" in said(Preference.AVOID)
    assert "preferred; priority 0" in said(Preference.PREFER)
    assert "no request; priority 0" in said(Preference.NONE)


def test_a_pod_that_uses_nothing_is_said_to() -> None:
    pod = Pod(name="a", namespace="cgroup", uid="a")
    place = RankedPod(pod=pod, usage=0, request=64 << 20, exceeds_request=False)
    assert why_ranked(place, Resource.MEMORY).startswith("uses nothing, within its request of 64Mi; ")


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (RankedBy.MEMORY, "uses 3Ki, no request; priority 0, BestEffort; 2Ki in swap"),
        (RankedBy.SWAP, "has 3Ki in swap; priority 0, BestEffort"),
        (RankedBy.PGSCAN, "3072 of its pages were scanned; priority 0, BestEffort"),
        (RankedBy.GROWTH, "grew by 3Ki; priority 0, BestEffort"),
    ],
)
def test_a_place_in_the_ranking_of_a_rule_says_what_the_rule_ranks_by(by: RankedBy, said: str) -> None:
    pod = Pod(name="web", namespace="cgroup", uid="u")
    place = RankedPod(pod=pod, usage=3072, request=0, exceeds_request=True, swap_bytes=2048)
    assert said == why_ranked(place, Resource.MEMORY, by)
