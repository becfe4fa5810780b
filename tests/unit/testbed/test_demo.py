import dataclasses
import io
from typing import Any

import pytest

from reactor.tables import Screen
from reactor.testbed.allocator import MIB, HogTimes
from reactor.testbed.demo import CAPACITY_BYTES, EXIT_CANNOT, HOG, LEVEL_BYTES, Story, demo, events, show

ZERO_NS = 5_000_000_000
TIMES = HogTimes(
    started_ns=ZERO_NS - 200_000_000,
    crossed_ns=ZERO_NS,
    dead_ns=None,
    ended_ns=ZERO_NS + 20_000_000,
    back_ns=ZERO_NS + 20_100_000,
    peak_bytes=LEVEL_BYTES + 3 * MIB,
    before_bytes=209 * MIB,
    back_bytes=210 * MIB,
)
DECISION: dict[str, Any] = {
    "wakes": [{"source": "memcg-eventfd", "kind": "memory", "signal": "memory.available", "at_ns": 0}],
    "threshold": {"threshold": "memory.available<100Mi", "available": 99 * MIB},
    "timing": {
        "woke_ns": ZERO_NS + 300_000,
        "started_ns": ZERO_NS + 400_000,
        "observed_ns": ZERO_NS + 700_000,
        "decided_ns": ZERO_NS + 900_000,
        "killed_ns": ZERO_NS + 1_300_000,
        "done_ns": ZERO_NS + 1_400_000,
        "freed_ns": ZERO_NS + 20_200_000,
    },
    "ranking": [{"pod": f"cgroup/{HOG}", "because": "uses 203.7Mi, no request"}],
    "evictions": [{"pod": f"cgroup/{HOG}", "processes": 1}],
}
STORY = Story(
    node_cgroup="/reactor-demo-1",
    armed_ns=ZERO_NS - 210_000_000,
    times=TIMES,
    decision=DECISION,
    alive={"database": True, "web": True, HOG: False},
)


def told(story: Story) -> str:
    shown = io.StringIO()
    show(story, Screen(shown, width=140))
    return shown.getvalue()


def test_a_defended_node_has_no_shortcomings() -> None:
    assert [] == STORY.shortcomings()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"decision": None}, "evicted: no pod"),
        ({"decision": {**DECISION, "evictions": [{"pod": "cgroup/web", "processes": None}]}}, "evicted: web"),
        ({"alive": {"database": True, "web": False, HOG: False}}, "web did not survive"),
        ({"alive": {"database": True, "web": True, HOG: True}}, f"{HOG} is still alive"),
        ({"times": dataclasses.replace(TIMES, back_ns=None)}, "was not freed"),
        ({"times": dataclasses.replace(TIMES, crossed_ns=None)}, "never crossed"),
    ],
)
def test_whatever_went_wrong_is_said_and_nothing_is_called_defended(
    change: dict[str, Any], said: str
) -> None:
    story = dataclasses.replace(STORY, **change)
    assert any(said in line for line in story.shortcomings())
    assert "FAILED" in told(story)
    assert "Defended" not in told(story)


def test_the_timeline_runs_from_the_crossing_in_milliseconds() -> None:
    lines = [line.split() for line in told(STORY).splitlines()]
    stages = {line[1]: line[0] for line in lines if len(line) > 1 and line[0][:1] in {"+", "-"}}
    assert {
        "armed": "-210.00",
        "crossing": "+0.00",
        "woken": "+0.30",
        "killed": "+1.30",
    }.items() <= stages.items()
    assert "+20.10 memory back" in " ".join(told(STORY).split())


def test_the_timeline_says_what_woke_it_and_how_far_it_went() -> None:
    text = told(STORY)
    assert "by memcg-eventfd" in text
    assert "the node peaked 3.0 MiB past the level, 97.0 MiB short of its limit" in text
    assert "no request" in text
    assert CAPACITY_BYTES - LEVEL_BYTES == 100 * MIB


def test_every_stage_is_attributed_to_a_clock() -> None:
    assert {"notice", "hog", "daemon", "observer"} == {who for _, _, _, who in events(STORY)}


def test_without_root_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert EXIT_CANNOT == demo()
    assert "needs root" in capsys.readouterr().err
