"""The process itself, as the guard starts it."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reactor.link.shutdown import LONGEST_BYTES, ShutdownNewsKind, read_news
from reactor.shutdown.kubelet import ends_pods_itself
from tests.support.logind import private_bus


@contextmanager
def _started(*arguments: str) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30.0)
    with ours, theirs:
        command = [sys.executable, "-P", "-m", "reactor.shutdown", *arguments]
        process = subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE)
        theirs.close()
        try:
            yield ours, process
        finally:
            ours.close()
            assert 0 == process.wait(30.0)
            assert process.stderr is not None
            process.stderr.close()


def test_it_is_ordinary_bounded_and_ends_with_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_bus(tmp_path) as bus:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
        with _started("30") as (guard, process):
            assert ShutdownNewsKind.PROBLEM is read_news(guard.recv(LONGEST_BYTES)).kind  # there is no logind
            assert 96 << 20 == resource.prlimit(process.pid, resource.RLIMIT_DATA)[0]
            assert "0" == Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip()


def test_where_the_kubelet_ends_the_pods_itself_no_lock_is_taken(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("kind: KubeletConfiguration\nshutdownGracePeriod: 30s\n")
    with _started("30", str(config)) as (guard, _):
        news = read_news(guard.recv(LONGEST_BYTES))
    assert ShutdownNewsKind.PROBLEM is news.kind
    assert "the kubelet ends the pods itself" in news.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shutdownGracePeriod: 30s", True),
        ("shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]", True),
        ("shutdownGracePeriod: 1m30s\nevictionHard: {memory.available: none of ours}", True),
        ('{"shutdownGracePeriod": "1h"}', True),
        ("shutdownGracePeriod: 0s", False),
        ("shutdownGracePeriod: 500ms", False),
        ("shutdownGracePeriod: soon", False),
        ("shutdownGracePeriod: 30", False),
        ("shutdownGracePeriod: 30s\nshutdownGracePeriod: 30s", False),
        ("shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 0}, {}, 5]", False),
        ("shutdownGracePeriodByPodPriority: {priority: 0}", False),
        ("[shutdownGracePeriod]", False),
        ("evictionHard: {}", False),
        ("shutdownGracePeriod: [", False),
        ("", False),
    ],
)
def test_the_kubelets_configuration_says_whether_it_does(
    tmp_path: Path, text: str, *, expected: bool
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    assert expected is ends_pods_itself(config)


@pytest.mark.parametrize(
    "raw", [b"shutdownGracePeriod: 30s \xff", b"shutdownGracePeriod: !!python/name:os 30s"]
)
def test_a_kubelets_configuration_that_can_not_be_read_says_nothing(tmp_path: Path, raw: bytes) -> None:
    config = tmp_path / "config.yaml"
    config.write_bytes(raw)
    assert not ends_pods_itself(config)


def test_a_kubelets_configuration_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert not ends_pods_itself(tmp_path / "none.yaml")
