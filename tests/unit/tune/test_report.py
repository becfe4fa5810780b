import dataclasses
from pathlib import Path
from typing import Any

import pytest

from reactor.config.settings import settings_from_text
from reactor.model.settings import Settings
from reactor.report import write
from reactor.tune.history import Crossing, History
from reactor.tune.measured import Measured
from reactor.tune.model import Assumptions, Recommendation, covered_rate_bytes, recommend
from reactor.tune.report import headline, report_of, snippet, survived, threshold_lines, trust_lines
from tests.support.browser import chromium

MIB = 1 << 20
A_CROSSING = Crossing(
    time="2026-11-22T10:14:13Z",
    threshold="memory.available<100Mi",
    is_hard=True,
    evicted=1,
    wanted_bytes=100 * MIB,
    available_bytes=90 * MIB,
    rate_bytes=300.0 * MIB,
)


@pytest.fixture
def found(measured: Measured) -> Recommendation:
    return recommend(measured, History(), Assumptions())


def read(text: str) -> tuple[Settings, dict[str, Any]]:
    settings = settings_from_text(text, "snippet")
    of = {(str(one.signal), one.is_hard): one for one in settings.eviction.thresholds}
    return settings, {f"{signal} {'hard' if hard else 'soft'}": one for (signal, hard), one in of.items()}


def test_the_snippet_means_what_is_recommended(measured: Measured, found: Recommendation) -> None:
    settings, thresholds = read(snippet(measured, found, {}))
    capacity = found.node.capacity_bytes
    assert found.hard_bytes == thresholds["memory.available hard"].value.of(capacity)
    assert found.soft.threshold_bytes == thresholds["memory.available soft"].value.of(capacity)
    assert 30.0 == thresholds["memory.available soft"].grace_period_seconds
    assert 30 == settings.eviction.max_pod_grace_period_seconds


def test_other_signals_keep_their_defaults_or_what_the_operator_has(
    measured: Measured, found: Recommendation
) -> None:
    _, thresholds = read(f"{snippet(measured, found, {})}reactor: {{kubernetes: {{}}}}\n")
    assert "10%" == thresholds["nodefs.available hard"].value.text
    existing = {
        "evictionHard": {"memory.available": "1Mi", "pid.available": "7%"},
        "evictionSoft": {"nodefs.available": "12%"},
        "evictionSoftGracePeriod": {"nodefs.available": "2m"},
    }
    _, thresholds = read(snippet(measured, found, existing))
    assert "7%" == thresholds["pid.available hard"].value.text
    assert 120 == thresholds["nodefs.available soft"].grace_period_seconds
    assert "nodefs.available hard" not in thresholds
    assert found.hard_bytes == thresholds["memory.available hard"].value.of(1 << 40)


def test_on_a_kubernetes_node_the_snippet_says_that_the_scheduler_has_to_leave_as_much(
    measured: Measured, found: Recommendation
) -> None:
    node = snippet(measured, found, {"reactor": {"kubernetes": {"role": "alongside"}}})
    assert "# what to add to the kubelet's systemReserved." in node
    assert "systemReserved" not in snippet(measured, found, {})


def test_a_threshold_that_is_not_enough_says_so(measured: Measured, found: Recommendation) -> None:
    short = dataclasses.replace(found, is_enough=False, hard_bytes=100 * MIB, covered_rate_bytes=640 * MIB)
    said = headline(short)
    assert said.startswith(
        "100Mi, half of this node, serves up to 640 MiB/s. It would take 162Mi for one allocator"
    )
    assert f"# Hard: {said}" in snippet(measured, short, {})
    assert headline(found).startswith("170Mi for one allocator at full speed; 1000 MiB/s x (")
    alone = dataclasses.replace(short, hard_bytes=5000 * MIB)
    assert "5000Mi, the reserve alone, serves" in headline(alone)


