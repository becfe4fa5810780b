from __future__ import annotations

import os
import signal
import threading

import pytest
import trio

from reactor.guard.run import SIGNALS, obey, receiver


class FakeDaemon:
    """Notes what it was told."""

    def __init__(self) -> None:
        self.reloads = []
        self.refusals = []

    def reload(self, settings) -> None:
        self.reloads.append(settings)

    def refuse_reload(self, error) -> None:
        self.refusals.append(error)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("evictionHard: {memory.available: 1Gi}\n")
    return path


def come(*numbers):
    send, receive = trio.open_memory_channel(len(numbers))
    for number in numbers:
        send.send_nowait(number)
    send.close()
    return receive


async def test_hangup_reloads_the_configuration(config):
    daemon, ends = FakeDaemon(), []

    await obey(come(signal.SIGHUP), daemon, config, lambda: ends.append(1), dry_run=False)

    assert "memory.available<1Gi" in map(str, daemon.reloads[0].eviction.thresholds)
    assert not daemon.reloads[0].dry_run
    assert ends == []


async def test_wrong_configuration_is_refused_with_every_problem(config):
    config.write_text("evictionHard: {memory.available: 1Xi, nodefs.available: 1Yi}\n")
    daemon = FakeDaemon()

    await obey(come(signal.SIGHUP), daemon, config, lambda: None, dry_run=False)

    assert daemon.reloads == []
    assert len(daemon.refusals[0].problems) == 2


async def test_each_configuration_that_is_taken_is_kept_and_no_refused_one(config):
    daemon, texts = FakeDaemon(), []
    right = config.read_text()

    await obey(come(signal.SIGHUP), daemon, config, lambda: None, dry_run=False, keep=texts.append)
    config.write_text("evictionHard: {memory.available: 1Xi}\n")
    await obey(come(signal.SIGHUP), daemon, config, lambda: None, dry_run=False, keep=texts.append)

    assert texts == [right]
    assert len(daemon.refusals) == 1


async def test_vanished_configuration_is_refused(config):
    config.unlink()
    daemon = FakeDaemon()

    await obey(come(signal.SIGHUP), daemon, config, lambda: None, dry_run=False)

    assert len(daemon.refusals) == 1


async def test_reload_that_fails_unexpectedly_is_refused_and_the_next_is_taken(config):
    class Failing(FakeDaemon):
        def reload(self, settings) -> None:
            if not self.refusals:
                raise ZeroDivisionError("a defect")
            super().reload(settings)

    daemon = Failing()
    await obey(come(signal.SIGHUP, signal.SIGHUP), daemon, config, lambda: None, dry_run=False)

    assert ["a defect"] == [str(error) for error in daemon.refusals]
    assert 1 == len(daemon.reloads)


async def test_dry_run_of_the_command_line_outlives_a_reload(config):
    daemon = FakeDaemon()

    await obey(come(signal.SIGHUP), daemon, config, lambda: None, dry_run=True)

    assert daemon.reloads[0].dry_run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_end_ends_and_nothing_after_it_counts(config, number):
    daemon, ends = FakeDaemon(), []

    await obey(come(number, signal.SIGHUP), daemon, config, lambda: ends.append(1), dry_run=False)

    assert ends == [1]
    assert daemon.reloads == []


@pytest.fixture
def hanging(monkeypatch):
    """Have every configuration hang while it is read; the event lets go of them."""
    released = threading.Event()

    def load(path, config_dir, *, may_run_commands):
        del path, config_dir, may_run_commands
        released.wait(60)
        raise OSError("released")

    monkeypatch.setattr("reactor.config.settings.load_configuration", load)
    yield released
    released.set()


@pytest.mark.usefixtures("hanging")
async def test_end_ends_while_a_configuration_hangs_on_its_disk(config):
    daemon, ends = FakeDaemon(), []

    with trio.fail_after(90):
        await obey(
            come(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM),
            daemon,
            config,
            lambda: ends.append(1),
            dry_run=False,
        )

    assert ends == [1]
    assert daemon.reloads == daemon.refusals == []


@pytest.mark.usefixtures("hanging")
async def test_configurations_that_hang_on_their_disk_are_refused_and_take_one_thread(
    config, autojump_clock, monkeypatch
):
    autojump_clock.autojump_threshold = 0.2
    daemon, hangups = FakeDaemon(), 3
    threads = threading.active_count()

    await obey(come(*[signal.SIGHUP] * hangups), daemon, config, lambda: None, dry_run=False)

    assert ["not read within 30 s"] * hangups == [error.problems[0].got for error in daemon.refusals]
    assert threading.active_count() <= threads + 1


async def test_configuration_that_is_no_file_any_more_is_refused_and_not_waited_for(config):
    config.unlink()
    os.mkfifo(config)
    daemon = FakeDaemon()

    with trio.fail_after(90):
        await obey(come(signal.SIGHUP), daemon, config, lambda: None, dry_run=False)

    assert ["not a regular file"] == [error.problems[0].got for error in daemon.refusals]


@pytest.mark.parametrize("blocked", [(), SIGNALS, (signal.SIGHUP,)], ids=["none", "all", "one"])
async def test_signals_are_received_while_that_is_asked_for_and_blocked_as_before_afterwards(blocked):
    ours = signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        handlers = [signal.getsignal(number) for number in SIGNALS]
        with receiver() as received:
            for number in SIGNALS:
                signal.raise_signal(number)
                assert number == await anext(received)

        assert {*blocked} == signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert handlers == [signal.getsignal(number) for number in SIGNALS]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, ours)
