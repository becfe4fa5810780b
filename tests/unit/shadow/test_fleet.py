"""`reactor fleet` over a synthetic fleet: each disagreement is found, and nothing in a directory stops it."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from reactor.cli import main
from reactor.shadow.fleet import Names, Options, fleet_of, lines_of, sources_in
from reactor.shadow.page import page_of
from tests.support.browser import Browser, chromium
from tests.support.fleet import BEGAN, Fleet, write_fleet, write_recording
from tests.support.fleet import Node as MadeUp

_SHORT = """
evictionHard: {memory.available: 200Mi}
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fleet]:
    """Return 500 nodes of 30 days with 20 disagreements."""
    directory = tmp_path_factory.mktemp("fleet")
    return directory, write_fleet(directory)


def read(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert status == main(["fleet", "--output", "json", "--jobs", "1", *arguments])
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_each_of_20_disagreements_on_500_nodes_is_found_and_no_other(
    fleet: tuple[Path, Fleet], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, made = fleet
    document = read(capsys, str(directory))
    found = {(one["node"], one["verdict"]) for one in document["disagreements"]}
    assert 20 == len(made.injected) == len(document["disagreements"])
    assert {(one.node, one.kind) for one in made.injected} == found
    assert all(one["why"] for one in document["disagreements"])
    assert 500 == document["total"]["nodes"]
    assert made.prevented == document["total"]["oom_kills_prevented"]
    assert made.agreed - made.prevented == document["total"]["verdicts"]["same"]
    assert {"web": 125, "batch": 125, "gpu": 125, "spot": 125} == {
        one["pool"]: one["nodes"] for one in document["pools"]
    }
    assert [] == document["problems"]


def test_two_processes_find_the_same(fleet: tuple[Path, Fleet]) -> None:
    directory, _ = fleet
    sources = sources_in([directory / "gpu"]).sources
    alone, together = (fleet_of(sources, Options(), jobs) for jobs in (1, 2))
    assert alone == together


def test_a_limit_of_disagreements_is_an_exit_status(
    fleet: tuple[Path, Fleet], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(fleet[0])
    read(capsys, directory, "--allow-disagreements", "20")
    read(capsys, directory, "--allow-disagreements", "19", status=3)


@pytest.mark.slow
def test_anonymised_nothing_of_a_name_is_left_and_the_same_name_is_the_same(
    fleet: tuple[Path, Fleet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(fleet[0])
    plain = read(capsys, directory)
    key = tmp_path / "key"
    key.write_text("a key that is long enough")
    page = tmp_path / "fleet.html"
    first, second = (
        read(capsys, directory, "--anonymise", str(key), "--report", str(page)) for _ in range(2)
    )
    assert first == second
    assert [one["verdict"] for one in first["disagreements"]] == [
        one["verdict"] for one in plain["disagreements"]
    ]
    text = json.dumps(first) + page.read_text()
    names = {one["node"] for one in plain["disagreements"]} | {one["pool"] for one in plain["disagreements"]}
    names |= {part for one in plain["disagreements"] for part in one["pod"].split("/") if part}
    assert [] == sorted(name for name in names if name in text.replace("webkit", ""))
    other = read(capsys, directory, "--anonymise")
    assert {one["node"] for one in other["nodes"]}.isdisjoint(one["node"] for one in first["nodes"])


def test_a_key_that_can_be_guessed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "key").write_text("short\n")
    assert 2 == main(["fleet", str(tmp_path), "--anonymise", str(tmp_path / "key")])
    assert "got 5 bytes; accepted: a key of at least 16 bytes" in capsys.readouterr().err


def test_files_are_one_node_by_their_name_or_their_directorys_also_compressed(tmp_path: Path) -> None:
    for name in (
        *("a.jsonl", "a.jsonl.1", "a.jsonl.10.gz", "a.json"),
        *("b/journal.jsonl", "b/journal.jsonl.1", "b/recording-20261101T000000Z.json.gz", "b/recording.json"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    first, second = sources_in([tmp_path]).sources
    assert ("a", ["a.jsonl.10.gz", "a.jsonl.1", "a.jsonl"]) == (
        first.name,
        [one.name for one in first.journals],
    )
    assert ["a.json"] == [one.name for one in first.recordings]
    assert ("b", ["journal.jsonl.1", "journal.jsonl"]) == (second.name, [one.name for one in second.journals])
    assert ["recording-20261101T000000Z.json.gz", "recording.json"] == [one.name for one in second.recordings]


def _good(directory: Path) -> None:
    node = MadeUp("good", "web", random.Random(1))
    first, *_ = node.shortage(BEGAN + 7200)
    node.kubelet(BEGAN + 7204, first)
    node.written(directory / "good.jsonl")


def _bomb() -> bytes:
    return gzip.compress(b"x" * (8 << 20) + b"\n")


def test_whatever_lies_in_a_directory_is_named_and_costs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _good(tmp_path)
    recording = tmp_path / "cut.json"
    write_recording(recording, days=1)
    recording.write_bytes(recording.read_bytes()[:-300])
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "noise.jsonl").write_bytes(os.urandom(10_000) + b"\n")
    (tmp_path / "noise.json").write_bytes(os.urandom(10_000))
    (tmp_path / "long.jsonl").write_bytes(b"[" * (9 << 20) + b"\n")
    (tmp_path / "bomb.jsonl.gz").write_bytes(_bomb())
    (tmp_path / "short.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 1000)[:-20])
    (tmp_path / "no.jsonl.gz").write_bytes(b"no gzip at all\n")
    (tmp_path / "other.txt").write_text("other")
    (tmp_path / "link.jsonl").symlink_to("/etc/hostname")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "\x1b[2J.jsonl").write_bytes(b"\xff\n")
    policy = tmp_path / "policy.yaml"
    policy.write_text(_SHORT)
    assert 0 == main(["fleet", "--jobs", "1", "--output", "json", str(tmp_path), "--policy", str(policy)])
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (1, 1) == (document["total"]["decided"], document["total"]["kubelet_evictions"])
    for name in (
        *("cut.json", "noise.jsonl", "noise.json", "long.jsonl", "bomb.jsonl.gz", "short.jsonl.gz"),
        *("no.jsonl.gz", "link.jsonl", "zero.jsonl", "pipe.jsonl"),
    ):
        assert f"/{name}: " in err, name
    assert "2 other files passed over" in err
    assert "\x1b" not in err


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=300)
    | st.lists(
        st.sampled_from(
            [
                b'{"apiVersion":"reactor/v1alpha1","kind":"Scenario","name":"","steps":[\n',
                *(b"]}\n", b"{}\n", b"[],\n", b"\n", b'{"at":"1s"},\n', b'{"pods":[{}]},\n'),
                b'{"at":"0s","summary":{"node":{"memory":{}}}},\n',
                *(b'{"at":"0s","summary":7},\n', b'{"at":-1,"summary":{"node":[]}},\n'),
            ]
        ),
        max_size=6,
    ).map(b"".join),
    name=st.sampled_from(["a.json", "a.jsonl", "a.json.gz", "a.jsonl.gz"]),
    is_packed=st.booleans(),
)
def test_no_content_of_a_file_ends_the_command(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    name: str,
    is_packed: bool,  # noqa: FBT001 - hypothesis gives it by name
) -> None:
    directory = tmp_path / "files"
    directory.mkdir(exist_ok=True)
    for one in directory.iterdir():
        one.unlink()
    _good(directory)
    (directory / name).write_bytes(gzip.compress(content) if is_packed else content)
    policy = tmp_path / "policy.yaml"
    policy.write_text(_SHORT)
    assert 0 == main(["fleet", "--output", "json", "--jobs", "1", str(directory), "--policy", str(policy)])
    assert 2 == json.loads(capsys.readouterr().out)["total"]["nodes"]


@pytest.mark.parametrize("number", ["9" * 4000, "-" + "9" * 4000, "1e300"])
def test_no_number_of_a_file_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    _good(tmp_path)
    node = MadeUp("huge", "web", random.Random(1))
    for minute in range(20):
        node.oom_kill(BEGAN + 60 * minute + 1, node.shortage(BEGAN + 60 * minute)[0])
    node.shortage(BEGAN + 86400)
    text = "".join(f"{json.dumps(line)}\n" for _, line in node.lines)
    huge = re.sub(r'"(available|value|capacity|kills)": ?[0-9]+', rf'"\1":{number}', text)
    assert huge.count(number) > 20
    (tmp_path / "huge.jsonl").write_text(huge)
    read(capsys, str(tmp_path))
    assert 0 == main(["fleet", "--jobs", "1", "--report", str(tmp_path / "page.html"), str(tmp_path)])


def test_endless_empty_lines_end_somewhere(tmp_path: Path) -> None:
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(b"\n" * 5_000_000))
    problems: list[str] = []
    assert sum(1 for _ in lines_of(packed, problems)) < 5_000_000
    assert "the rest is left out" in problems[0]


def test_a_directory_without_a_node_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == main(["fleet", str(tmp_path)])
    assert capsys.readouterr().err == (
        f"reactor: {tmp_path}: no journal (NAME.jsonl) and no recording (NAME.json) is there\n"
    )


def test_why_a_directory_shows_no_node_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert 1 == main(["fleet", str(tmp_path)])
    first, second = capsys.readouterr().err.splitlines()
    assert f"reactor: {tmp_path}: 1 other file passed over" == first
    assert second.startswith(f"reactor: {tmp_path}: no journal (NAME.jsonl)")


@pytest.mark.parametrize("content", ["", "no journal\n", '{"kind": "decision"}\n'])
@pytest.mark.parametrize("command", [["shadow", "--journal"], ["fleet"]])
def test_what_is_no_journal_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], content: str
) -> None:
    path = tmp_path / "node.jsonl"
    path.write_text(content)
    assert 1 == main([*command, str(path)])
    out, err = capsys.readouterr()
    assert "" == out
    assert err.endswith(f"reactor: {path}: no line of a journal, and no step of a recording, can be read\n")
    assert 1 == main(["fleet", str(tmp_path / "nowhere")])


