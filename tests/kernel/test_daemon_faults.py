"""The whole daemon among faults: none of them stops it, and none goes unsaid."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from reactor import healthz
from reactor.config.settings import settings_from_text
from reactor.guard.run import run
from reactor.kernel import small_file
from reactor.kernel.procfs import BOOT_ID
from reactor.model.wakes import SourceHealth
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, hold
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}}


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a directory on a filesystem without a free block."""
    directory = tmp_path / "full"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs could be mounted, run with CAP_SYS_ADMIN: {mounted.stderr.strip()}")
    try:
        with pytest.raises(OSError, match="No space left"), (directory / "filler").open("wb") as filler:
            filler.write(bytes(1 << 20))
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_full_disk_under_the_journal_loses_lines_but_evicts(
    node: VirtualNode, daemon: RunningDaemon, full_disk: Path
) -> None:
    daemon.configure(HARD, {"journal": {"path": str(full_disk / "journal.jsonl")}})
    daemon.start()

    assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(60)

    eventually(lambda: "journal" in daemon.status()["problems"], "the journal's problem")
    assert "No space left" in daemon.status()["problems"]["journal"]
    eventually(lambda: "lines are being lost" in daemon.log(), "the log, with the steward's next beat")
    assert 1 == daemon.log().count("lines are being lost")
    assert "cgroup/hog" in daemon.ask("explain", "hog").stdout
    assert daemon.stop() == 0


@pytest.fixture
def few_processes() -> Iterator[Path]:
    """Return a cgroup of the pids controller, whose limit takes all process ids from those in it."""
    pids = Path("/sys/fs/cgroup/pids")
    if not (pids / "cgroup.procs").exists():
        pytest.skip("needs the pids controller of cgroup v1 at /sys/fs/cgroup/pids, and root")
    directory = pids / f"reactor-few-{os.getpid()}"
    directory.mkdir()
    try:
        yield directory
    finally:
        eventually(lambda: not (directory / "cgroup.procs").read_text(), "an empty cgroup")
        directory.rmdir()


def test_daemon_that_can_start_no_thread_evicts_and_lives_on(
    few_processes: Path, node: VirtualNode, daemon: RunningDaemon
) -> None:
    daemon.configure(HARD, {"housekeepingInterval": "5m"})
    daemon.start()
    assert daemon.process is not None
    (few_processes / "cgroup.procs").write_text(str(daemon.process.pid))
    (few_processes / "pids.max").write_text("1")
    time.sleep(12)  # Trio keeps a thread for ten seconds, and what wants one would have that

    for name in ("first", "second"):
        assert -signal.SIGKILL == node.spawn(node.add_pod(name), hold(220)).wait(60)
    eventually(lambda: "max 0" not in (few_processes / "pids.events").read_text(), "a thread refused")
    assert -signal.SIGKILL == node.spawn(node.add_pod("third"), hold(220)).wait(60)
    assert daemon.process.poll() is None
    (few_processes / "pids.max").write_text("max")
    eventually(lambda: len(daemon.evictions()) == 3, "all in the journal")
    assert daemon.stop() == 0


