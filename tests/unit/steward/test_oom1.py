"""org.freedesktop.oom1 on a real dbus-daemon, asked as oomctl asks, and listened to as notifiers do."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from jeepney import DBusAddress, MatchRule, Message, new_method_call
from jeepney.bus_messages import message_bus
from jeepney.io.trio import open_dbus_router
from jeepney.low_level import MessageType

from reactor.link.managed_oom import ManagedOomKind, ManagedOomReport, ManagedOomUnit, write_report
from reactor.model.settings import Settings, SystemdOomd
from reactor.rules.oomd_conf import OomAction, OomdDefaults, OomRuleset
from reactor.steward.oom1 import INTERFACE, NAME, OBJECT, Oom1, dump_lines, killed_in, timespan
from tests.support.logind import PrivateBus, private_bus
from tests.support.waiting import until

POLICY: Final = Path(__file__).parents[3] / "deploy/systemd-oomd/reactor-oom1.conf"
ADDRESS: Final = DBusAddress(OBJECT, NAME, INTERFACE)
SWAP, PRESSURE, RULES = ManagedOomKind
UNITS: Final = (
    ManagedOomUnit(kind=PRESSURE, cgroup="/no-such.slice/b.service", limit_percent=20.0, duration_seconds=90),
    ManagedOomUnit(kind=PRESSURE, cgroup="/no-such.slice/a.service"),
    ManagedOomUnit(kind=SWAP, cgroup="/"),
    ManagedOomUnit(kind=RULES, cgroup="/no-such.slice", rules=("stall", "full")),
)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    with private_bus(tmp_path) as made:
        yield made


@pytest.fixture
def units(tmp_path: Path) -> Path:
    path = tmp_path / "units"
    path.write_bytes(write_report(ManagedOomReport(units=UNITS)))
    return path


@asynccontextmanager
async def serving(bus: PrivateBus, units: Path) -> AsyncIterator[Oom1]:
    oom1 = Oom1(bus=bus.address, path=units, root=units.parent)
    oom1.order(Settings(systemd_oomd=SystemdOomd.REPLACE))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(oom1.run)
        yield oom1
        nursery.cancel_scope.cancel()


def put(path: Path, content: bytes | None) -> None:
    """Write a file as a whole, or remove it."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


async def owner(bus: PrivateBus) -> bool:
    async with open_dbus_router(bus.address) as router:
        (found,) = (await router.send_and_get_reply(message_bus.NameHasOwner(NAME))).body
    return bool(found)


async def owned(bus: PrivateBus, *, is_owned: bool = True) -> None:
    with trio.fail_after(30):
        while await owner(bus) != is_owned:
            pass  # asking is what it waits for


async def call(bus: PrivateBus, member: str = "DumpByFileDescriptor", **others: Any) -> Message:
    with trio.fail_after(30):
        async with open_dbus_router(bus.address, enable_fds=True) as router:
            return await router.send_and_get_reply(new_method_call(others.get("to", ADDRESS), member))


def text_of(reply: Message) -> str:
    (fd,) = reply.body
    with fd.to_file("rb") as file:
        with pytest.raises(OSError, match="not permitted"):
            os.write(file.fileno(), b"x")
        return str(file.read().decode())


async def test_a_dump_has_the_limits_and_all_units_in_the_order_of_their_paths(
    bus: PrivateBus, units: Path
) -> None:
    conf = units.parent / "etc/systemd/oomd.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[OOM]\nSwapUsedLimit=80%\nDefaultMemoryPressureDurationSec=2s\n")
    async with serving(bus, units):
        await owned(bus)
        text = text_of(await call(bus))
    lines = text.splitlines()
    assert lines[:4] == [
        "Dry Run: no",
        "Swap Used Limit: 80.00%",
        "Default Memory Pressure Limit: 60.00%",
        "Default Memory Pressure Duration: 2s",
    ]
    assert [line.strip() for line in lines if "Path: " in line] == [
        "Path: /",
        "Path: /no-such.slice/a.service",
        "Path: /no-such.slice/b.service",
        "Path: /no-such.slice",
    ]
    at = lines.index("\tPath: /no-such.slice/b.service")
    assert lines[at + 1 : at + 3] == [
        "\t\tMemory Pressure Limit: 20.00%",
        "\t\tMemory Pressure Duration: 1min 30s",
    ]
    assert "\t\tRules: stall full" in lines
    assert any(line.startswith("\tMemory: Used: ") for line in lines)


async def test_oomd_conf_is_what_it_was_at_the_last_reload(bus: PrivateBus, units: Path) -> None:
    async with serving(bus, units):
        await owned(bus)
        assert "Swap Used Limit: 90.00%" in text_of(await call(bus))
        conf = units.parent / "etc/systemd/oomd.conf"
        conf.parent.mkdir(parents=True)
        conf.write_text("[OOM]\nSwapUsedLimit=70%\n")
        assert "Swap Used Limit: 90.00%" in text_of(await call(bus))
        put(units, write_report(ManagedOomReport(units=UNITS, reloads=1)))
        assert "Swap Used Limit: 70.00%" in text_of(await call(bus))


