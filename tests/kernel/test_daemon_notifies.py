"""Operators are notified of what a real daemon does."""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
from jeepney.bus_messages import MatchRule, message_bus
from jeepney.io.trio import open_dbus_router

from reactor.model.settings import EventKind
from reactor.tell.channels import INTERFACE, MESSAGE_IDS, WALL
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.journald import own_journald
from tests.support.json_lines import json_lines
from tests.support.logind import private_bus
from tests.support.processes import MIB, hold
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}}


def keeping(path: Path) -> list[str]:
    """Return a command that appends what it is given to a file, a document a line."""
    return ["/bin/sh", "-c", f"cat >> {path}"]


def test_an_eviction_runs_its_command_with_the_record_on_standard_input(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    daemon.configure(HARD, {"onEviction": keeping(told)})
    daemon.start()
    assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(60)
    eventually(lambda: json_lines(told), "the command has run")

    [event] = json_lines(told)
    [line] = daemon.evictions()
    assert ("eviction", "cgroup/hog", "killed") == (event["event"], event["pod"], event["outcome"])
    assert (line["id"], line["time"], line["threshold"]) == (
        event["decision"],
        event["time"],
        event["threshold"],
    )
    assert event["text"].startswith(
        f"{event['node']}: evicted cgroup/hog (killed) for memory.available<64Mi: "
    )


def test_a_command_that_hangs_keeps_no_kill_waiting_and_is_ended(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    daemon.configure(HARD, {"onEviction": ["/bin/sleep", "600"], "notifyTimeout": "200ms"})
    daemon.start()
    for name in ("one", "two", "three"):
        assert -signal.SIGKILL == node.spawn(node.add_pod(name), hold(220)).wait(60)
        eventually(lambda: not daemon.status()["in_flight"], "the memory is back")
    eventually(lambda: channel(daemon, "command")["failed"] == 3, "each was ended")
    assert (
        "/bin/sleep: not done within 0.2 s: killed" in daemon.status()["problems"]["notifications by command"]
    )
    assert ["one", "two", "three"] == daemon.evicted()


def test_an_eviction_is_posted_to_the_webhook(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with web_server() as (port, requests):
        daemon.configure(HARD, {"webhook": {"url": f"http://127.0.0.1:{port}/x", "tokenFile": str(token)}})
        daemon.start()
        assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(60)
        eventually(lambda: requests, "a request")

    [(authorization, event)] = requests
    assert ("Bearer secret", "cgroup/hog", "killed") == (authorization, event["pod"], event["outcome"])
    eventually(lambda: channel(daemon, "webhook")["sent"] == 1, "it is counted")


def test_an_eviction_is_an_entry_of_the_systems_journal_which_explains_it(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    evicted = f"MESSAGE_ID={MESSAGE_IDS[EventKind.EVICTION]}"
    with own_journald(tmp_path / "journald") as journal:
        daemon.inside = journal.inside
        daemon.configure(HARD)
        daemon.start()
        assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(60)
        eventually(lambda: channel(daemon, "journald")["sent"] == 1, "it is sent")
        eventually(lambda: journal.read(evicted), "it is in the journal")
        entry = json.loads(journal.read("--output=json", evicted))
        explained = journal.read("-x", evicted)
        daemon.stop()

    assert ("cgroup/hog", "killed", "memory.available", "memory.available<64Mi", "reactor", "4") == tuple(
        entry[name]
        for name in (
            *("REACTOR_POD", "REACTOR_OUTCOME", "REACTOR_SIGNAL", "REACTOR_THRESHOLD"),
            *("SYSLOG_IDENTIFIER", "PRIORITY"),
        )
    )
    assert "Subject: Pod cgroup/hog was evicted, or could not be (killed)" in explained
    assert "`reactor explain` shows why this pod and no other" in explained


def test_an_eviction_is_written_to_the_terminals_of_those_who_are_logged_in(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    with terminal_of_a_user(tmp_path) as (terminal, inside):
        daemon.inside = inside
        daemon.configure(HARD, {"wall": True})
        daemon.start()
        assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(60)
        eventually(lambda: channel(daemon, "wall")["sent"] == 1, "it is sent")
        written = os.read(terminal, 65536).decode()
        daemon.stop()

    assert "Broadcast message" in written
    assert "evicted cgroup/hog (killed) for memory.available<64Mi" in " ".join(written.split())


async def test_an_eviction_is_shown_on_desktops_that_listen_on_the_system_bus(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "type='signal',interface='net.nuetzlich.SystemNotifications',member='Notify'"
    with private_bus(tmp_path) as bus:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
        async with open_dbus_router(bus.address) as router:
            await router.send_and_get_reply(message_bus.AddMatch(rule))
            with router.filter(MatchRule(interface=INTERFACE)) as received:
                daemon.configure(HARD, {"desktop": True})
                daemon.start()
                assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(60)
                with trio.fail_after(60):
                    notice = await received.receive()
        eventually(lambda: channel(daemon, "desktop")["sent"] == 1, "it is sent")
        daemon.stop()

    summary, body = notice.body
    assert "reactor" == summary
    assert "evicted cgroup/hog (killed) for memory.available\u203964Mi" in body


def test_a_source_that_is_lost_runs_its_command_once_though_it_is_tried_again_and_again(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    # Outside the first network namespace the kernel gives no process events.
    daemon.inside = ["unshare", "--net"]
    section = {"onSourceLost": keeping(told), "housekeepingInterval": "200ms"}
    daemon.configure({"evictionHard": {"memory.available": "64Mi", "pid.available": "5%"}}, section)
    daemon.start()
    eventually(lambda: json_lines(told), "the command has run")
    daemon.signal(signal.SIGHUP)
    after_passes(daemon, 10)

    names = {one["name"] for one in daemon.status()["sources"] if one["health"] in {"degraded", "failed"}}
    assert names == {event["source"] for event in json_lines(told)}
    assert len(names) == len(json_lines(told)) == channel(daemon, "command")["sent"]
    [line] = [line for line in daemon.lines() if line["kind"] == "source-lost"]
    assert (line["source"], line["health"], line["detail"]) == tuple(
        json_lines(told)[0][key] for key in ("source", "health", "detail")
    )
    assert f"source {line['source']} (" in json_lines(told)[0]["text"]


def test_a_dry_run_notifies_of_what_it_would_evict_and_of_an_oom_kill(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    told, kills = tmp_path / "told", tmp_path / "kills"
    section = {"dryRun": True, "housekeepingInterval": "200ms", "sources": {"ebpf": False}}
    daemon.configure(HARD, {**section, "onEviction": keeping(told), "onOOMKill": keeping(kills)})
    daemon.start()
    pod = node.add_pod("small", limit_bytes=32 * MIB)
    assert -signal.SIGKILL == node.spawn(pod, hold(100)).wait(60)
    eventually(lambda: json_lines(kills), "the command for OOM kills has run")
    hog = node.spawn(node.add_pod("hog"), hold(210))
    eventually(daemon.evictions, "an eviction that is not carried out")
    after_passes(daemon, 2)

    assert ("oom-kill", "own-limit") == (json_lines(kills)[0]["event"], json_lines(kills)[0]["scope"])
    eventually(lambda: json_lines(told), "the command for evictions has run")
    [event] = json_lines(told)
    assert ("eviction", True, "dry-run", "cgroup/hog") == tuple(
        event[key] for key in ("event", "dry_run", "outcome", "pod")
    )
    assert "dry run: would have evicted cgroup/hog for memory.available<" in event["text"]
    assert hog.poll() is None


@contextmanager
def terminal_of_a_user(directory: Path) -> Iterator[tuple[int, list[str]]]:
    """Log a user in on a terminal, as far as those can tell who are run by what the list begins with."""
    if not Path(WALL).exists():
        pytest.skip(f"needs {WALL}: install bsdutils")
    ours, theirs = os.openpty()
    line = os.ttyname(theirs).removeprefix("/dev/").encode()
    # struct utmp of glibc: type, pid, line, id, user, host, exit, session, time, address.
    user_process = 7
    record = struct.pack(
        "hi32s4s32s256shhiii4i20x",
        user_process,
        os.getpid(),
        line,
        b"x",
        b"root",
        b"",
        0,
        0,
        0,
        0,
        0,
        *[0] * 4,
    )
    run = directory / "run"
    run.mkdir()
    (run / "utmp").write_bytes(record)
    script = f'mount --make-rprivate / && mount --bind {run} /run && exec "$@"'
    try:
        yield ours, ["unshare", "--mount", "sh", "-c", script, "sh"]
    finally:
        os.close(ours)
        os.close(theirs)


@contextmanager
def web_server() -> Iterator[tuple[int, list[tuple[str | None, dict[str, Any]]]]]:
    """Serve inside the block; give the port and the requests, each as its authorization and its document."""
    requests: list[tuple[str | None, dict[str, Any]]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.headers["Authorization"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, requests
        finally:
            server.shutdown()
            thread.join()


def channel(daemon: RunningDaemon, name: str) -> dict[str, Any]:
    return next(one for one in daemon.status()["notifications"] if one["channel"] == name)