def test_pods_and_parents_that_vanish_and_come_again_are_guarded_again(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    parent = node.add_pod("parent")
    old = node.add_pod("parent/old")
    daemon.configure(HARD, {"pods": {"parents": [parent]}, "housekeepingInterval": "100ms"})
    daemon.start()
    eventually(lambda: daemon.status()["pods"] == 1, "one pod")

    node.remove_pod(old)
    node.remove_pod(parent)
    eventually(lambda: daemon.status()["pods"] == 0, "no pod")
    node.add_pod("parent")
    hog = node.spawn(node.add_pod("parent/hog"), hold(220))

    assert -signal.SIGKILL == hog.wait(60)
    assert daemon.stop() == 0


def test_node_cgroup_that_does_not_exist_yet_is_told_in_words_to_the_service_manager_and_in_status(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    late = f"{node.cgroup}/late"
    daemon.configure(HARD, {"nodeCgroup": late, "housekeepingInterval": "100ms"})
    words = f"the cgroup {late} (nodeCgroup) does not exist: no pod is guarded until it does"

    assert f"STATUS=0 pods, memory.available is not known: {words}" in daemon.start()
    assert words == daemon.status()["problems"]["memory.available"]

    node.add_pod("late")
    eventually(lambda: "memory.available" not in daemon.status()["problems"], "the node")
    assert daemon.stop() == 0


def test_node_cgroup_that_is_gone_is_a_problem_and_no_pressure(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    daemon.configure(HARD, {"housekeepingInterval": "100ms"})
    daemon.start()

    node.clean_up()
    eventually(lambda: "memory.available" in " ".join(daemon.status()["problems"]), "a problem")

    document = daemon.status()
    assert not any(one["in_force"] for one in document["conditions"])
    assert daemon.stop() == 0


def test_socket_of_a_dead_daemon_is_replaced(node: VirtualNode, daemon: RunningDaemon) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(daemon.socket_path))
    daemon.configure(HARD)
    daemon.start()

    assert daemon.status()["node_cgroup"] == node.cgroup
    assert 0o600 == daemon.socket_path.stat().st_mode & 0o777


def test_second_daemon_on_the_same_node_or_socket_refuses_in_one_line_and_the_first_stays(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    daemon.configure(HARD)
    daemon.start()
    for state_file, section, why in (
        ("state.json", {}, "state.json.lock: another daemon holds it; reactor run --stand-by"),
        ("other.json", {}, "the node's lock: another daemon, of another reactor.stateFile,"),
        ("other.json", {"dryRun": True}, "a daemon answers there"),
    ):
        second = RunningDaemon(tmp_path, node.cgroup)
        second.log_path = tmp_path / f"second-{why[:5]}.log"
        second.configure(HARD, {**section, "stateFile": str(tmp_path / state_file)})

        assert 1 == second.spawn().wait(60)

        assert why in second.log()
        assert "Traceback" not in second.log()
        assert daemon.status()["node_cgroup"] == node.cgroup


def test_conditions_survive_a_crash_with_their_since(node: VirtualNode, daemon: RunningDaemon) -> None:
    daemon.configure(HARD, {"housekeepingInterval": "200ms"})
    daemon.start()
    node.spawn(node.add_pod("hog"), hold(220)).wait(20)
    eventually(lambda: _pressure(daemon)["in_force"], "memory pressure")
    eventually(lambda: "MemoryPressure" in _saved(daemon), "the state file")
    before = _pressure(daemon)["for_seconds"]

    daemon.kill()
    daemon.start()

    after = _pressure(daemon)
    assert after["in_force"]
    assert after["for_seconds"] > before
    assert "state restored: conditions=MemoryPressure" in daemon.log()
    assert "cgroup/hog" in daemon.ask("explain", "hog").stdout


def test_corrupt_state_is_said_and_started_without(node: VirtualNode, daemon: RunningDaemon) -> None:
    small_file.write(daemon.directory / "state.json", '{"version": 1, "boot')
    daemon.configure(HARD)
    daemon.start()

    assert "started without it" in daemon.status()["problems"]["state file"]


@pytest.mark.parametrize("owner", [0, 65534], ids=["its own", "another user's"])
def test_no_pod_is_killed_by_a_state_that_another_user_has_put_there(
    node: VirtualNode, daemon: RunningDaemon, owner: int
) -> None:
    """As anybody can who comes first in /tmp. By its own it kills the pod whose eviction is in flight."""
    pod = node.add_pod("pod")
    process = node.spawn(pod, hold(20))
    eviction = {
        "kind": "pod",
        "uid": f"{pod}#{node.tree.path(pod).stat().st_ino}",
        "deadline_seconds": time.monotonic() + 600,
    }
    document = {
        "version": 1,
        "boot_id": BOOT_ID.read_text().strip(),
        "saved_seconds": time.monotonic(),
        "state": {"claims": [eviction]},
    }
    state = daemon.directory / "state.json"
    small_file.replace(state, document)
    os.chown(state, owner, -1)
    daemon.configure(HARD)
    daemon.start()

    if owner:
        assert "got uid 65534" in daemon.status()["problems"]["state file"]
        after_passes(daemon, 3)
        assert process.poll() is None
    else:
        assert -signal.SIGKILL == process.wait(60)


def test_others_can_write_no_directory_of_a_daemon_that_was_started_with_a_umask_of_0(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    state, journal = made / "run/r/state.json", made / "log/j/journal.jsonl"
    section = {"stateFile": str(state), "journal": {"path": str(journal)}, "socket": str(made / "s/s/r.sock")}
    daemon.configure(HARD, section)
    daemon.inside = ["sh", "-c", 'umask 0; exec "$@"', "sh"]
    daemon.start()
    node.spawn(node.add_pod("hog"), hold(220))
    eventually(journal.exists, "the journal is written")
    eventually(state.exists, "the state is saved")
    found = {path: stat.S_IMODE(path.lstat().st_mode) for path in (made, *made.rglob("*"))}
    assert len(found) >= 9
    assert {} == {str(path): oct(mode) for path, mode in found.items() if mode & 0o022}


def test_soft_eviction_is_taken_up_again_after_a_crash(node: VirtualNode, daemon: RunningDaemon) -> None:
    daemon.configure(
        {
            "evictionSoft": {"memory.available": "64Mi"},
            "evictionSoftGracePeriod": {"memory.available": "100ms"},
            "evictionMaxPodGracePeriod": 8,  # a busy machine needs some to write the state
            "evictionHard": {},
        },
        {"housekeepingInterval": "100ms"},
    )
    daemon.start()
    process = node.spawn(node.add_pod("stubborn"), hold(210, stubborn=True))
    eventually(lambda: '"uid"' in _saved(daemon), "an eviction in flight in the state file")
    eventually(lambda: _told_of_orders(daemon) == ["ordered"], "its order in the journal")

    daemon.kill()
    assert process.poll() is None
    daemon.start()

    assert -signal.SIGKILL == process.wait(60)
    assert "resuming eviction after restart" in daemon.log()
    eventually(lambda: _told_of_orders(daemon) == ["ordered", "resumed", "outcome"], "what became of it")
    outcome = daemon.lines()[-1]
    assert ("cgroup/stubborn", "killed") == (outcome["pod"], outcome["outcome"])
    assert "cgroup/stubborn" in daemon.ask("explain", "stubborn").stdout


def _told_of_orders(daemon: RunningDaemon) -> list[str]:
    return [line["kind"] for line in daemon.lines() if line["kind"] in {"ordered", "resumed", "outcome"}]


def test_wrong_reload_keeps_the_configuration_and_names_every_problem(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    daemon.configure(HARD)
    daemon.start()
    daemon.configure({"evictionHard": {"memory.available": "64Xi"}}, {"housekeepingInterval": "never"})

    daemon.signal(signal.SIGHUP)
    eventually(lambda: "the configuration in force stays" in daemon.log(), "a refusal in the log")

    assert "64Xi" in daemon.log()
    assert "housekeepingInterval" in daemon.log()
    assert ["memory.available<64Mi"] == _thresholds(daemon)
    assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(60)


def test_what_waits_for_a_restart_is_named_until_the_file_says_again_what_is_in_force(
    daemon: RunningDaemon,
) -> None:
    daemon.configure(HARD)
    daemon.start()
    assert "restart" not in daemon.status()["problems"]

    daemon.configure(HARD, {"journal": {"path": str(daemon.directory / "other.jsonl")}})
    daemon.signal(signal.SIGHUP)
    eventually(lambda: "restart" in daemon.status()["problems"], "what waits for a restart")
    assert "in force after a restart only: reactor.journal" in daemon.status()["problems"]["restart"]

    daemon.configure(HARD)
    daemon.signal(signal.SIGHUP)
    eventually(lambda: "restart" not in daemon.status()["problems"], "nothing that waits")


def test_status_works_while_the_file_is_invalid(daemon: RunningDaemon) -> None:
    daemon.configure(HARD)
    daemon.start()
    daemon.configure({"evictionHard": {"memory.available": "64Xi"}})

    command = [sys.executable, "-m", "reactor", "status", "--output", "json"]
    asked = subprocess.run(
        [*command, "--config", str(daemon.config_path)], capture_output=True, text=True, check=False
    )

    assert asked.returncode == 0
    assert "invalid, 1 error" in asked.stderr
    assert json.loads(asked.stdout)["pods"] == 0


def test_crash_after_a_refused_reload_is_not_final(node: VirtualNode, daemon: RunningDaemon) -> None:
    daemon.configure(HARD)
    daemon.start()
    kept = daemon.directory / "last-good-config.json"
    eventually(kept.exists, "the last good configuration")
    daemon.configure({"evictionHard": {"memory.available": "64Xi"}})
    daemon.signal(signal.SIGHUP)
    eventually(lambda: "the configuration in force stays" in daemon.log(), "a refusal in the log")
    assert "the configuration in force stays" in daemon.status()["problems"]["configuration"]

    daemon.kill()
    daemon.start()

    assert "the last good configuration is in force" in daemon.log()
    assert "64Xi" in daemon.status()["problems"]["configuration"]
    assert ["memory.available<64Mi"] == _thresholds(daemon)
    daemon.configure({"evictionHard": {"memory.available": "65Mi"}})
    daemon.signal(signal.SIGHUP)
    eventually(lambda: ["memory.available<65Mi"] == _thresholds(daemon), "the new threshold")
    assert "configuration" not in daemon.status()["problems"]
    assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(60)


def test_a_start_with_a_refused_file_is_never_ready_though_it_guards_and_a_refused_reload_changes_nothing(
    daemon: RunningDaemon,
) -> None:
    def not_ready() -> str | None:
        assert healthz.problem(str(daemon.socket_path)) is None
        why = daemon.status()["health"]["not_ready_because"]
        assert (why is None) == (healthz.problem(str(daemon.socket_path), or_not_ready=True) is None)
        return why

    def refuse(how_often: int) -> None:
        daemon.configure({"evictionHard": {"memory.available": "64Xi"}})
        daemon.signal(signal.SIGHUP)
        eventually(lambda: daemon.log().count("configuration in force stays") == how_often, "a refusal")

    daemon.configure(HARD)
    daemon.start()
    eventually((daemon.directory / "last-good-config.json").exists, "the last good configuration")
    refuse(1)
    assert not_ready() is None

    daemon.kill()
    daemon.start()
    assert "64Xi" in str(not_ready())
    assert "the last good configuration is in force" in str(not_ready())
    refuse(2)
    assert "64Xi" in str(not_ready())

    daemon.configure({"evictionHard": {"memory.available": "65Mi"}})
    daemon.signal(signal.SIGHUP)
    eventually(lambda: ["memory.available<65Mi"] == _thresholds(daemon), "the new threshold")
    assert not_ready() is None


def test_a_start_with_a_refused_file_and_no_last_good_one_ends_with_two(daemon: RunningDaemon) -> None:
    daemon.configure({"evictionHard": {"memory.available": "64Xi"}})
    assert 2 == daemon.spawn().wait(60)
    daemon.stop()


def test_threshold_above_the_limit_evicts_no_pod_neither_at_the_start_nor_once_the_limit_is_lowered(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    quiet = [node.spawn(node.add_pod(name), hold(10)) for name in ("a", "b")]
    daemon.configure({"evictionHard": {"memory.available": "257Mi"}}, {"housekeepingInterval": "50ms"})
    daemon.start()
    name = "threshold memory.available<257Mi"

    def passed(count: int) -> None:
        wanted = daemon.status()["passes"] + count
        eventually(lambda: daemon.status()["passes"] >= wanted, f"{count} more passes")

    passed(10)
    assert "ignored" in daemon.status()["problems"][name]
    assert f"{name}: ignored" in daemon.log()

    node.tree.set_memory_limit(node.cgroup, 512 * MIB)
    eventually(lambda: name not in daemon.status()["problems"], "the limit above the threshold")
    node.tree.set_memory_limit(node.cgroup, 200 * MIB)
    eventually(lambda: name in daemon.status()["problems"], "the limit below the threshold")
    passed(10)

    assert [] == daemon.evictions()
    assert [None, None] == [pod.poll() for pod in quiet]


def test_right_reload_takes_the_new_thresholds_and_keeps_what_is_known(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    daemon.configure(HARD)
    daemon.start()
    passes = daemon.status()["passes"]
    daemon.configure({"evictionHard": {"memory.available": "150Mi"}})

    daemon.signal(signal.SIGHUP)
    eventually(lambda: ["memory.available<150Mi"] == _thresholds(daemon), "the new threshold")

    assert daemon.status()["passes"] > passes
    assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(130)).wait(60)


def test_occupied_metrics_port_is_said_and_survived(node: VirtualNode, daemon: RunningDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        daemon.configure(HARD, {"metrics": f"127.0.0.1:{occupied.getsockname()[1]}"})
        daemon.start()

        assert daemon.status()["pods"] == 0
        assert "the port is taken" in daemon.log()


def test_storm_of_reloads_does_not_keep_it_from_evicting(node: VirtualNode, daemon: RunningDaemon) -> None:
    daemon.configure(HARD)
    daemon.start()
    process = node.spawn(node.add_pod("hog"), hold(220))

    while process.poll() is None:
        daemon.signal(signal.SIGHUP)
        time.sleep(0.005)

    assert -signal.SIGKILL == process.returncode
    assert daemon.stop() == 0


@pytest.mark.nightly
def test_end_at_any_moment_leaves_nothing_behind(node: VirtualNode, daemon: RunningDaemon) -> None:
    daemon.configure(HARD)
    moments = random.Random(2)
    names: set[str] = set()  # of its own trials: another daemon may be starting
    for _ in range(6):
        process = daemon.spawn()
        time.sleep(moments.uniform(0.0, 0.8))
        names |= {f"reactor-exercise-{pid}" for pid in daemon.processes()}
        process.send_signal(moments.choice([signal.SIGTERM, signal.SIGINT]))
        # Before the interpreter has come to the command's first line the kernel's default answers; in its own
        # first imports an interrupt makes it end with 1.
        assert process.wait(60) in {0, 1, -signal.SIGTERM, -signal.SIGINT, 130}
    # Whoever ended with 1 did so for the interrupt: another failure has another traceback, or a line of ours.
    assert "\nreactor: " not in daemon.log()
    assert daemon.log().count("Traceback") == daemon.log().count("\nKeyboardInterrupt")
    roots = {node.tree.memory_root, node.tree.freezer_root, node.tree.cpu_root} - {None}
    assert [] == [name for root in roots for name in names if (Path(str(root)) / name).exists()]
    assert not daemon.socket_path.exists()


def _pressure(daemon: RunningDaemon) -> dict:
    return next(one for one in daemon.status()["conditions"] if one["condition"] == "MemoryPressure")


def _saved(daemon: RunningDaemon) -> str:
    path = daemon.directory / "state.json"
    return json.dumps(json.loads(path.read_text())) if path.exists() else ""


def _thresholds(daemon: RunningDaemon) -> list[str]:
    memory = next(one for one in daemon.status()["signals"] if one["signal"] == "memory.available")
    return [threshold["threshold"] for threshold in memory["thresholds"]]


@pytest.mark.nightly
def test_many_reloads_leave_no_descriptor_and_no_memory_behind(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    node.add_pod("pod")
    daemon.configure(HARD)
    daemon.start()
    for count in range(1, 31):
        daemon.signal(signal.SIGHUP)
        eventually(lambda expected=count: daemon.log().count("reloading") == expected, "a reload")
        if count == 10:  # the first few warm caches up
            descriptors, rss_mib = _settled_descriptors(daemon), daemon.rss_mib()
    # Fewer are no leak: on a busy machine what a thread has open for a reading may be among those of before.
    before = Counter(descriptors)
    eventually(lambda: not Counter(daemon.descriptors()) - before, f"no more descriptors than {descriptors}")

    assert daemon.rss_mib() < rss_mib + 2


def _settled_descriptors(daemon: RunningDaemon) -> list[str]:
    """Return the daemon's descriptors once ten looks in a second have found the same ones."""
    looks: list[list[str]] = []

    def are_settled() -> bool:
        looks.append(daemon.descriptors())
        return len(looks) >= 10 and all(look == looks[-1] for look in looks[-10:])

    eventually(are_settled, "descriptors that stay", pause_seconds=0.1)
    return looks[-1]


def interpreter() -> tuple[object, ...]:
    """Return what a program may have set for itself and its children."""
    return (
        gc.isenabled(),
        sys.getswitchinterval(),
        [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)],
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    )


@pytest.mark.parametrize("obeys_signals", [False, True])
async def test_loop_runs_inside_another_program_and_leaves_its_interpreter_as_it_was(
    node: VirtualNode,
    tmp_path: Path,
    obeys_signals: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    ended: list[str] = []
    before = interpreter()
    hog = node.add_pod("hog")
    settings = settings_from_text(
        json.dumps(
            {
                **HARD,
                "reactor": {
                    "nodeCgroup": node.cgroup,
                    "metrics": "off",
                    "socket": str(tmp_path / "s.sock"),
                    "stateFile": str(tmp_path / "state.json"),
                    "journal": {"path": str(tmp_path / "journal.jsonl")},
                    "realtime": {"fifoPriority": 0, "lockMemory": False, "oomScoreAdj": None},
                },
            }
        ),
        "the test",
    )
    async with trio.open_nursery() as nursery:
        path = tmp_path / "reactor.json" if obeys_signals else None
        running = await nursery.start(partial(run, settings, config_path=path))
        running.recorder.on_ended = lambda _, attempt: ended.append(attempt.eviction.pod.name)
        assert any(source.health is SourceHealth.ARMED for source in running.reports.sources)
        victim = node.spawn(hog, hold(220))
        with trio.fail_after(90):
            while not ended:  # noqa: ASYNC110 - a plain list
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()

    assert ended == ["hog"]
    assert -signal.SIGKILL == victim.wait(60)
    assert before == interpreter()
    assert not (tmp_path / "s.sock").exists()
