"""The page of the last hour: what it shows, how large it is, and how a browser shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry

from reactor.blackbox import KnownPod, PodChanges
from reactor.blackbox.live import MOST_BYTES, LivePage
from reactor.tell.http import serve_metrics
from tests.support.browser import Browser, chromium
from tests.support.processes import MIB
from tests.unit.blackbox.test_sampler import HOSTILE, NODE, Played


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def happened(pod: str) -> list[dict[str, Any]]:
    at = datetime.now(UTC) - timedelta(seconds=30)
    evictions = [{"pod": pod, "outcome": "killed"}]
    kill = {"kind": "oom-kill", "time": (at + timedelta(seconds=10)).isoformat(), "pod": pod}
    long_ago = {"kind": "oom-kill", "time": "2001-01-01T00:00:00Z", "pod": "long-ago"}
    return [{"kind": "decision", "time": at.isoformat(), "evictions": evictions}, kill, long_ago]


async def hour_of(fake: Any, names: list[str], minutes: int = 60) -> Played:
    """Return a node on which pods of these names have grown and shrunk for so long."""
    played = Played(fake)
    for number in range(len(names)):
        fake.add(f"{NODE}/p{number}")
    pods = (KnownPod(f"uid-{one}", names[one], f"{NODE}/p{one}") for one in range(len(names)))
    played.sampler.know(PodChanges(came=tuple(pods)))
    for step in range(6 * minutes):
        played.clock.now += 9
        usages = {f"p{one}": 5 + (step * (one + 3)) % 60 for one in range(step % 7, len(names), 7)}
        await played.play(node=100 + (step * 37) % 300, **usages)
    return played


def page_of(played: Played, pod: str = "cgroup/web") -> str:
    settings = played.settings
    return LivePage(played.sampler, lambda: settings, lambda: happened(pod)).content().decode()


async def test_page_has_the_nodes_memory_its_thresholds_its_pods_and_what_was_evicted(fake) -> None:
    played = await hour_of(fake, ["cgroup/web", "cgroup/db"], minutes=3)
    text = page_of(played)
    available = played.sampler.hour.last.available_bytes // MIB  # type: ignore[union-attr]
    for said in (
        f"{available}Mi of 512Mi are available.",
        "memory.available&lt;67108864",
        "cgroup/web</li>",
        "cgroup/db</td>",
        "killed cgroup/web",
        "OOM kill cgroup/web",
        '<meta http-equiv="refresh" content="10">',
    ):
        assert said in text
    assert "long-ago" not in text
    assert "<script" not in text


async def test_axis_of_the_first_minute_has_whole_seconds(fake) -> None:
    text = page_of(await hour_of(fake, ["cgroup/web"], minutes=1))
    assert ">-40 s<" in text
    assert ".6" not in "".join(re.findall(r">-[^<]* (?:min|s)<", text))


@pytest.mark.slow
async def test_page_of_250_pods_with_hostile_names_stays_below_50_kb(fake) -> None:
    names = [HOSTILE[number % len(HOSTILE)] * 3 + str(number) for number in range(250)]
    text = page_of(await hour_of(fake, names, minutes=8), HOSTILE[1])
    assert len(text.encode()) <= MOST_BYTES
    assert "<script" not in text
    assert "\x1b" not in text


async def test_before_anything_is_observed_the_page_says_so(fake) -> None:
    assert "Nothing has been observed yet." in page_of(Played(fake))


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1000, "dark"), (1000, "print")])
async def test_page_in_a_browser_has_no_error_and_no_text_that_is_cut_off(
    fake, browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    names = ["cgroup/web", "cgroup/" + "batch-job-28401-h7k2p-" * 6, *HOSTILE]
    file = tmp_path / "live.html"
    file.write_text(page_of(await hour_of(fake, names, minutes=3), names[1]))
    found = browser.open(file.as_uri(), width=width, scheme=scheme)
    assert [] == found.complaints
    assert [] == found.cut_off()
    assert found.smallest_text() >= 10


@pytest.mark.slow
async def test_page_is_served_beside_the_metrics_and_only_read() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            lambda task_status: serve_metrics(
                CollectorRegistry(), ("127.0.0.1", 0), live=lambda: b"<p>page", task_status=task_status
            )
        )
        port = listeners[0].socket.getsockname()[1]
        assert b"text/html; charset=utf-8" in await _asked(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await _asked(port, b"GET /?a=b HTTP/1.1\r\nHost: a\r\n\r\n")).endswith(b"<p>page")
        assert b" 405 " in await _asked(port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        assert b" 404 " in await _asked(port, b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        nursery.cancel_scope.cancel()


async def _asked(port: int, request: bytes) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request)
        answer = b""
        while piece := await stream.receive_some(65536):
            answer += piece
    return answer
