"""The sampler on a virtual node in files: what it reads, how often, and what a record is made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from reactor.blackbox import NEAR, Feed, KnownPod, PodChanges, read_pods
from reactor.blackbox.processes import Seen, SeenProcess
from reactor.blackbox.record import MOST_BYTES, added
from reactor.blackbox.sampler import Sampler, pause
from reactor.blackbox.series import MOST_CHANGES, Sample
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.link.frames import FrameKind, Message
from reactor.model.settings import EvictionSettings, Settings
from tests.support.builders import make_observation, make_pod, make_threshold
from tests.support.processes import MIB

NODE = "/node"
Step = Callable[..., Any]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Played:
    """A sampler over a node of 512 MiB in files; `play` sets usages in MiB and samples once a second."""

    def __init__(self, fake: Any, *, black_box: bool = True) -> None:
        self.fake, self.clock = fake, Clock()
        fake.add(NODE)
        fake.tree.set_memory_limit(NODE, 512 * MIB)
        self.settings = Settings(
            eviction=EvictionSettings(thresholds=(make_threshold(64 * MIB),)),
            node_cgroup=NODE,
            pod_parents=(NODE,),
            black_box=black_box,
        )
        self.sampler = Sampler(lambda: self.settings, tree=fake.tree, clock_seconds=self.clock)

    def know(self, *names: str, never: Sequence[str] = ()) -> None:
        for name in names:
            self.fake.add(f"{NODE}/{name}")
        pods = (KnownPod(f"uid-{one}", f"cgroup/{one}", f"{NODE}/{one}", one in never) for one in names)
        self.sampler.know(PodChanges(came=tuple(pods)))

    async def play(self, **usages: int) -> float:
        self.clock.now += 1
        for name, mib in usages.items():
            cgroup = f"{NODE}/{name}" if name != "node" else NODE
            self.fake.counters(cgroup, usage_bytes=mib * MIB, inactive_file_bytes=0)
        return await self.sampler.sample()

    def anonymous(self, name: str, mib: int) -> None:
        """Have memory.stat show that so much is anonymous; `play` has it show 1 byte."""
        key = "anon" if self.fake.tree.version is CgroupVersion.V2 else "total_rss"
        self.fake.file(f"{NODE}/{name}", "memory.stat", f"{key} {mib * MIB}\n")

    async def rest(self, node: int) -> None:
        """Go on for a second in which only the node's own memory changes."""
        self.clock.now += 1
        self.fake.counters(NODE, usage_bytes=node * MIB, inactive_file_bytes=0)
        await self.sampler.sample()

    def held(self, name: str) -> tuple[float, float]:
        """Return how much anonymous memory a record would show of a pod, in MiB, and of when."""
        held = self.sampler.held[f"uid-{name}"]
        return held.kinds.anonymous_bytes / MIB, held.at_seconds

    def box(self, *victims: str) -> dict[str, Any]:
        evictions = [{"uid": f"uid-{one}", "resource": "memory"} for one in victims]
        timing = {"woke_ns": int(self.clock.now * 1e9)}
        line = {"kind": "decision", "evictions": evictions, "timing": timing}
        found = added(self.sampler, line, now_seconds=self.clock.now)
        assert found is not None
        return found


async def test_record_says_who_grew_though_it_is_never_evicted(fake) -> None:
    played = Played(fake)
    played.know("database", "batch", never=["database"])
    await played.play(node=100, database=60, batch=40)
    for step in range(1, 30):
        await played.play(node=100 + 10 * step, database=60 + 10 * step)
    box = played.box("batch")
    assert box["text"] == "memory was taken by cgroup/database (+10Mi/s, 350Mi), which is never evicted"
    assert box["took_memory"]["grew_bytes"] == 290 * MIB
    assert [(64 * MIB, True)] == [(one["bytes"], one["is_hard"]) for one in box["node"]["thresholds"]]
    assert ["cgroup/batch", "cgroup/database"] == [one["pod"] for one in box["pods"]]
    assert box["node"]["available_bytes"][-1] == [0.0, (512 - 390) * MIB]


async def test_growth_of_what_belongs_to_no_pod_is_nobodys(fake) -> None:
    played = Played(fake)
    played.know("web")
    await played.play(node=100, web=60)
    await played.play(node=300)
    assert played.box("web")["text"] == "memory was taken outside of all pods (200Mi within a minute)"
    assert played.box("web")["took_memory"] is None


async def test_page_cache_that_is_free_to_go_is_nobodys_growth(fake) -> None:
    played = Played(fake)
    played.know("reader", "web")
    await played.play(node=100, reader=20, web=20)
    fake.counters(f"{NODE}/reader", usage_bytes=220 * MIB, inactive_file_bytes=200 * MIB)
    await played.play(node=150, web=70)
    assert played.box("web")["text"].startswith("memory was taken by cgroup/web ")


