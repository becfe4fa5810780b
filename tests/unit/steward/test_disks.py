"""The steward's part with the disks: real filesystems, and a runtime that tells late where its own lie."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from reactor.doctor.kubernetes import podman_features
from reactor.link.orders import Orders
from reactor.link.requests import Space
from reactor.model.settings import KubernetesSettings, ReclaimSettings, Settings
from reactor.model.signals import Filesystem, Reclaim
from reactor.podman.client import PodmanClient, PodmanImage
from reactor.programs import run_command
from reactor.reclaim.images import ImageReclaim
from reactor.reclaim.reclaims import NodeReclaim
from reactor.steward.disks import CommandReclaim, Disks, Podman, PodmanReclaim, is_made_here
from reactor.steward.guard import Guard, Said
from reactor.steward.kubernetes import Kubernetes
from reactor.supervisor import Supervisor
from tests.support.processes import is_held, is_running
from tests.support.this_machine import open_descriptors
from tests.support.waiting import until

SH = "/bin/sh"


class Heard:
    """What the guard was told."""

    def __init__(self) -> None:
        self.said: list[Said] = []

    def offer(self, said: Said) -> None:
        self.said.append(said)

    async def say(self, said: Said) -> None:
        self.said.append(said)


class Runtime:
    """Stands for the cluster's part: images lie at `path` as far as is known, rightly once `was_asked`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.was_asked = trio.Event()
        self.not_told: frozenset[Filesystem] = frozenset()

    def unplaced(self, _: Settings) -> frozenset[Filesystem]:
        return self.not_told

    def placed(self, settings: Settings) -> Settings:
        return replace(settings, filesystems={Filesystem.NODEFS: self.path, Filesystem.IMAGEFS: self.path})

    def reclaims(self, _: Settings) -> Mapping[Reclaim, NodeReclaim]:
        return {}

    async def wait_placed(self) -> None:
        await self.was_asked.wait()


