from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.pod_lists import (
    BUILT_IN_NEVER,
    SPARED_BESIDE_CONTAINERS,
    PodEntry,
    PodLists,
    Preference,
    ProcessVictim,
    ProcessVictimEntry,
    VictimUnit,
)
from reactor.policy.list_entries import ExactNames, namespaced_victim
from reactor.policy.lists import Listed, Lists, Named, matches

WEB = Named("/system.slice/web.service", is_trusted=True, process="nginx")
NAMES = st.text(alphabet="ab*?[]-.@", min_size=1, max_size=6)
RULES = st.builds(
    PodEntry,
    unit=st.none() | NAMES,
    cgroup=st.none() | st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts)),
    process=st.none() | NAMES,
)
LISTS = st.builds(
    PodLists,
    never=st.lists(RULES, max_size=3).map(tuple),
    avoid=st.lists(RULES, max_size=3).map(tuple),
    prefer=st.lists(RULES, max_size=3).map(tuple),
    priorities=st.lists(st.tuples(RULES, st.integers(-5, 5)), max_size=3).map(tuple),
)
PODS = st.builds(
    Named,
    cgroup=st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts)),
    is_trusted=st.booleans(),
    process=st.none() | NAMES,
)


def never(*rules: PodEntry) -> Lists:
    return Lists(PodLists(never=rules))


@given(PODS)
def test_lists_that_are_not_set_say_nothing_of_a_pod_that_the_built_in_one_does_not_name(pod: Named) -> None:
    assert Listed() == Lists(PodLists()).of(pod)


@given(LISTS, PODS, NAMES)
def test_a_process_by_its_name_and_a_cgroup_that_its_owner_named_never_protect_a_pod(
    lists: PodLists, pod: Named, process: str
) -> None:
    """The prefer list alone counts, which harms nobody but the pod."""
    by_others = Lists(lists).of(pod._replace(is_trusted=False, process=process))

    assert by_others.never_because is None
    assert by_others.priority is None
    assert by_others.preference in {Preference.NONE, Preference.PREFER}


@given(LISTS, PODS)
def test_never_names_its_rule_and_the_first_priority_counts(lists: PodLists, pod: Named) -> None:
    listed = Lists(lists).of(pod)
    first = [priority for rule, priority in lists.priorities if never(rule).never_because(pod) is not None]
    assert (first[0] if first else None) == listed.priority
    protecting = [rule for rule in lists.never if never(rule).never_because(pod) is not None]
    assert bool(protecting) == (listed.never_because is not None)


@pytest.mark.parametrize(
    "unit",
    [
        "init.scope",
        "ssh.service",
        "sshd.service",
        "ssh@0-10.0.0.1:22-10.0.0.2:5000.service",
        "sshd-unix-local@3-4.service",
        "system-ssh.slice",
        "system-sshd\\x2dvsock.slice",
        "dbus-broker.service",
        "containerd.service",
        "kubelet.service",
    ],
)
def test_what_a_machine_cannot_do_without_is_never_evicted_where_root_named_it(unit: str) -> None:
    lists = Lists(PodLists())
    pod = Named(f"/system.slice/{unit}", is_trusted=True)

    assert f"{unit} is in the built-in never list" == lists.never_because(pod)
    assert lists.never_because(pod._replace(is_trusted=False)) is None


@pytest.mark.parametrize("unit", ["sshd.service.d", "xsshd.service", "sshd", "web.service", "my-init.scope"])
def test_what_is_called_nearly_so_is_not_in_the_built_in_list(unit: str) -> None:
    assert Lists(PodLists()).never_because(Named(f"/system.slice/{unit}", is_trusted=True)) is None


@pytest.mark.parametrize("removed", BUILT_IN_NEVER)
def test_each_of_the_built_in_list_can_be_taken_out_and_the_others_stay(removed: str) -> None:
    left = tuple(one for one in BUILT_IN_NEVER if one != removed)
    lists = Lists(PodLists(built_in_never=left))

    for one in BUILT_IN_NEVER:
        name = one.replace("*", "x")
        because = lists.never_because(Named(f"/system.slice/{name}", is_trusted=True))
        assert (one == removed) == (because is None)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (PodEntry(unit="web.service"), "pods.never: unit web.service"),
        (PodEntry(unit="w*.service"), "pods.never: unit w*.service"),
        (PodEntry(unit="[!x]eb.?ervice"), "pods.never: unit [!x]eb.?ervice"),
        (PodEntry(cgroup="/system.slice/web.service"), "pods.never: cgroup /system.slice/web.service"),
        (PodEntry(cgroup="/*/web*"), "pods.never: cgroup /*/web*"),
        (PodEntry(unit="web*", process="nginx"), "pods.never: unit web*, process nginx"),
        (PodEntry(unit="web*", cgroup="/s*/*", process="ngin?"), None),
        (PodEntry(cgroup="~/(system|x)\\.slice/.*"), "pods.never: cgroup ~/(system|x)\\.slice/.*"),
        (PodEntry(unit="~web.*", process="~ngin."), "pods.never: unit ~web.*, process ~ngin."),
    ],
)
def test_all_patterns_of_a_rule_match(rule: PodEntry, text: str | None) -> None:
    because = never(rule).never_because(WEB)
    assert because == (text or "pods.never: unit web*, cgroup /s*/*, process ngin?")


