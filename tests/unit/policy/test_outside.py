from hypothesis import given
from hypothesis import strategies as st

from reactor.model.pods import Pod, PodUsage
from reactor.model.thresholds import Observation
from reactor.policy.rank import memory_outside_pods

from .strategies import plausible, pod_usages, pods

MIB = 1 << 20
NODE = Observation(available=112 * MIB, capacity=512 * MIB)
ONE, OTHER = (Pod(name=name, namespace="test", uid=name) for name in ("one", "other"))


def using(**mib: int) -> dict[str, PodUsage]:
    return {uid: PodUsage(memory_working_set_bytes=amount * MIB) for uid, amount in mib.items()}


def test_what_no_pod_holds_is_outside():
    assert 100 * MIB == memory_outside_pods(NODE, [ONE, OTHER], using(one=200, other=100))


def test_without_pods_all_is_outside():
    assert 400 * MIB == memory_outside_pods(NODE, [], {})


def test_usage_of_what_is_no_pod_any_more_is_outside():
    assert 300 * MIB == memory_outside_pods(NODE, [OTHER], using(one=200, other=100))


def test_pods_that_grew_after_the_node_was_read_leave_nothing_outside():
    assert memory_outside_pods(NODE, [ONE], using(one=401)) == 0


def test_memory_outside_is_unknown_while_a_pods_memory_is_unobserved():
    assert memory_outside_pods(NODE, [ONE, OTHER], using(one=200)) is None
    assert memory_outside_pods(NODE, [ONE], {"one": PodUsage(process_count=3)}) is None


def test_evicted_pod_whose_cgroup_is_gone_holds_nothing():
    assert 200 * MIB == memory_outside_pods(NODE, [ONE, OTHER], using(one=200), gone=["other"])


def test_evicted_pod_that_is_still_there_counts_with_what_it_holds():
    assert 100 * MIB == memory_outside_pods(NODE, [ONE, OTHER], using(one=200, other=100), gone=["other"])


@given(plausible, pods(), st.dictionaries(st.sampled_from([f"uid-{n}" for n in range(5)]), pod_usages))
def test_never_more_than_the_working_set_and_less_with_each_pod(seen, listed, used):
    outside = memory_outside_pods(seen, listed, used)
    if outside is None:
        return
    assert 0 <= outside <= seen.capacity - seen.available
    if listed:
        without = memory_outside_pods(seen, listed[1:], used)
        assert without is not None
        assert outside <= without