async def test_filesystem_is_observed_only_when_the_runtime_was_asked_where_its_images_lie(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    heard, runtime = Heard(), Runtime("/dev")
    orders = Orders(start="now", number=1, settings=Settings())
    disks = Disks(cast(Guard, heard), Supervisor(), orders, cast(Kubernetes, runtime))
    nursery.start_soon(disks.run)
    has_refreshed = trio.Event()

    async def refresh() -> None:
        await disks.refresh()
        has_refreshed.set()

    nursery.start_soon(refresh)
    await trio.testing.wait_all_tasks_blocked()
    assert not has_refreshed.is_set()
    runtime.path = str(tmp_path)
    disks.renew()
    runtime.was_asked.set()
    await until(has_refreshed.is_set)
    await until(lambda: any(isinstance(one, Space) for one in heard.said))
    capacities = {one.capacity_bytes for one in heard.said if isinstance(one, Space)}
    found = os.statvfs(tmp_path)
    assert {found.f_blocks * found.f_frsize} == capacities
    nursery.cancel_scope.cancel()


async def test_where_the_runtime_is_down_from_the_start_its_filesystems_are_not_observed_until_it_answers(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    """Before, images were taken to lie with the pods' files, by whose space pods were evicted for imagefs."""
    heard, runtime = Heard(), Runtime(str(tmp_path))
    runtime.not_told = frozenset({Filesystem.IMAGEFS, Filesystem.CONTAINERFS})
    runtime.was_asked.set()
    orders = Orders(start="now", number=1, settings=Settings())
    disks = Disks(cast(Guard, heard), Supervisor(), orders, cast(Kubernetes, runtime))
    nursery.start_soon(disks.run)

    def spaces() -> set[Filesystem]:
        return {each for one in heard.said if isinstance(one, Space) for each in one.filesystems}

    for _ in range(3):
        await disks.refresh()
    assert {Filesystem.NODEFS} == spaces()
    assert "has not answered yet" in disks.problems["imagefs"]
    assert "containerfs" in disks.problems

    runtime.not_told = frozenset()
    disks.renew()
    await disks.refresh()
    assert set(Filesystem) == spaces()
    assert {"imagefs", "containerfs"}.isdisjoint(disks.problems)
    nursery.cancel_scope.cancel()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_path=str(tmp_path / "state.json"), podman_socket=str(tmp_path / "none.sock"))


async def test_a_podman_that_does_not_answer_is_a_problem_until_it_is_switched_off(
    settings: Settings, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    podman = Podman(settings, Supervisor())
    podman.reclaims(settings)
    nursery.start_soon(podman.run)
    await trio.sleep(1000)
    assert "none.sock" in podman.problems["podman"]
    assert podman.description is None

    assert {} == podman.reclaims(replace(settings, podman=False))
    await trio.sleep(1000)
    assert {} == podman.problems


def test_its_images_can_be_removed_unless_that_is_switched_off(settings: Settings) -> None:
    podman = Podman(settings, Supervisor())
    assert {Reclaim.IMAGES} == podman.reclaims(settings).keys()
    assert {} == podman.reclaims(replace(settings, podman=False))


def test_doctor_says_what_is_missing_and_how_it_is_had(settings: Settings) -> None:
    (found,) = podman_features(settings)
    assert not found.available
    assert "none.sock" in found.detail
    assert "reactor.podman.socket" in found.remedy
    (found,) = podman_features(replace(settings, podman=False))
    assert "switched off" in found.detail


def test_doctor_has_nothing_to_say_of_it_on_a_kubernetes_node(settings: Settings) -> None:
    assert () == podman_features(replace(settings, kubernetes=KubernetesSettings()))


@pytest.mark.parametrize(
    ("names", "made_here"),
    [
        (["localhost/mine:1"], True),
        (["localhost/mine:1", "localhost/mine:2"], True),
        (["localhost/mine:1", "registry.example/mine:1"], False),
        (["registry.example/localhost/mine:1"], False),
        ([], False),
    ],
)
def test_an_image_was_made_here_where_no_name_of_it_is_a_registrys(
    names: list[str], *, made_here: bool
) -> None:
    assert made_here == is_made_here(PodmanImage(id="a", names=tuple(names), size_bytes=1))


async def test_where_there_is_no_podman_nothing_is_to_be_reclaimed() -> None:
    def images(_: PodmanClient) -> ImageReclaim:
        raise AssertionError

    reclaim = PodmanReclaim(lambda: None, images, {Filesystem.NODEFS: "/"})
    assert await reclaim.run(tuple(Filesystem)) is None


def reclaim(*commands: tuple[str, ...], timeout_seconds: float = 20.0, now=lambda: 0.0) -> CommandReclaim:
    settings = ReclaimSettings(
        commands={Filesystem.NODEFS: commands}, timeout_seconds=timeout_seconds, pause_seconds=60.0
    )
    return CommandReclaim(settings, clock_seconds=now)


async def test_commands_of_the_filesystem_run_in_their_order(tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = await reclaim((SH, "-c", f"echo one >> {out}"), (SH, "-c", f"echo two >> {out}")).run(
        [Filesystem.NODEFS]
    )
    assert "one\ntwo\n" == out.read_text()
    assert found is not None
    assert ((), 2) == (found.problems, len(found.did))


async def test_commands_of_another_filesystem_do_not_run(tmp_path: Path) -> None:
    assert await reclaim((SH, "-c", f"touch {tmp_path}/ran")).run([Filesystem.IMAGEFS]) is None
    assert [] == os.listdir(tmp_path)


async def test_nothing_is_made_of_a_word_as_a_shell_would(tmp_path: Path) -> None:
    await reclaim(("/usr/bin/touch", f"{tmp_path}/$HOME;*")).run([Filesystem.NODEFS])
    assert "$HOME;*" in os.listdir(tmp_path)


async def test_after_a_reload_to_a_dry_run_no_further_command_is_begun(tmp_path: Path) -> None:
    ran: list[str] = []
    commands = ReclaimSettings(commands={Filesystem.NODEFS: (("first",), ("second",))}, pause_seconds=0.0)
    settings = Settings(reclaim=commands, state_path=str(tmp_path / "state.json"), podman=False)

    async def run(command: Sequence[str], *_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        ran.append(command[0])
        disks.order(Orders(start="now", number=2, settings=replace(settings, dry_run=True)))

    disks = Disks(
        cast(Guard, Heard()), Supervisor(), Orders(start="now", number=1, settings=settings), run=run
    )
    asked = {"kind": Reclaim.COMMANDS, "filesystems": [Filesystem.NODEFS]}
    assert (("first",), ()) == await disks.reclaim(asked)
    assert ["first"] == ran


async def test_they_run_again_only_after_the_pause(tmp_path: Path) -> None:
    now = [100.0]
    commands = reclaim(("/usr/bin/touch", f"{tmp_path}/ran"), now=lambda: now[0])
    assert await commands.run([Filesystem.NODEFS]) is not None
    now[0] += 59
    assert await commands.run([Filesystem.NODEFS]) is None
    now[0] += 2
    assert await commands.run([Filesystem.NODEFS]) is not None


async def test_command_that_fails_is_reported_with_its_last_words_and_the_next_one_runs(
    tmp_path: Path,
) -> None:
    found = await reclaim(
        (SH, "-c", "echo first >&2; echo no such journal >&2; exit 3"),
        ("/nowhere/program",),
        (SH, "-c", "kill -KILL $$"),
        ("/usr/bin/touch", f"{tmp_path}/ran"),
    ).run([Filesystem.NODEFS])
    assert found is not None
    assert (
        "/bin/sh: exit status 3: no such journal",
        "/nowhere/program: No such file or directory",
        "/bin/sh: killed by signal 9",
    ) == found.problems
    assert ["ran"] == os.listdir(tmp_path)


async def test_command_that_is_late_is_killed_with_everything_that_it_started(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.rate = 1.0
    pids, done = tmp_path / "pids", []
    script = f"sleep 600 & echo $$ $! > {pids}; wait"

    async def run() -> None:
        done.append(await reclaim((SH, "-c", script), timeout_seconds=100.0).run([Filesystem.NODEFS]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await until(lambda: pids.exists() and len(pids.read_text().split()) == 2, "it runs")
        command, child = map(int, pids.read_text().split())
        await until(lambda: is_held(command), "its end is waited for")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.rate = 0.05  # so that it is seen to have ended in time on a busy machine too
        mock_clock.jump(100.0)
    (found,) = done
    assert found is not None
    assert ("/bin/sh: not done within 100 s: killed",) == found.problems
    assert _is_gone(child)


async def test_cancelled_command_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with trio.move_on_after(90) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_command, (SH, "-c", f"echo $$ > {pid_file}; exec sleep 600"), 600)
            while not pid_file.exists() or not pid_file.read_text().strip():  # noqa: ASYNC110 - a file
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    assert _is_gone(int(pid_file.read_text()))


async def test_what_it_leaves_running_delays_no_pass(tmp_path: Path) -> None:
    child = tmp_path / "child"
    end = await run_command((SH, "-c", f"sleep 600 & echo $! > {child}"), 600)
    assert (0, False) == (end.status, end.timed_out)
    left = int(child.read_text())
    assert is_running(left)
    os.kill(left, signal.SIGKILL)


async def test_it_runs_with_no_signal_blocked_a_session_of_its_own_and_no_file_of_ours(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    script = (
        "import os, signal, sys\n"
        "print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), os.getsid(0) == os.getpid(),\n"
        "      signal.getsignal(signal.SIGXFSZ) == signal.SIG_DFL, sorted(os.environ)[:2],\n"
        "      sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:-1], file=open(sys.argv[1], 'w'))\n"
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        with (tmp_path / "ours").open("w"):
            await run_command((sys.executable, "-S", "-c", script, str(out)), 60)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert out.read_text().startswith("0 True")
    assert "[0, 1, 2" in out.read_text()


async def test_no_descriptor_is_left() -> None:
    before = open_descriptors()
    await run_command(("/bin/true",), 60)
    with pytest.raises(FileNotFoundError):
        await run_command(("/nowhere",), 60)
    assert before == open_descriptors()


def _is_gone(pid: int) -> bool:
    """Wait for an orphan's end: whoever adopted it has to reap it."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