@pytest.mark.parametrize(
    "rule",
    [
        PodEntry(unit="web"),
        PodEntry(unit="WEB.service"),
        PodEntry(cgroup="/*"),
        PodEntry(cgroup="/system.slice/web.service/x"),
        PodEntry(cgroup="/user.slice/web.service"),
        PodEntry(unit="web*", process="apache2"),
        PodEntry(unit="db*", process="nginx"),
        PodEntry(cgroup="/*/db*", unit="web*"),
    ],
)
def test_one_pattern_that_does_not_match_is_enough(rule: PodEntry) -> None:
    assert Listed() == Lists(PodLists(never=(rule,), avoid=(rule,), prefer=(rule,))).of(WEB)


def test_a_process_that_is_not_known_yet_protects_and_is_not_preferred() -> None:
    rule = PodEntry(unit="web*", process="apache2")
    unknown = WEB._replace(process=None)

    assert never(rule).never_because(unknown) is not None
    assert Preference.NONE is Lists(PodLists(prefer=(rule,))).of(unknown).preference
    assert never(rule).never_because(WEB._replace(process="")) is None


def test_a_rule_that_trusts_counts_by_any_name_and_others_do_not() -> None:
    rule = PodEntry(unit="app-*.scope")
    firefox = Named("/user.slice/user@1000.service/app.slice/app-firefox.scope", is_trusted=False)
    trusting = PodEntry(unit="app-*.scope", is_trusting=True)

    assert never(rule).never_because(firefox) is None
    assert never(trusting).never_because(firefox) is not None
    assert Preference.AVOID is Lists(PodLists(avoid=(trusting,))).of(firefox).preference
    assert 7 == Lists(PodLists(priorities=((trusting, 7),))).of(firefox).priority


def test_avoid_counts_before_prefer_and_a_process_alone_may_prefer() -> None:
    rule = PodEntry(unit="web*")
    assert Preference.AVOID is Lists(PodLists(avoid=(rule,), prefer=(rule,))).of(WEB).preference
    assert Preference.PREFER is Lists(PodLists(prefer=(rule,))).of(WEB).preference
    by_process = Lists(PodLists(prefer=(PodEntry(process="nginx"),)))
    assert Preference.PREFER is by_process.of(WEB._replace(is_trusted=False)).preference


def test_a_glob_of_many_stars_takes_no_time_on_a_long_name() -> None:
    """Those of fnmatch never go back over what an earlier star has taken: else this would not end."""
    rule = PodEntry(unit="*a" * 30 + "b", is_trusting=True)
    assert never(rule).never_because(Named("/" + "a" * 255, is_trusted=False)) is None


def test_one_process_is_killed_by_the_first_rule_that_matches_a_name_that_root_chose() -> None:
    rules = [
        ProcessVictimEntry(pods=PodEntry(unit="other.service")),
        ProcessVictimEntry(pods=PodEntry(cgroup="/system.slice/*"), never=("a",)),
        ProcessVictimEntry(pods=PodEntry(unit="web.service")),
    ]
    lists = Lists(PodLists(process_victims=tuple(rules)))
    expected = ProcessVictim(entry="cgroup /system.slice/*", never=("a",))
    assert expected == lists.of(WEB).process_victim
    assert None is lists.of(WEB._replace(is_trusted=False)).process_victim
    assert None is lists.of(WEB._replace(cgroup="/jobs/a")).process_victim
    trusting = PodEntry(unit="web.service", is_trusting=True)
    lists = Lists(PodLists(process_victims=(ProcessVictimEntry(pods=trusting),)))
    assert "unit web.service" == lists.of(WEB._replace(is_trusted=False)).process_victim.entry


def test_rules_for_one_process_by_the_main_process_want_its_name() -> None:
    rule = ProcessVictimEntry(pods=PodEntry(unit="a", process="b"))
    assert PodLists(process_victims=(rule,)).wants_processes
    assert not PodLists(process_victims=(ProcessVictimEntry(pods=PodEntry(unit="a")),)).wants_processes


def test_whether_a_name_matches_can_be_asked_of_names_that_do_not_count() -> None:
    stranger = WEB._replace(is_trusted=False)
    assert matches(PodEntry(unit="web.service"), stranger)
    assert not matches(PodEntry(unit="db.service"), stranger)


SESSION = Named("/user.slice/database.service", is_trusted=False)


@pytest.mark.parametrize(
    ("rule", "unmatched"),
    [
        (PodEntry(unit="web.service"), []),
        (PodEntry(cgroup="/system.slice/web.service"), []),
        (PodEntry(unit="wbe.service"), [("wbe.service", None)]),
        (PodEntry(cgroup="/system.slice/web"), [("/system.slice/web", None)]),
        (PodEntry(unit="wbe*"), []),
        (PodEntry(unit="~wbe.*"), []),
        (PodEntry(process="wbe"), []),
        (PodEntry(unit="database.service"), [("database.service", "/user.slice/database.service")]),
        (PodEntry(unit="database.service", is_trusting=True), []),
    ],
)
def test_a_name_without_a_pattern_that_no_pod_has_is_found(rule: PodEntry, unmatched: list[object]) -> None:
    names = ExactNames(PodLists(never=(rule,)))
    found = [(name, other) for _, name, other in names.unmatched([WEB, SESSION])]
    assert unmatched == found
    assert bool(names) or not unmatched


