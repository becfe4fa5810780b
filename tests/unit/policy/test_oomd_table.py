"""oomd's own tests of whom its plugins kill, and on what they act, restated as data for rules.

Facts: src/oomd/plugins/CorePluginsTest.cpp and its fixtures. Amounts are oomd's, in MiB. Where a rule of
reactor's decides otherwise, `differs` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.decisions import Decision, Inputs, PolicyState, Snapshot
from reactor.model.pod_lists import Preference
from reactor.model.pods import PodUsage
from reactor.model.rules import MACHINE_SWAP, RankedBy
from reactor.model.settings import EvictionSettings
from reactor.policy.rules import decide_firing
from reactor.rules.observe import RuleObserver
from tests.support.builders import make_pod
from tests.support.processes import MIB
from tests.support.rules import firing_of

ONE_BIG = {"cgroup1": 60, "cgroup2": 20, "cgroup3": 20}
IN_SIBLING = "sibling-cgroup1"
SIBLINGS = ("/apps", "/sibling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a plugin kills. `of` are amounts by the cgroup's name; if it `differs` reactor evicts `ours`."""

    plugin: str
    by: RankedBy
    of: Mapping[str, int]
    kills: str | None
    cgroups: tuple[str, ...] = ("/apps",)
    preferences: Mapping[str, Preference] = field(default_factory=dict)
    holds: Mapping[str, int] = field(default_factory=dict)
    differs: str = ""
    ours: str | None = None


PREFER, AVOID = Preference.PREFER, Preference.AVOID
ROWS = {
    "the biggest": Row(
        plugin="memory size", by=RankedBy.MEMORY, of={**ONE_BIG, IN_SIBLING: 20}, kills="cgroup1"
    ),
    "a bigger one beside the named cgroups": Row(
        plugin="memory size", by=RankedBy.MEMORY, of={**ONE_BIG, IN_SIBLING: 100}, kills="cgroup1"
    ),
    "the biggest of several named cgroups": Row(
        plugin="memory size",
        by=RankedBy.MEMORY,
        of={**ONE_BIG, IN_SIBLING: 100},
        kills=IN_SIBLING,
        cgroups=SIBLINGS,
    ),
    "a preferred one before a bigger one": Row(
        plugin="memory size",
        by=RankedBy.MEMORY,
        of=ONE_BIG,
        kills="cgroup2",
        preferences={"cgroup2": PREFER},
    ),
    "an avoided one after smaller ones": Row(
        plugin="memory size",
        by=RankedBy.MEMORY,
        of={"cgroup1": 60, "cgroup2": 30, "cgroup3": 20},
        kills="cgroup2",
        preferences={"cgroup1": AVOID},
    ),
    "smaller ones that are avoided change nothing": Row(
        plugin="memory size",
        by=RankedBy.MEMORY,
        of={"cgroup1": 60, "cgroup2": 30, "cgroup3": 20},
        kills="cgroup1",
        preferences={"cgroup2": AVOID, "cgroup3": AVOID},
    ),
    "all preferred is none preferred": Row(
        plugin="memory size",
        by=RankedBy.MEMORY,
        of=ONE_BIG,
        kills="cgroup1",
        preferences=dict.fromkeys(ONE_BIG, PREFER),
    ),
    "the one that has grown": Row(
        plugin="memory growth",
        by=RankedBy.GROWTH,
        of={"cgroup1": 21 - 5, "cgroup2": 0, "cgroup3": 0},
        kills="cgroup1",
    ),
    "one beside them that has grown more": Row(
        plugin="memory growth",
        by=RankedBy.GROWTH,
        of={"cgroup1": 21 - 5, "cgroup2": 0, "cgroup3": 0, IN_SIBLING: 99 - 5},
        kills="cgroup1",
    ),
    "hardly any growth": Row(
        plugin="memory growth",
        by=RankedBy.GROWTH,
        of={"cgroup1": 21 - 20, "cgroup2": 0, "cgroup3": 0},
        holds={"cgroup1": 21, "cgroup2": 20, "cgroup3": 30},
        kills="cgroup3",
        ours="cgroup1",
        differs="below a growth of 25 % oomd goes by size after all; a rule goes by what it says",
    ),
    "the most in swap": Row(
        plugin="swap usage",
        by=RankedBy.SWAP,
        of={"cgroup1": 20, "cgroup2": 60, "cgroup3": 40},
        kills="cgroup2",
    ),
    "nobody in swap": Row(plugin="swap usage", by=RankedBy.SWAP, of=dict.fromkeys(ONE_BIG, 0), kills=None),
    "the most scanned": Row(
        plugin="pgscan", by=RankedBy.PGSCAN, of={"A": 1100 - 20, "B": 1000 - 30}, kills="A"
    ),
    "nothing was scanned": Row(plugin="pgscan", by=RankedBy.PGSCAN, of={"A": 0, "B": 0}, kills=None),
}


def decided(row: Row) -> Decision:
    used = {
        f"uid-{name}": PodUsage(
            memory_working_set_bytes=row.holds.get(name, amount if row.by is RankedBy.MEMORY else 1) * MIB,
            swap_bytes=amount * MIB if row.by is RankedBy.SWAP else 0,
        )
        for name, amount in row.of.items()
    }
    pods = tuple(
        replace(
            make_pod(name),
            cgroup=f"/{'sibling' if name == IN_SIBLING else 'apps'}/{name}",
            preference=row.preferences.get(name, Preference.NONE),
        )
        for name in row.of
    )
    firing = replace(
        firing_of(row.cgroups[0], by=row.by, below=row.cgroups),
        amounts={f"uid-{name}": amount for name, amount in row.of.items()},
    )
    inputs = Inputs(EvictionSettings(), PolicyState(), Snapshot(pods=used), pods, 12.0)
    return decide_firing(inputs, Decision(at_seconds=12.0), firing)[1]


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_evicts_what_oomds_plugin_kills_or_says_why_not(name: str) -> None:
    row = ROWS[name]
    expected = row.ours if row.differs else row.kills
    assert [expected] * (expected is not None) == [one.pod.name for one in decided(row).evictions]
    assert (row.ours != row.kills) == bool(row.differs) or row.ours is None


@pytest.mark.parametrize(
    ("total_kib", "used_kib", "detects"),
    [(20971512, 20971440, True), (20971512, 3310136, False), (0, 0, False)],
    ids=["low swap", "enough swap", "swap is off"],
)
def test_less_than_a_fifth_of_swap_is_free_where_oomd_says_so(
    tmp_path: Path, total_kib: int, used_kib: int, *, detects: bool
) -> None:
    (tmp_path / "meminfo").write_text(
        f"MemTotal: 1 kB\nSwapTotal: {total_kib} kB\nSwapFree: {total_kib - used_kib} kB\n"
    )
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path)
    observer = RuleObserver(tree, proc=tmp_path, pressure=tmp_path, clock_seconds=lambda: 0.0)
    value = observer.read("/apps", str(tmp_path), [MACHINE_SWAP])[MACHINE_SWAP]
    assert detects == (value is not None and value >= 80)