@pytest.mark.parametrize("name", ["node.json", "node.json.gz"])
@pytest.mark.parametrize("content", [b"", b"no recording\n", b"\xff\xfe", b"{}", None])
def test_recordings_of_which_none_can_be_read_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, name: str
) -> None:
    path = tmp_path / name
    path.symlink_to("/etc/hostname") if content is None else path.write_bytes(content)
    assert 1 == main(["fleet", str(tmp_path)])
    out, err = capsys.readouterr()
    assert "" == out
    assert err.startswith(f"reactor: {path}: ")
    assert f"reactor: {tmp_path}: no line of a journal, and no step of a recording, can be read\n" in err


def test_one_recording_that_can_be_read_is_enough_beside_a_journal_that_can_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node.jsonl").write_bytes(b"no journal\n")
    (tmp_path / "other.json").write_bytes(b"no recording\n")
    write_recording(tmp_path / "node.json", days=1)
    assert 0 == main(["fleet", "--jobs", "1", str(tmp_path)])
    assert f"{tmp_path}/node.jsonl: 1 of 1 lines are none of a journal's" in capsys.readouterr().err


def test_shadow_reads_one_journal_with_its_older_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _good(tmp_path)
    lines = (tmp_path / "good.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal.jsonl.1").write_bytes(b"".join(lines[:3]))
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[3:]))
    arguments = ["shadow", "--journal", str(tmp_path / "journal.jsonl")]
    assert 0 == main([*arguments, "--report", str(tmp_path / "a.html")])
    out = " ".join(capsys.readouterr().out.split())  # lines are as wide as the terminal
    assert "the kubelet evicted once; reactor chose the same pod in 1, 4.0 s sooner (median)" in out
    assert "the kubelet evicted the same pod" in (tmp_path / "a.html").read_text()
    assert 0 == main([*arguments, "--output", "json"])
    assert 1 == json.loads(capsys.readouterr().out)["total"]["verdicts"]["same"]
    assert 1 == main(["shadow", "--journal", str(tmp_path / "none")])


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
@pytest.mark.parametrize("width", [360, 1000])
def test_page_in_a_browser_has_no_error_and_no_text_that_is_cut_off(
    browser: Browser, fleet: tuple[Path, Fleet], tmp_path: Path, width: int, scheme: str
) -> None:
    made = fleet_of(sources_in([fleet[0] / "gpu", fleet[0] / "web"]).sources, Options(), 1)
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[2J\u202e</style>"
    node, _, pair = made.disagreements[0]
    made.disagreements.append((hostile, hostile, pair))
    made.pools[hostile] = made.pools["gpu"]
    made.problems.append(f"{node}: {hostile}")
    file = tmp_path / "page.html"
    file.write_text(page_of(made, f"A fleet {hostile}"))
    found = browser.open(file.as_uri(), width=width, scheme=scheme)
    assert [] == found.complaints
    assert [] == found.cut_off()
    assert 0 == found.value("document.querySelectorAll('script, img').length")


@pytest.mark.slow
def test_names_stand_for_others_by_their_kind() -> None:
    names = Names(b"k" * 32)
    assert names.pod("a/b").startswith("ns-")
    assert names.of("pod", "a") != names.of("node", "a").replace("node", "pod")
    assert "" == names.of("pod", "")
