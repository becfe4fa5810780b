from __future__ import annotations

import dataclasses
import json
import re
import stat
from fractions import Fraction
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.guard.state import StateFile, essence
from reactor.kernel.small_file import replace
from reactor.model.decisions import Claim, ClaimKind, Hold, Ineligible, PolicyState
from reactor.model.kills import HardMemoryKill, JudgedEviction, ProcessKill, Slowdown, SlowReason
from reactor.model.pods import Container, Pod, QosClass, StorageKind, StoragePlace, Volume
from reactor.model.quantity import parse_quantity
from reactor.model.signals import NodeCondition, Reclaim, Resource, Signal
from reactor.model.thresholds import Threshold, ThresholdValue
from tests.support.builders import make_claim, make_threshold
from tests.unit.policy.strategies import built

instants = st.floats(min_value=0, max_value=1e9, allow_nan=False)
values = st.one_of(
    st.builds(
        lambda amount: ThresholdValue(text=str(amount), amount=amount),
        st.fractions(min_value=0, max_value=2**63),
    ),
    st.builds(
        lambda percent: ThresholdValue(text=f"{percent}%", percent=percent),
        st.fractions(min_value=0, max_value=100),
    ),
)
thresholds = st.builds(
    Threshold,
    signal=st.sampled_from(Signal),
    value=values,
    grace_period_seconds=instants,
    minimum_reclaim=st.none() | values,
)
quantities = st.none() | st.sampled_from(["100Mi", "1.5Gi", "5m"]).map(parse_quantity)
pods = st.builds(
    Pod,
    name=st.text(max_size=5),
    namespace=st.text(max_size=5),
    uid=st.text(max_size=5),
    qos_class=st.sampled_from(QosClass),
    requests=st.dictionaries(st.sampled_from(Resource), st.integers(0, 2**40)),
    ephemeral_storage_limit=quantities,
    containers=st.lists(st.builds(Container, name=st.just("a"), ephemeral_storage_limit=quantities)).map(
        tuple
    ),
    volumes=st.lists(st.builds(Volume, name=st.just("v"), size_limit=quantities), max_size=2).map(tuple),
    cgroup=st.none() | st.just("/pods/a"),
    storage=st.lists(
        st.builds(
            StoragePlace,
            kind=st.sampled_from(StorageKind),
            name=st.just("v"),
            path=st.text(max_size=5),
            ends_with_pod=st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
)
amounts = st.none() | st.integers(0, 2**50)
states = built(
    PolicyState,
    hard_memory_kills=st.lists(
        built(
            HardMemoryKill,
            uid=st.text(max_size=5),
            signal=st.sampled_from(Signal),
            at_seconds=instants,
            credited_bytes=amounts,
            outside_bytes=amounts,
            pods_bytes=amounts,
            left_bytes=st.integers(0, 2**50),
            is_unhelpful=st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
    slowdowns=st.lists(
        st.builds(
            Slowdown,
            signal=st.sampled_from(Signal),
            reason=st.sampled_from(SlowReason),
            since_seconds=instants,
            until_seconds=instants,
            message=st.text(max_size=5),
        ),
        max_size=2,
    ).map(tuple),
    conditions=st.lists(st.sampled_from(NodeCondition), unique=True).map(tuple),
    condition_last_observed=st.dictionaries(st.sampled_from(NodeCondition), instants),
    condition_since=st.dictionaries(st.sampled_from(NodeCondition), instants),
    first_observed=st.dictionaries(thresholds, instants, max_size=4),
    thresholds_met=st.lists(thresholds, max_size=3).map(tuple),
    observed_at=st.dictionaries(st.sampled_from(Signal), st.none() | instants),
    claims=st.lists(
        st.builds(
            Claim,
            kind=st.sampled_from(ClaimKind),
            amount=amounts,
            uid=st.text(max_size=20),
            resource=st.sampled_from(Resource),
            kill_at_seconds=instants,
            deadline_seconds=instants,
            pod=st.none() | pods,
        ),
        max_size=3,
    ).map(tuple),
    evicted_at=st.lists(instants, max_size=4).map(tuple),
    holds=st.tuples()
    | st.tuples(
        st.builds(
            Hold,
            kind=st.sampled_from(Reclaim),
            reason=st.text(max_size=5),
            threshold=st.none() | thresholds,
            began_seconds=instants,
            until_seconds=instants,
            wanted_bytes=st.integers(0, 2**50),
            is_over=st.booleans(),
        )
    ),
)


class Boot:
    """A boot of its own: its id is as the test sets it."""

    def __init__(self, directory: Path) -> None:
        self.id = directory / "boot_id"
        self.id.write_text("one\n")
        self.path = directory / "run" / "state.json"

    def save(self, state: PolicyState) -> None:
        file = self.file()
        replace(file.path, file.document(state))

    def file(self) -> StateFile:
        return StateFile(
            self.path,
            boot_id=self.id,
        )


@pytest.fixture
def boot(tmp_path):
    return Boot(tmp_path)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states)
def test_state_survives_the_round_trip(boot, state):
    boot.save(state)

    assert boot.file().load() == state


AT: Final = 2e6
FULL = PolicyState(
    conditions=(NodeCondition.MEMORY_PRESSURE,),
    condition_last_observed={NodeCondition.MEMORY_PRESSURE: AT},
    condition_since={NodeCondition.MEMORY_PRESSURE: AT},
    first_observed={make_threshold(1): AT},
    thresholds_met=(make_threshold(1),),
    observed_at={Signal.MEMORY_AVAILABLE: AT},
    claims=(make_claim(kill_at_seconds=AT, deadline_seconds=AT),),
    evicted_at=(AT,),
    holds=(
        Hold(
            kind=Reclaim.MEMORY,
            reason="why",
            threshold=make_threshold(1),
            began_seconds=AT,
            until_seconds=AT,
            outside_bytes=1,
            void_below_bytes=1,
        ),
    ),
    hard_memory_kills=(HardMemoryKill(uid="a", signal=Signal.MEMORY_AVAILABLE, at_seconds=AT),),
    slowdowns=(
        Slowdown(
            signal=Signal.MEMORY_AVAILABLE,
            reason=SlowReason.UNHELPFUL,
            since_seconds=AT,
            until_seconds=AT,
            message="",
        ),
    ),
    process_kills=(ProcessKill(uid="a", at_seconds=AT, held_bytes=1),),
    judged_evictions=(
        JudgedEviction(
            uid="a",
            pod_key="n/a",
            signal=Signal.NODEFS_AVAILABLE,
            at_seconds=AT,
            credited=None,
            available=1,
            missing=1,
            others=1,
        ),
    ),
    oom_struck_at_seconds=AT,
    endings={"n/a": (3.5, 1.0)},
)
# What a restart begins anew: who can't be killed or has no process is found out, and what is of a moment.
ANEW: Final = {"calm", "ineligible", "waits"}


def test_everything_else_survives_with_its_instants(boot):
    defaults = PolicyState()
    assert ANEW == {name for name in PolicyState._fields if getattr(FULL, name) == getattr(defaults, name)}
    boot.save(FULL)

    assert boot.file().load() == FULL


def test_what_begins_anew_is_not_saved(boot):
    sparing = Ineligible(emptied=frozenset({"a"}), failed={"b": (AT, "Operation not permitted")})
    boot.save(FULL._replace(ineligible=sparing))

    assert boot.file().load() == FULL


@pytest.mark.parametrize(
    "changed",
    [
        {"hard_memory_kills": (FULL.hard_memory_kills[0]._replace(is_unhelpful=True),)},
        {"hard_memory_kills": ()},
        {"slowdowns": ()},
        {"holds": ()},
    ],
    ids=["a kill did not help", "no kill", "no slowdown", "no reclaim"],
)
def test_what_a_restart_must_not_lose_is_saved_where_it_changes(changed):
    assert essence(FULL) != essence(FULL._replace(**changed))


def test_what_each_pass_observes_again_is_not_saved_for_its_own_sake():
    (slowdown,), (kill,) = FULL.slowdowns, FULL.hard_memory_kills
    again = FULL._replace(
        observed_at={Signal.MEMORY_AVAILABLE: AT + 1},
        slowdowns=(dataclasses.replace(slowdown, message="560Mi", held_by="a/b", held_by_bytes=5),),
        hard_memory_kills=(kill._replace(left_bytes=7),),
        oom_struck_at_seconds=AT + 1,
    )
    assert essence(FULL) == essence(again)


def test_state_of_another_boot_is_not_taken(boot):
    boot.save(PolicyState(conditions=(NodeCondition.DISK_PRESSURE,)))
    boot.id.write_text("two\n")

    assert boot.file().load() is None


def test_state_of_a_clock_that_is_ahead_is_refused_or_no_pod_would_be_evicted_for_as_long(boot):
    boot.save(FULL)
    document = json.loads(boot.path.read_text())
    document["saved_seconds"] += 864_000
    boot.path.write_text(json.dumps(document))

    file = boot.file()
    assert file.load() is None
    assert re.search(
        r"state\.json: started without it: ValueError: an instant 86\d+ s from now", file.problem
    )


def test_without_a_file_there_is_no_state(boot):
    assert boot.file().load() is None


def test_file_is_private_and_nothing_lies_beside_it(boot):
    boot.save(PolicyState())

    assert stat.S_IMODE(boot.path.stat().st_mode) == 0o600
    assert list(boot.path.parent.iterdir()) == [boot.path]


def test_failed_write_keeps_the_old_state(boot):
    old = PolicyState(conditions=(NodeCondition.PID_PRESSURE,))
    boot.save(old)
    (boot.path.parent / ".state.json.new").mkdir()

    with pytest.raises(OSError, match=r"\.state\.json\.new"):
        boot.save(PolicyState())
    assert boot.file().load() == old


def is_refused(boot: Boot) -> bool:
    file = boot.file()
    return file.load() is None and "state.json: started without it" in (file.problem or "")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b'{"version": 2}',
        b'{"version": 1}',
        b'{"version": 1, "boot_id": "one", "saved_seconds": 0.0, "state": {"evicted_at": [NaN]}}',
        b'{"version": 1, "boot_id": "one", "saved_seconds": 0.0, "state": 7}',
        b'{"version": 1, "boot_id": "one", "state": {}}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_corrupt_file_is_an_error_that_names_it(boot, content):
    boot.path.parent.mkdir()
    boot.path.touch(0o600)
    boot.path.write_bytes(content)

    assert is_refused(boot)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(boot, content):
    boot.path.parent.mkdir(exist_ok=True)
    boot.path.touch(0o600)
    boot.path.write_bytes(content)

    assert is_refused(boot)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(PolicyState._fields)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=st.dictionaries(fields, json_values))
def test_state_of_the_wrong_shape_never_raises_anything_else(boot, state):
    boot.path.parent.mkdir(exist_ok=True)
    document = {"version": 1, "boot_id": "one", "saved_seconds": 0.0, "state": state}
    boot.path.write_text(json.dumps(document))
    file = boot.file()
    assert (type(file.load()), file.problem is None) in {(PolicyState, True), (type(None), False)}


def test_percentages_keep_their_exact_value(boot):
    value = ThresholdValue(text="33.3%", percent=Fraction(333, 10))
    state = PolicyState(thresholds_met=(Threshold(signal=Signal.MEMORY_AVAILABLE, value=value),))
    boot.save(state)

    assert boot.file().load().thresholds_met[0].value == value