async def test_kinds_that_the_kernel_counted_late_are_read_again_though_the_pod_rests(fake) -> None:
    played = Played(fake)
    played.know("hog", "web")
    await played.play(node=100, hog=20, web=20)
    fake.counters(f"{NODE}/hog", usage_bytes=120 * MIB, inactive_file_bytes=0)
    played.anonymous("hog", 9)
    await played.rest(node=200)
    assert played.held("hog") == (9, 1002)
    played.anonymous("hog", 118)
    await played.rest(node=210)
    assert played.held("hog") == (118, 1003)
    await played.rest(node=220)  # what is missing of the usage is noise
    assert played.held("hog") == (118, 1003)


async def test_pods_that_have_changed_are_read_before_those_whose_kinds_are_too_little(fake) -> None:
    played = Played(fake)
    late = [f"late{number}" for number in range(MOST_CHANGES)]
    played.know(*late, "web")
    await played.play(node=400, web=2, **dict.fromkeys(late, 20))
    await played.play(node=410, web=4)
    assert "uid-web" in played.sampler.fine.last.pods  # type: ignore[union-attr]
    assert len(played.sampler.fine.last.pods) == MOST_CHANGES  # type: ignore[union-attr]


async def test_record_shows_what_a_victim_held_though_it_was_read_while_it_died(fake) -> None:
    played = Played(fake)
    played.know("hog", "web")
    played.fake.counters(f"{NODE}/hog", usage_bytes=120 * MIB, inactive_file_bytes=0)
    played.anonymous("hog", 118)
    await played.rest(node=200)
    for _ in range(100):  # it rests for longer than a record goes back
        await played.rest(node=200)
    played.fake.counters(f"{NODE}/hog", usage_bytes=190 * MIB, inactive_file_bytes=0)
    played.anonymous("hog", 9)  # by the time that this is read it is dead
    await played.rest(node=270)
    assert played.held("hog") == (118, 1001)
    for _ in range(80):  # what is left lives on
        await played.play(node=100, hog=9)
        played.anonymous("hog", 9)
    await played.play(node=120, hog=30)
    played.anonymous("hog", 28)
    await played.rest(node=200)
    assert played.held("hog") == (28, 1184)


async def test_kinds_of_a_victim_are_read_when_its_eviction_is_ordered(fake) -> None:
    played = Played(fake)
    played.know("hog")
    ordered = {"kind": "ordered", "ordered": [{"uid": "uid-hog"}, {"uid": "gone"}, {}]}
    played.sampler.want_ordered(ordered)  # before the node was read
    await played.play(node=100, hog=10)
    for mib, shown in ((120, 120), (70, 120), (121, 121)):
        played.anonymous("hog", mib)
        played.sampler.want_ordered(ordered)
        assert played.held("hog")[0] == shown
    played.anonymous("hog", 80)
    await played.rest(node=200)
    assert played.held("hog")[0] == 121


async def test_node_that_stands_still_costs_no_reading_of_pods(fake) -> None:
    played = Played(fake)
    played.know("web")
    assert await played.play(node=100, web=60) == 2
    (fake.directory(f"{NODE}/web") / "memory.stat").unlink()
    assert [await played.play() for _ in range(3)] == [2, 2, 2]
    assert {} == played.sampler.fine.last.pods  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("moved_mib", "left_mib", "is_near", "pauses_seconds"),
    [
        (0, 300, False, 2.0),
        (0, 1, False, 2.0),  # it may stay there for days
        (0, 1, True, 1.0),
        (1, 300, False, 1.0),  # of 512 MiB
        (1, 40, False, 1.0),  # 40 s until the threshold
        (5, 300, False, 1.0),
        (5, 20, False, 0.25),
        (-5, 300, False, 1.0),
        (1, 300, True, 0.25),
    ],
)
def test_pause_is_the_shorter_the_faster_memory_goes(
    moved_mib: int, left_mib: int, *, is_near: bool, pauses_seconds: float
) -> None:
    seen = make_observation(200 * MIB)
    last = Sample(at_seconds=9.0, available_bytes=(200 + moved_mib) * MIB, capacity_bytes=512 * MIB)
    assert pauses_seconds == pause(seen, last, left_mib * MIB, 10.0, is_near=is_near)


async def test_steward_that_has_just_been_started_says_so(fake) -> None:
    played = Played(fake)
    played.clock.now += 0.4
    assert played.box("web")["missing_because"] == (
        "the steward was started 0.4 s before it, and had observed nothing yet"
    )


async def test_pod_that_comes_close_to_its_own_limit_is_looked_at(fake) -> None:
    played = Played(fake)
    played.know("small", "large")
    fake.tree.set_memory_limit(f"{NODE}/small", 64 * MIB)
    fake.file(f"{NODE}/small", "cgroup.procs", "1\n")
    await played.play(node=100, small=10, large=10)
    assert await played.play(node=103, small=12, large=11) == 1
    assert not played.sampler._wanted
    assert await played.play(node=115, small=24, large=11) == 0.25
    assert ["uid-small"] == list(played.sampler._wanted)


HOSTILE = ["\x1b[31m", "<script>alert(1)</script>", "\U0001f600" * 60, "\udcff" * 200, "a" * 255, '"\\\n']