def test_a_threshold_above_what_is_available_is_warned_of(measured: Measured, found: Recommendation) -> None:
    def warned(available_mib: int | None) -> list[str]:
        bytes_ = None if available_mib is None else available_mib * MIB
        node = dataclasses.replace(found.node, available_bytes=bytes_)
        lines = threshold_lines(dataclasses.replace(found, node=node))
        return [line.split(" is ")[0] for line in lines if line.startswith("Warning")]

    assert ["Warning: evictionHard", "Warning: evictionSoft"] == warned(170)
    assert ["Warning: evictionSoft"] == warned(200)
    assert [] == warned(4096) == warned(None)


@pytest.mark.parametrize(
    ("available_mib", "said"),
    [
        (742, None),
        (200, "Nothing is recommended. With 100Mi, half of what was available: safe up to"),
        (100, "Nothing is recommended, and no smaller value serves: the reserve is"),
    ],
)
def test_a_recommendation_that_would_evict_at_once_is_none_and_a_practicable_value_stands_beside_it(
    found: Recommendation, available_mib: int, said: str | None
) -> None:
    node = dataclasses.replace(found.node, available_bytes=available_mib * MIB)
    terms = dataclasses.replace(found.terms, reserve_bytes=60 * MIB)
    short = dataclasses.replace(found, node=node, terms=terms)
    assert (said is not None) == short.evicts_at_once
    lines = " ".join(threshold_lines(short))
    assert said is None or said in lines
    assert said is not None or "recommended" not in lines


def test_swap_is_named_since_memory_available_does_not_count_it(
    measured: Measured, found: Recommendation
) -> None:
    node = dataclasses.replace(measured.node, swap_bytes=2048 * MIB, swap_free_bytes=512 * MIB)
    said = " ".join(trust_lines(dataclasses.replace(measured, node=node), found))
    assert "2 GiB of swap, 512 MiB of it free" in said
    assert "swap" not in " ".join(trust_lines(measured, found))


@pytest.mark.slow
def test_page_answers_with_one_picture_and_five_lines(
    measured: Measured, found: Recommendation, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra: pip install '.[report]'")
    history = History(decisions=1, crossings=(A_CROSSING,))
    report = report_of(measured, history, found, None, "evictionHard: {}\n", 100 * MIB)
    assert len(report.summary) == 5
    covered = report.summary[2]
    assert covered.startswith("The present threshold, 100Mi, survives allocators of up to ")
    file = tmp_path / "report.html"
    write(report, file)
    texts = "[...document.querySelector('figure').querySelectorAll('text')].map(t => t.textContent)"
    with chromium(tmp_path) as browser:
        for scheme, width in (("light", 1000), ("dark", 360), ("print", 1000)):
            page = browser.open(file.as_uri(), width=width, scheme=scheme)
            assert [] == page.complaints
            shown = page.value(texts)
            assert "present: 100Mi" in shown
            assert f"recommended: {found.hard_bytes // MIB}Mi" in shown
            assert any("fastest in the journal: 300 MiB/s" in text for text in shown)
            assert page.value("document.querySelector('svg') === document.querySelector('h1 + figure svg')")
            assert [one for one in page.cut_off() if one.startswith("svg: ") and one[5:] in shown] == []


def test_picture_shows_what_each_threshold_survives(found: Recommendation) -> None:
    picture = survived(History(), found, None)
    at, value = picture.lines["survived"][-1]
    assert value == covered_rate_bytes(round(at), found.seconds, found.terms.reserve_bytes)
    assert [f"recommended: {found.hard_bytes // MIB}Mi"] == [mark.text for mark in picture.marks]
    assert {one.rate_bytes for one in found.cases} == {level.value for level in picture.levels}


def test_where_nothing_is_recommended_the_picture_recommends_nothing(found: Recommendation) -> None:
    node = dataclasses.replace(found.node, available_bytes=100 * MIB)
    short = dataclasses.replace(found, node=node)
    assert [] == list(survived(History(), short, None).marks)