async def test_a_file_of_units_that_is_missing_or_wrong_is_named_in_the_dump(
    bus: PrivateBus, units: Path
) -> None:
    async with serving(bus, units):
        await owned(bus)
        put(units, b"noise")
        assert "Problem: got 5 bytes" in text_of(await call(bus))
        put(units, None)
        assert "No such file" in text_of(await call(bus))


async def test_calls_that_are_not_served_are_refused_and_a_dump_comes_after_them(
    bus: PrivateBus, units: Path
) -> None:
    async with serving(bus, units):
        await owned(bus)
        reply = await call(bus, "Reload")
        assert MessageType.error is reply.header.message_type
        peer = DBusAddress(OBJECT, NAME, "org.freedesktop.DBus.Peer")
        assert MessageType.method_return is (await call(bus, "Ping", to=peer)).header.message_type
        inspect = DBusAddress(OBJECT, NAME, "org.freedesktop.DBus.Introspectable")
        (described,) = (await call(bus, "Introspect", to=inspect)).body
        assert "Killed" in described
        assert "Dry Run" in text_of(await call(bus))


async def test_a_flood_of_calls_makes_few_dumps_and_ends_nothing(
    bus: PrivateBus, units: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = []
    made = Oom1._dump

    def counted(self: Oom1) -> str:
        dumps.append(trio.lowlevel.in_trio_run())
        return made(self)

    monkeypatch.setattr(Oom1, "_dump", counted)
    async with serving(bus, units) as oom1:
        await owned(bus)
        async with open_dbus_router(bus.address) as router:
            for _ in range(500):
                await router.send(new_method_call(ADDRESS, "DumpByFileDescriptor"))
            answers: list[str] = []
            with trio.fail_after(30):
                while not answers:  # one that comes while as many wait as may is dropped
                    with trio.move_on_after(1):
                        answers.append(text_of(await call(bus)))
        assert oom1.problems == {}
    assert 1 <= len(dumps) < 100


async def test_each_kill_is_a_signal_of_the_name_s_owner(bus: PrivateBus, units: Path) -> None:
    of_owner = MatchRule(type="signal", sender=NAME, interface=INTERFACE, member="Killed", path=OBJECT)
    rule = MatchRule(type="signal", interface=INTERFACE, member="Killed", path=OBJECT)
    async with serving(bus, units) as oom1:
        await owned(bus)
        async with open_dbus_router(bus.address) as router:
            await router.send_and_get_reply(message_bus.AddMatch(of_owner))
            with trio.fail_after(30):
                async with router.filter(rule) as signals:
                    oom1.take(decision({"outcome": "killed", "cgroup": "/a", "signal": "memory.available"}))
                    assert ("/a", "memory.available") == (await signals.receive()).body


async def test_a_name_that_another_has_is_a_problem_and_taken_once_it_is_free(
    bus: PrivateBus, units: Path
) -> None:
    async with open_dbus_router(bus.address) as other:
        await other.send_and_get_reply(message_bus.RequestName(NAME))
        async with serving(bus, units) as oom1:
            await until(lambda: bool(oom1.problems), "a problem")
            assert "another process has this name" in oom1.problems["systemdOomd: bus"]
            await other.send_and_get_reply(message_bus.ReleaseName(NAME))
            await until(lambda: not oom1.problems, "the name")
            assert "Dry Run" in text_of(await call(bus))


async def test_the_name_is_given_up_with_the_setting(bus: PrivateBus, units: Path) -> None:
    async with serving(bus, units) as oom1:
        await owned(bus)
        oom1.order(Settings(systemd_oomd=SystemdOomd.IGNORE))
        await owned(bus, is_owned=False)
        oom1.order(Settings(systemd_oomd=SystemdOomd.REPLACE))
        await owned(bus)
        assert oom1.problems == {}


async def test_a_bus_that_goes_and_comes_again_has_the_name_again(bus: PrivateBus, units: Path) -> None:
    async with serving(bus, units) as oom1:
        await owned(bus)
        bus.stop()
        await until(lambda: bool(oom1.problems), "a problem")
        bus.start()
        await owned(bus)
        await until(lambda: not oom1.problems, "no problem")


def test_by_the_shipped_policy_root_alone_has_the_name_and_everybody_gets_a_dump() -> None:
    if os.geteuid() or shutil.which("dbus-daemon") is None or shutil.which("dbus-send") is None:
        pytest.skip("needs root and Debian's dbus: apt-get install dbus")
    with tempfile.TemporaryDirectory() as name:  # pytest's own are root's alone
        directory = Path(name)
        directory.chmod(0o755)
        _with_policy(directory)


def _with_policy(tmp_path: Path) -> None:
    config = tmp_path / "bus.conf"
    config.write_text(
        "<busconfig><type>system</type>"
        f"<listen>unix:path={tmp_path}/socket</listen><auth>EXTERNAL</auth>"
        '<policy context="default"><allow user="*"/><deny own="*"/><deny send_type="method_call"/>'
        '<allow send_type="signal"/><allow send_requested_reply="true" send_type="method_return"/>'
        '<allow send_requested_reply="true" send_type="error"/><allow receive_type="method_call"/>'
        '<allow receive_type="method_return"/><allow receive_type="error"/><allow receive_type="signal"/>'
        '<allow send_destination="org.freedesktop.DBus"/></policy>'
        f"<include>{POLICY}</include></busconfig>"
    )
    daemon = subprocess.Popen(["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"])
    address = f"unix:path={tmp_path}/socket"
    try:
        trio.run(_by_policy, tmp_path, address)
    finally:
        daemon.kill()
        daemon.wait()


async def _by_policy(tmp_path: Path, address: str) -> None:
    def as_nobody(member: str, *arguments: str, to: Sequence[str] = (NAME, OBJECT)) -> str:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "dbus-send"]
        options = [f"--bus={address}", "--print-reply", f"--dest={to[0]}", to[1], member, *arguments]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr

    units = tmp_path / "units"
    put(units, write_report(ManagedOomReport(units=UNITS)))
    oom1 = Oom1(bus=address, path=units, root=tmp_path)
    oom1.order(Settings(systemd_oomd=SystemdOomd.REPLACE))
    of_bus = ("org.freedesktop.DBus", "/org/freedesktop/DBus")
    async with trio.open_nursery() as nursery:
        await until((tmp_path / "socket").exists, "the bus")
        refused = await trio.to_thread.run_sync(
            lambda: as_nobody("org.freedesktop.DBus.RequestName", f"string:{NAME}", "uint32:4", to=of_bus)
        )
        assert "AccessDenied" in refused
        nursery.start_soon(oom1.run)
        with trio.fail_after(60):
            while "file descriptor" not in (
                answer := await trio.to_thread.run_sync(as_nobody, f"{INTERFACE}.DumpByFileDescriptor")
            ):
                assert "ServiceUnknown" in answer
        assert oom1.problems == {}
        denied = await trio.to_thread.run_sync(as_nobody, "org.freedesktop.DBus.Properties.Set")
        assert "AccessDenied" in denied
        nursery.cancel_scope.cancel()