@pytest.mark.slow
async def test_record_of_250_pods_with_hostile_names_is_16_kib_at_most(fake) -> None:
    played = Played(fake)
    names = [f"{HOSTILE[number % len(HOSTILE)]}{number}" for number in range(250)]
    for number in range(250):
        fake.add(f"{NODE}/p{number}")
    pods = (KnownPod(names[one] * 3, names[one], f"{NODE}/p{one}") for one in range(250))
    played.sampler.know(PodChanges(came=tuple(pods)))
    for step in range(80):  # more than the minute and the fine samples hold
        usages = {f"p{number}": (step * (number + 7)) % 90 for number in range(step % 3, 250, 9)}
        await played.play(node=100 + step, **usages)
    seen = _many_processes()
    for name in names:
        played.sampler.seen[name * 3] = seen
    line = {
        "kind": "decision",
        "evictions": [{"uid": name * 3, "resource": "memory"} for name in names],
        "timing": {"woke_ns": int(played.clock.now * 1e9)},
    }
    found = added(played.sampler, line, now_seconds=played.clock.now)
    assert found is not None
    assert len(json.dumps(found).encode()) <= MOST_BYTES
    assert found["pods"]
    assert json.dumps(found, ensure_ascii=False).encode()


def _many_processes() -> Seen:
    one = SeenProcess(
        pid=4194303,
        name="\\u202e" * 5,
        command="\\U0001f600" * 40,
        age_seconds=1e6,
        anonymous_bytes=1 << 40,
        file_bytes=1 << 40,
        shared_bytes=1 << 40,
        swap_bytes=1 << 40,
    )
    return Seen(at_seconds=1200.0, processes=(one,) * 5, count=30000, is_partial=True)


async def test_of_disks_and_of_passes_that_evict_nobody_there_is_none(fake) -> None:
    sampler = Played(fake).sampler
    timing = {"woke_ns": 1}
    for line in (
        {"kind": "decision", "evictions": [], "timing": timing},
        {"kind": "decision", "evictions": [{"uid": "a", "resource": "disk"}], "timing": timing},
        {"kind": "source-lost"},
    ):
        assert added(sampler, line, now_seconds=1.0) is None


async def test_processes_are_looked_at_when_the_guard_says_that_a_crossing_is_near(fake) -> None:
    played = Played(fake)
    played.know("web")
    fake.file(f"{NODE}/web", "cgroup.procs", "1\n")
    await played.play(node=100, web=60)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(played.sampler.run)
            await trio.testing.wait_all_tasks_blocked(0.01)
            played.sampler.near([played.sampler.pods["uid-web"]])
            while "uid-web" not in played.sampler.seen:  # noqa: ASYNC110 - a thread finds it
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert [1] == [one.pid for one in played.sampler.seen["uid-web"].processes]


@pytest.mark.parametrize(("black_box", "reads"), [(True, 30), (False, 6)])
async def test_for_the_page_alone_a_node_at_rest_is_read_as_seldom_as_all_else(
    fake, autojump_clock, *, black_box: bool, reads: int
) -> None:
    played = Played(fake, black_box=black_box)
    await played.play(node=100)
    sampler = Sampler(lambda: played.settings, tree=fake.tree, clock_seconds=trio.current_time)
    with trio.move_on_after(60.5):
        await sampler.run()
    assert abs(len(list(sampler.fine)) - reads) <= 1


async def test_node_at_rest_is_read_when_other_tasks_wake_as_well(fake, autojump_clock) -> None:
    played = Played(fake, black_box=False)
    await played.play(node=100)
    sampler = Sampler(lambda: played.settings, tree=fake.tree, clock_seconds=trio.current_time)
    await trio.sleep(3.7)
    with trio.move_on_after(60):
        await sampler.run()
    began_seconds, *beats = [one.at_seconds for one in sampler.fine]
    assert (3.7, [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]) == (began_seconds, beats)


async def test_feed_sends_all_pods_to_each_steward_and_then_what_changes() -> None:
    feed = Feed()
    feed.pods([make_pod("a"), make_pod("b")])
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        await trio.lowlevel.checkpoint()

    for _ in range(2):  # one steward after the other
        sent.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.send_to, send)
            await trio.testing.wait_all_tasks_blocked()
            feed.pods([make_pod("b"), make_pod("c")])
            await trio.testing.wait_all_tasks_blocked()
            feed.pods([make_pod("a"), make_pod("b")])
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        changes = [read_pods(one.content) for one in sent]
        assert [["a", "b"], ["c"], ["a"]] == [[one.uid[4:] for one in some.came] for some in changes]
        assert [(), ("uid-a",), ("uid-c",)] == [some.gone for some in changes]


async def test_feed_says_twice_a_second_at_most_that_a_crossing_is_near() -> None:
    class Near:
        def __init__(self, now_seconds: float) -> None:
            self.prepared, self.now_seconds = (make_pod("a"),), now_seconds

    feed = Feed()
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.send_to, send)
        for number in range(20):
            feed.near(Near(number / 10))
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [(FrameKind.PODS, NEAR)] * 4 == [(one.kind, one.number) for one in sent]
    assert read_pods(sent[0].content).came[0].cgroup == "/node/a"
