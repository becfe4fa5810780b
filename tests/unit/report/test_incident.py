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
from reactor.report.incident import Span, incidents, page
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
    ink, paper = (
        found.value(f"getComputedStyle(document.body).{what}") for what in ("color", "backgroundColor")
    )
    assert ink != paper
    assert (paper == "rgb(22, 24, 26)") == (scheme == "dark")


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
