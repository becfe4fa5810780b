from __future__ import annotations

import contextlib
import os
import resource
import socket

import pytest
import trio

from reactor.guard.daemon import ServiceNotice


@pytest.fixture
def manager(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


@pytest.fixture
def notices():
    """Make notices that are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *environment: stack.enter_context(contextlib.closing(ServiceNotice(*environment)))


def test_manager_hears_standing_by_ready_reloading_and_stopping(manager, notices):
    notice = notices()
    notice.status("standing by")
    notice.ready("2 pods")
    notice.reloading()
    assert notice.extend(25.0)
    notice.stopping()

    assert manager.recv(100) == b"STATUS=standing by"
    assert manager.recv(100) == b"READY=1\nSTATUS=2 pods"
    assert manager.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
    assert manager.recv(100) == b"EXTEND_TIMEOUT_USEC=25000000"
    assert manager.recv(100) == b"STOPPING=1"


async def test_watchdog_is_fed_while_the_loop_lives_and_not_when_it_hangs(manager, notices, autojump_clock):
    alive = [1, 1, 0, 0]
    notice = notices({**os.environ, "WATCHDOG_USEC": "2000000"})

    with trio.move_on_after(3.5):
        await notice.watchdog(lambda: alive.pop(0) == 1)

    manager.settimeout(0)
    assert [manager.recv(100), manager.recv(100)] == [b"WATCHDOG=1", b"WATCHDOG=1"]
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_without_a_manager_nothing_is_said(caplog):
    ServiceNotice({}).ready("x")
    assert not ServiceNotice({}).extend(1.0)

    assert [] == caplog.records


def test_manager_may_listen_in_the_abstract_namespace(notices):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # the kernel chooses a name
        listener.settimeout(5)
        name = listener.getsockname().decode()
        notices({"NOTIFY_SOCKET": f"@{name[1:]}"}).ready("x")

        assert b"READY=1\nSTATUS=x" == listener.recv(100)


def test_manager_that_is_too_busy_delays_nothing_and_hears_of_what_comes_later(manager, caplog, notices):
    notice = notices()
    while not caplog.records:
        notice.ready("x")
    manager.recv(100)

    notice.stopping()

    manager.settimeout(0)
    heard = []
    with contextlib.suppress(BlockingIOError):
        while True:
            heard.append(manager.recv(100))
    assert b"STOPPING=1" == heard[-1]


def test_manager_that_is_gone_is_survived(manager, caplog, notices):
    notice = notices()
    manager.close()
    notice.ready("x")
    notice.ready("y")

    assert len(caplog.records) == 1


def test_manager_that_refused_once_hears_of_what_comes_later(manager, caplog, tmp_path, notices):
    notice = notices()
    (tmp_path / "notify").rename(tmp_path / "elsewhere")
    notice.ready("x")
    (tmp_path / "elsewhere").rename(tmp_path / "notify")
    notice.ready("y")

    assert 1 == len(caplog.records)
    assert b"READY=1\nSTATUS=y" == manager.recv(100)


def test_manager_hears_of_a_daemon_that_has_no_descriptor_left(manager, notices):
    notice = notices()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        notice.ready("x")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert b"READY=1\nSTATUS=x" == manager.recv(100)


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "nonsense"}, None),
        ({}, None),
    ],
)
def test_watchdog_interval_is_taken_if_it_is_meant_for_this_process(environment, seconds):
    assert ServiceNotice(environment).watchdog_seconds == seconds
