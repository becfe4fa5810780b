"""`reactor report`: what the page says, that no name breaks it, and how it looks in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reactor.cli import main
from reactor.report.incident import Span, _forecast, _pieces, _time_of_day, _until, incidents, page
from tests.support.browser import Browser, chromium
from tests.unit.terminal.test_journal import BOX, decision, journal

MIB = 1 << 20
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\x1b[2J\u202e</svg></title></style>"
THRESHOLD = {
    "threshold": "memory.available<50Mi",
    "signal": "memory.available",
    "value": 50 * MIB,
    "available": 49 * MIB,
    "capacity": 256 * MIB,
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def evicted(number: int = 1, name: str = "cgroup/hog.service", pods: int = 5) -> dict[str, Any]:
    """Return a line of the journal with a black box and a ranking, all with this name in it."""
    box = deepcopy(BOX)
    box["text"] = f"memory was taken by {name} (+200Mi/s, 1.3Gi), which is never evicted"
    box["pods"] = [
        {**box["pods"][0], "pod": name if not place else f"{name}-{place}", "uid": f"u{place}"}
        for place in range(pods)
    ]
    box["node"]["thresholds"] = [
        {"threshold": "memory.available<50Mi", "bytes": 50 * MIB, "is_hard": True},
        {"threshold": "memory.available<90Mi", "bytes": 90 * MIB, "is_hard": False},
    ]
    box["processes"][0]["pod"] = name
    box["processes"][0]["largest"][0]["command"] = f"{name} …"
    ranking = [
        {"pod": f"{name}-{place}", "uid": f"u{place}", "because": f"uses 101Mi ({name})"}
        for place in range(30)
    ]
    left = {"memory.available": {"seconds": 1.25, "earliest_seconds": 1.0, "latest_seconds": 2.0}}
    line = decision(number, name, black_box=box, ranking=ranking, threshold=THRESHOLD, time_left=left)
    return {**line, "black_box": box}


def killed(number: int, pod: str | None = "cgroup/web") -> dict[str, Any]:
    message = "the kernel's OOM killer killed 1 process at the limit of a pod"
    time = f"2026-11-22T10:00:{number:02}.5Z"
    return {
        "kind": "oom-kill",
        "time": time,
        "pod": pod,
        "uid": "u",
        "scope": "own-limit",
        "message": message,
    }


def test_page_tells_the_story_in_the_words_and_figures_of_the_record(tmp_path: Path) -> None:
    text = page([evicted()], "node-1")
    for said in (
        "node-1: cgroup/hog.service was evicted for memory.available&lt;50Mi",
        "49Mi of 256Mi were available; the threshold memory.available&lt;50Mi is at 50Mi.",
        "Memory was taken by cgroup/hog.service (+200Mi/s, 1.3Gi), which is never evicted.",
        "The hard threshold for memory.available would have been crossed in 1s.",
        "woken by memcg-eventfd; killed after 1.7 ms; memory back after 18.6 ms (killed).",
        "uses 101Mi (cgroup/hog.service)",
        "and 10 more",
        "memory.available&lt;90Mi (90Mi)",
        "early level, 16Mi ahead",
    ):
        assert said in text
    assert "<script" not in text
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", text)


def test_threshold_that_is_crossed_is_not_foreseen() -> None:
    line = evicted()
    line["time_left"] = {"memory.available": {"seconds": 0.0, "earliest_seconds": 0.0, "latest_seconds": 0.0}}
    assert "would have been crossed in" not in page([line], "node-1")


def test_hostile_names_are_text_and_nothing_else() -> None:
    text = page([evicted(name=HOSTILE), killed(3, HOSTILE)], HOSTILE)
    assert text.count("<style>") == text.count("</style>") == 1
    assert text.count("<svg") == text.count("</svg>")
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_incidents_are_those_of_the_span_and_no_other_lines() -> None:
    lines = [evicted(1), {**decision(2), "evictions": []}, killed(3), evicted(61), {"kind": "source-lost"}]
    span = Span(
        since=datetime(2026, 11, 22, 10, tzinfo=UTC), until=datetime(2026, 11, 22, 10, 0, 30, tzinfo=UTC)
    )
    assert [lines[0], lines[2]] == incidents(lines, span)
    assert [lines[0], lines[2], lines[3]] == incidents(lines, Span())


def test_record_without_a_black_box_says_so_and_has_no_picture() -> None:
    text = page([decision(1)], "node-1")
    assert "reactor.blackBox is off" in text
    assert "<svg" not in text


def test_command_writes_the_last_eviction_of_a_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = journal(tmp_path, evicted(1), evicted(2, "cgroup/web.service"), evicted(3), killed(4))
    out = tmp_path / "page.html"
    assert main(["report", "hog", "--journal", str(path), "--out", str(out)]) == 0
    assert out.read_text().count("<section>") == 1
    assert "2026-11-22 10:00:03" in out.read_text()
    assert main(["report", "--since", "2026-11-22T10:00:02", "--journal", str(path), "--out", str(out)]) == 0
    assert out.read_text().count("<section>") == 3
    assert main(["report", "wbe", "--journal", str(path), "--out", str(out)]) == 1
    assert "of wbe (did you mean web.service?)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["report", "--since", "yesterday"])
    assert "got 'yesterday'; accepted: an instant such as" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
@pytest.mark.parametrize("width", [360, 1000])
def test_page_in_a_browser_has_no_error_and_no_text_that_is_cut_off(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    file = tmp_path / "page.html"
    long_name = "cgroup/" + "batch-job-28401-h7k2p-" * 6 + ".service"
    file.write_text(page([evicted(1), evicted(2, long_name), evicted(3, HOSTILE), killed(4)], "node-1"))
    found = browser.open(file.as_uri(), width=width, scheme=scheme)
    assert [] == found.complaints
    assert [] == found.cut_off()
    if scheme != "print":  # paper is wider
        assert found.smallest_text() >= 10
    ink, paper = (
        found.value(f"getComputedStyle(document.body).{what}") for what in ("color", "backgroundColor")
    )
    assert ink != paper
    assert (paper == "rgb(22, 24, 26)") == (scheme == "dark")


def night() -> list[dict[str, Any]]:
    """Return evictions and OOM kills of two bursts half an hour apart."""
    lines = [evicted(1), evicted(31, "cgroup/web.service"), killed(40)]
    later = [{**one, "time": one["time"].replace("10:00", "10:30")} for one in (evicted(5), killed(9))]
    return [*lines, *later]


def test_span_has_one_picture_over_all_of_it_and_nothing_where_nothing_is_known() -> None:
    text = page(night(), "node-1")
    span = text.partition("<section>")[0]
    assert span.count("<svg") == 2
    assert span.count('<path class="line"') == 2  # the two bursts, the records of the first of which meet
    for said in ("10:00<", "10:20<", "10:30<", "crossing, killed hog", "OOM kill web", "Mi (50Mi)"):
        assert said in span
    assert "asked to end" not in span
    assert span.count('class="forecast"') == 3
    assert page([evicted(1)], "node-1").partition("<section>")[0].count("<svg") == 0
    assert "<svg" not in page([killed(1), killed(3)], "node-1")


def test_records_that_overlap_are_one_curve_in_the_order_of_time() -> None:
    box = evicted()["black_box"]
    (piece,) = _pieces([(60.0, box), (90.0, box), (90.5, box)])
    assert piece == sorted(piece)
    assert piece[0][0] == 0.0
    assert piece[-1][0] == pytest.approx(90.4)
    assert len({at for at, _ in piece}) == len(piece)
    assert len(_pieces([(60.0, box), (190.0, box)])) == 2


def test_span_of_many_incidents_names_the_first_of_them_in_the_picture_and_all_in_the_table() -> None:
    text = page([evicted(number, f"cgroup/hog-{number}.service") for number in range(1, 40)], "node-1")
    span = text.partition("<table>")[0]
    assert "killed hog-10.service" in span
    assert "killed hog-11.service" not in span
    assert "cgroup/hog-39.service was evicted" in text


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (3, ["10:00:40", "10:00:41", "10:00:42", "10:00:43"]),
        (59, ["10:00:45", "10:01:00", "10:01:15", "10:01:30"]),
        (1900, ["10:10", "10:20", "10:30"]),
        (50_000, ["12:00", "18:00"]),
        (170_000, ["22 Nov 12:00", "23 Nov 00:00", "23 Nov 12:00", "24 Nov 00:00"]),
        (2_000_000, ["27 Nov", "03 Dec", "09 Dec", "15 Dec"]),
    ],
)
def test_axis_of_a_span_has_round_times_of_the_day(seconds: float, texts: list[str]) -> None:
    begin = datetime(2026, 11, 22, 10, 0, 40, tzinfo=UTC).timestamp()
    text, places = _time_of_day(begin, seconds)
    assert [text(at) for at in places] == texts


def test_forecast_goes_from_what_was_available_to_the_hard_threshold() -> None:
    line = evicted()
    available = line["black_box"]["node"]["available_bytes"][-1][1]
    assert _forecast(line) == [(0.0, available), (1.25, 50 * MIB)]
    assert _until([(0.0, 100.0), (40.0, 20.0)], 10.0) == [(0.0, 100.0), (10.0, 80.0)]
    assert _forecast({**line, "time_left": {"memory.available": {"seconds": None}}}) is None
    assert _forecast(decision(1)) is None


@pytest.mark.parametrize("width", [360, 1000])
def test_picture_of_a_span_in_a_browser_is_legible_and_where_its_records_are(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(night(), "node-1"))
    found = browser.open(file.as_uri(), width=width)
    assert [] == found.complaints
    assert [] == found.cut_off()
    script = """
    (() => {
      const svg = document.querySelector('svg');
      const lines = [...svg.querySelectorAll('path.line')].map(path => path.getBBox());
      return {x: lines.map(box => [box.x, box.x + box.width]), wide: svg.viewBox.baseVal.width};
    })()
    """
    drawn = found.value(script)
    (first, gap), (begin, last) = drawn["x"]
    per_second = (last - first) / (60 + 30 * 60 + 4 - 0.1)  # from 60 s before the first to the last record
    assert first == pytest.approx(66, abs=1)
    assert (gap - first) / per_second == pytest.approx(60 + 30 - 0.1, abs=3)
    assert (begin - first) / per_second == pytest.approx(30 * 60 + 4, abs=3)


@pytest.mark.slow
def test_figures_of_the_picture_are_those_of_the_record(browser: Browser, tmp_path: Path) -> None:
    """By where the browser has drawn the curve, against the labels of the axis that it has drawn."""
    file = tmp_path / "page.html"
    line = evicted(1)
    file.write_text(page([line], "node-1"))
    found = browser.open(file.as_uri())
    script = """
    (() => {
      const svg = document.querySelector('svg'), ticks = [];
      for (const text of svg.querySelectorAll('text.soft'))
        if (text.textContent.endsWith('Mi') || text.textContent === '0')
          if (text.getAttribute('text-anchor') === 'end' && !text.textContent.includes('s'))
            ticks.push([text.textContent, Number(text.getAttribute('y')) - 4]);
      const path = svg.querySelector('path.line'), length = path.getTotalLength();
      const end = path.getPointAtLength(length), begin = path.getPointAtLength(0);
      const low = Number(svg.querySelector('line.low').getAttribute('y1'));
      return {ticks, begin: begin.y, end: end.y, low, shown: document.body.innerText};
    })()
    """
    drawn = found.value(script)
    heights = dict(drawn["ticks"])
    per_mib = (heights["0"] - heights["128Mi"]) / 128
    mib = [(heights["0"] - drawn[what]) / per_mib for what in ("begin", "end", "low")]
    curve = [value / MIB for _, value in line["black_box"]["node"]["available_bytes"]]
    assert [curve[0], curve[-1], 50] == [pytest.approx(one, abs=1.0) for one in mib]
    assert "90Mi" in drawn["shown"]
    assert "cgroup/hog.service-19" in drawn["shown"]