def test_names_of_pods_to_prefer_count_whoever_gave_them_and_each_list_has_its_place() -> None:
    here, nowhere = PodEntry(unit="database.service"), PodEntry(unit="x")
    lists = PodLists(never=(nowhere,), avoid=(nowhere,), prefer=(here, nowhere))
    assert ["reactor.pods.never[0]", "reactor.pods.avoid[0]", "reactor.pods.prefer[1]"] == [
        path for path, _, _ in ExactNames(lists).unmatched([SESSION])
    ]


@pytest.mark.parametrize(
    ("lists", "problems"),
    [
        (
            PodLists(never=(PodEntry(unit="databse.service"),)),
            [
                (
                    "reactor.pods.never[0]",
                    "databse.service matches no pod now (did you mean database.service?)",
                )
            ],
        ),
        (
            PodLists(never=(PodEntry(unit="quite-another"),)),
            [("reactor.pods.never[0]", "quite-another matches no pod now")],
        ),
        (PodLists(avoid=(PodEntry(unit="quite-another"),)), []),
        (
            PodLists(avoid=(PodEntry(cgroup="/s/databas.service"),)),
            [
                (
                    "reactor.pods.avoid[0]",
                    "/s/databas.service matches no pod now (did you mean /s/database.service?)",
                )
            ],
        ),
        (
            PodLists(never=(PodEntry(unit="mine"),)),
            [("reactor.pods.never[0]", "mine: root did not choose the name of /u/mine: it protects no pod")],
        ),
    ],
)
def test_a_name_that_is_no_pods_is_a_problem_with_what_was_probably_meant(
    lists: PodLists, problems: list[tuple[str, str]]
) -> None:
    names = ExactNames.of(lists)
    assert names is not None
    pods = [Named("/s/database.service", is_trusted=True), Named("/u/mine", is_trusted=False)]
    assert problems == list(names.problems(pods))


def test_lists_of_patterns_have_no_such_names() -> None:
    assert ExactNames.of(PodLists(never=(PodEntry(unit="*.service"),))) is None


NAMESPACES = st.text(alphabet="ab*", min_size=1, max_size=4)
LABELS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from(["", "1", "2"]))
NAMESPACED = st.lists(
    st.builds(
        ProcessVictimEntry,
        pods=st.builds(PodEntry, namespace=NAMESPACES, labels=LABELS.map(lambda some: tuple(some.items()))),
        unit=st.sampled_from(VictimUnit),
    ),
    max_size=4,
).map(tuple)


@given(NAMESPACED, st.text(alphabet="abc", min_size=1, max_size=4), LABELS)
def test_no_label_has_an_entry_count_in_a_namespace_that_none_allows(
    entries: tuple[ProcessVictimEntry, ...], namespace: str, labels: dict[str, str]
) -> None:
    """Labels only narrow: what they choose is also chosen without any in the entries."""
    bare = tuple(
        ProcessVictimEntry(pods=PodEntry(namespace=one.pods.namespace), unit=one.unit) for one in entries
    )
    found = namespaced_victim(PodLists(process_victims=entries), namespace, labels)
    if namespaced_victim(PodLists(process_victims=bare), namespace, {}) is None:
        assert found is None
    if found is not None:
        assert any(f"namespace {one.pods.namespace}" in found.entry for one in entries)


@given(NAMESPACED, PODS)
def test_entries_by_namespace_match_no_unit_of_a_plain_node(
    entries: tuple[ProcessVictimEntry, ...], pod: Named
) -> None:
    assert Lists(PodLists(process_victims=entries)).of(pod).process_victim is None


def test_of_entries_by_namespace_the_first_that_matches_with_all_its_labels_counts() -> None:
    labelled = PodEntry(namespace="agents-*", labels=(("app", "a"), ("role", "")))
    lists = PodLists(
        process_victims=(
            ProcessVictimEntry(pods=labelled, unit=VictimUnit.TREE),
            ProcessVictimEntry(pods=PodEntry(namespace="agents-1"), never=("db",)),
        )
    )
    tree = namespaced_victim(lists, "agents-1", {"app": "a", "role": "", "more": "b"})
    assert tree == ProcessVictim(
        entry="namespace agents-*, label app=a, label role=",
        built_in_never=SPARED_BESIDE_CONTAINERS,
        unit=VictimUnit.TREE,
    )
    process = namespaced_victim(lists, "agents-1", {"app": "a"})
    assert process == ProcessVictim(
        entry="namespace agents-1", never=("db",), built_in_never=SPARED_BESIDE_CONTAINERS
    )
    assert namespaced_victim(lists, "agents-2", {"app": "a"}) is None
    assert namespaced_victim(lists, "kube-system", {"app": "a", "role": ""}) is None