def decision(*evictions: Any, **others: Any) -> dict[str, Any]:
    return {"kind": "decision", "rule": None, "dry_run": False, "evictions": list(evictions), **others}


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (None, "memory.available"),
        ({"name": "systemd-oomd:swap"}, "memory-used"),
        ({"name": "systemd-oomd:pressure-60%-30s"}, "memory-pressure"),
        ({"name": "systemd-oomd:user-pressure-60%-30s"}, "memory-pressure"),
        ({"name": "systemd-oomd:rule-stall"}, "rule stall"),
        ({"name": "systemd-oomd:user-rule-stall"}, "rule stall"),
        ({"name": "fills-its-limit"}, "rule fills-its-limit"),
    ],
)
def test_a_kill_has_systemd_oomds_reason_or_ours(rule: Any, reason: str) -> None:
    killed = {"outcome": "killed", "cgroup": "/a", "signal": "memory.available"}
    assert [("/a", reason)] == list(killed_in(decision(killed, rule=rule)))


def test_what_was_not_killed_is_no_signal() -> None:
    killed = {"outcome": "killed", "cgroup": "/a", "signal": "memory.available"}
    others = [{**killed, "outcome": one} for one in ("ordered", "terminated", "dry-run", "process-killed")]
    assert [] == list(killed_in(decision(*others)))
    assert [] == list(killed_in(decision(killed, dry_run=True)))
    assert [] == list(killed_in({"kind": "oom-kill", "cgroup": "/a", "outcome": "killed"}))
    assert [("/a", "memory.available")] == list(killed_in({"kind": "outcome", **killed}))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)


@given(_JSON, _JSON, _JSON)
def test_no_line_of_a_journal_brings_anything_but_texts_of_one_line(one: Any, rule: Any, cgroup: Any) -> None:
    for line in (
        decision(one, rule=rule),
        {"kind": "decision", "evictions": one},
        decision({"outcome": "killed", "cgroup": cgroup, "signal": one}, rule={"name": rule}),
    ):
        for path, reason in killed_in(line):
            assert path.isprintable()
            assert reason.isprintable()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (2, "2s"), (90, "1min 30s"), (3600, "1h"), (86400, "24h"), (1.5, "2s")]
)
def test_a_time_is_as_systemd_prints_it(seconds: float, text: str) -> None:
    assert text == timespan(seconds)


def test_a_dry_run_is_shown() -> None:
    rules = OomdDefaults(
        rulesets={"a": OomRuleset(action=OomAction.KILL_ALL, swap_percent=5, pressure_percent=None)}
    )
    lines = dump_lines(ManagedOomReport(), rules, machine=(), observe=lambda _: (), is_dry_run=True)
    assert "Dry Run: yes" == lines[0]
