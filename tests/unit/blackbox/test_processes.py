"""Commands as they are written down: what is shown, what is hidden, and what any bytes come to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.blackbox.processes import MOST_PROCESSES, _head, command_text, largest_processes
from tests.support.processes import PAUSE


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["/usr/bin/python3", "train.py"], "/usr/bin/python3 train.py"),
        (["python3", "-m", "http.server", "8080"], "python3 -m http.server …"),
        (["java", "-Xmx4g", "-jar", "app.jar"], "java -X… -jar app.jar"),
        (["node", "server.js", "--port=80", "--verbose"], "node server.js --port=… --verbose"),
        (["mysql", "-phunter2", "-u", "root"], "mysql -p… -u …"),
        (["curl", "https://me:hunter2@example.org/"], "curl …"),
        (["tool", "--token", "hunter2", "push"], "tool --token … push"),
        (["vault", "login", "hunter2", "again"], "vault login …"),
        (["env", "PASSWORD=hunter2", "program"], "env …"),
        (["sh", "-c", "echo hunter2"], "sh -c …"),
        (["deploy", "c2VjcmV0LXRva2VuMTIzNDU2"], "deploy …"),
        (["tool", "--c2VjcmV0LXRva2VuMTIzNDU2"], "tool --…"),
        (["postgres: alice payroll [local] SELECT"], "postgres: alice …"),
        (["nginx: master process --key=hunter2 hunter2"], "nginx: master … --key=… …"),
        (["\x1b[2Jevil\n", "a\u202eb"], r"\x1b[2Jevil\x0a …"),
        (["x" * 5000, "y"], "x" * 79 + "… y"),
        (["a", *["-v"] * 20], "a -v -v -v -v -v -v -v …"),
        ([""], ""),
    ],
)
def test_command_shows_the_program_and_what_can_not_be_a_secret(words: list[str], shown: str) -> None:
    assert shown == command_text(b"\0".join(map(os.fsencode, words)) + b"\0")


@given(st.binary(max_size=4096))
def test_any_bytes_come_to_a_short_line_of_printable_text(raw: bytes) -> None:
    shown = command_text(raw)
    assert shown.isprintable()
    assert len(shown) < 500


@given(st.lists(st.text(st.characters(exclude_characters="\0"), max_size=40), min_size=1, max_size=12))
def test_word_with_a_secret_in_it_is_never_shown(words: list[str]) -> None:
    """Whatever stands before it: a secret that is no plain word, or follows the first word, is hidden."""
    hidden = "S3cr=t:"
    raw = b"\0".join(word.encode(errors="replace") for word in ["program", *words, hidden, f"-p{hidden}"])
    assert "S3cr" not in command_text(raw)


def test_largest_processes_are_the_first_five_with_memory_age_and_command(fake, tmp_path: Path) -> None:
    fake.add("/pod")
    children = [subprocess.Popen(PAUSE) for _ in range(MOST_PROCESSES + 2)]
    try:
        fake.file("/pod", "cgroup.procs", "".join(f"{one.pid}\n" for one in children) + "4194303\n")
        found = largest_processes(fake.tree, "/pod")
    finally:
        for one in children:
            one.kill()
            one.wait()
    assert len(found.processes) == MOST_PROCESSES
    assert found.count == len(children)
    first = found.processes[0]
    assert first.command == f"{sys.executable} -S -c …"
    assert first.anonymous_bytes + first.file_bytes > 0
    assert first.age_seconds is not None
    assert 0 <= first.age_seconds < 600


def test_process_that_dies_while_it_is_read_is_never_shown_without_its_command(
    fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add("/pod")
    with subprocess.Popen(PAUSE) as child:
        fake.file("/pod", "cgroup.procs", f"{child.pid}\n")

        def dies_after(path: str, most_bytes: int) -> bytes:
            found = _head(path, most_bytes)
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            return found

        monkeypatch.setattr("reactor.blackbox.processes._head", dies_after)
        assert () == largest_processes(fake.tree, "/pod").processes


def test_cgroup_that_is_gone_is_an_error(fake) -> None:
    with pytest.raises(OSError, match="gone"):
        largest_processes(fake.tree, "/gone")


def test_no_more_are_looked_at_when_the_time_is_over(fake) -> None:
    fake.add("/pod")
    fake.file("/pod", "cgroup.procs", "".join(f"{pid}\n" for pid in range(1, 1000)))
    found = largest_processes(fake.tree, "/pod", most_seconds=0.0)
    assert found.is_partial


def test_cgroups_without_a_process_take_of_the_time_as_well(fake) -> None:
    fake.add("/pod")
    for number in range(3):
        fake.add(f"/pod/{number}")
    assert largest_processes(fake.tree, "/pod", most_seconds=0.0).is_partial
