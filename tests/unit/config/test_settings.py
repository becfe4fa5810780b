from __future__ import annotations

import json
from pathlib import Path

import pytest

from reactor.config.settings import kubepods_cgroups, load_settings, settings_from_text
from reactor.errors import ConfigError
from reactor.model.pod_lists import BUILT_IN_NEVER, PodEntry, PodLists, ProcessVictimEntry, VictimUnit
from reactor.model.settings import (
    EbpfLoader,
    EventKind,
    HookSettings,
    KernelKill,
    KubernetesSettings,
    MemoryAvailable,
    OomOrderMode,
    PodOrigin,
    Role,
    Settings,
    TaintedBy,
    WebhookSettings,
)
from reactor.model.signals import Filesystem, Layout


def _read(text: str) -> Settings:
    return settings_from_text(text, "reactor.yaml")


def _paths(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _read(text)
    return [problem.path for problem in caught.value.problems]


def test_a_kubelets_own_file_is_enough() -> None:
    settings = _read("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 5\n")
    assert 10 == settings.eviction.evictions_per_minute
    assert 10.0 == settings.housekeeping_interval_seconds
    assert ("127.0.0.1", 9753) == settings.metrics_address
    assert (None, ()) == (settings.node_cgroup, settings.pod_parents)


def test_the_section_is_read() -> None:
    settings = _read(
        """
        evictionHard: {memory.available: 64Mi}
        reactor:
          nodeCgroup: /demo/./node/
          pods: {parents: [/demo/node/a, /demo/node], manifests: /etc/pods}
          housekeepingInterval: 100ms
          evictionsPerMinute: 3
          hardMemoryEvictionsPerMinute: 30
          unhelpfulEvictionPause: 20s
          minimumVictimBytes: 10%
          metrics: "[::1]:9000"
          journal: {path: /tmp/j, maxSize: 1Mi, files: 4}
          realtime: {fifoPriority: 0, lockMemory: false, oomScoreAdj: -5}
          sources: {psi: false}
          ebpf: {loader: bcc}
          filesystems: {imagefs: /var/lib/images}
          reclaim: {nodefs: [/bin/true, -x], imagefs: [[/bin/a], [/bin/b, c]]}
          reclaimTimeout: 5s
          onEviction: [/bin/a]
          onOOMKill: [[/bin/a], [/bin/b, c]]
          notifyTimeout: 3s
          webhook: {url: "https://[::1]:8443/a?b=c", tokenFile: /etc/t, caFile: /etc/ca}
          dryRun: true
        """
    )
    assert ("/demo/node", ("/demo/node/a", "/demo/node")) == (settings.node_cgroup, settings.pod_parents)
    assert (0.1, 3, ("::1", 9000)) == (
        settings.housekeeping_interval_seconds,
        settings.eviction.evictions_per_minute,
        settings.metrics_address,
    )
    assert (30, 20.0, "10%") == (
        settings.eviction.hard_memory_evictions_per_minute,
        settings.eviction.unhelpful_eviction_pause_seconds,
        settings.eviction.minimum_victim and settings.eviction.minimum_victim.text,
    )
    assert (1 << 20, 4) == (settings.journal.max_bytes, settings.journal.files)
    assert (0, False, -5) == (
        settings.realtime.fifo_priority,
        settings.realtime.lock_memory,
        settings.realtime.oom_score_adj,
    )
    assert (False, True, True) == (settings.sources.psi, settings.sources.memcg, settings.dry_run)
    assert EbpfLoader.BCC is settings.sources.ebpf_loader
    assert {Filesystem.IMAGEFS: "/var/lib/images"} == settings.filesystems
    assert {
        Filesystem.NODEFS: (("/bin/true", "-x"),),
        Filesystem.IMAGEFS: (("/bin/a",), ("/bin/b", "c")),
    } == settings.reclaim.commands
    assert (5, 60) == (settings.reclaim.timeout_seconds, settings.reclaim.pause_seconds)
    assert {Filesystem.NODEFS, Filesystem.IMAGEFS} == settings.eviction.commands_for
    assert (
        {EventKind.EVICTION: (("/bin/a",),), EventKind.OOM_KILL: (("/bin/a",), ("/bin/b", "c"))},
        3.0,
    ) == (settings.notifications.commands, settings.notifications.timeout_seconds)
    assert settings.notifications.webhook == WebhookSettings(
        url="https://[::1]:8443/a?b=c",
        token_path="/etc/t",  # noqa: S106 - where it is
        ca_path="/etc/ca",
    )


def test_the_kernel_kills_nothing_unless_it_is_asked_to() -> None:
    assert KernelKill.OFF is _read("{}").kernel_kill
    assert KernelKill.OFF is _read("reactor: {kernelKill: off}").kernel_kill
    assert KernelKill.HARD is _read("reactor: {kernelKill: hard}").kernel_kill
    assert ["reactor.kernelKill"] == _paths("reactor: {kernelKill: soft}")


def test_pods_memory_is_not_reclaimed_before_a_soft_eviction_unless_that_is_asked_for() -> None:
    soft = "evictionSoft: {memory.available: 1Gi}, evictionSoftGracePeriod: {memory.available: 30s}"
    assert 0 == _read("{}").eviction.soft_reclaim_seconds
    asked = _read(f"{{reactor: {{reclaimBeforeSoft: 5s}}, {soft}}}")
    assert {5.0} == {one.soft_reclaim_seconds for one in (asked.eviction, *asked.by_layout.values())}
    assert not any("reclaimBeforeSoft" in warning for warning in asked.warnings)
    for nothing_soft in (
        "{reactor: {reclaimBeforeSoft: 5s}}",
        f"{{{soft.replace('memory', 'nodefs')}, reactor: {{reclaimBeforeSoft: 5s}}}}",
    ):
        (warning,) = [one for one in _read(nothing_soft).warnings if "reclaimBeforeSoft" in one]
        assert "has no effect: there is no soft memory threshold" in warning


IN_TIME = {
    "evictionSoft": "{memory.available: 1Gi}",
    "evictionSoftGracePeriod": "{memory.available: 30s}",
    "evictionMaxPodGracePeriod": "20",
    "reactor": "{softEviction: inTime}",
}


def test_soft_evictions_are_upstreams_unless_they_are_to_be_in_time() -> None:
    assert not _read("{}").eviction.soft_in_time
    assert not _read("reactor: {softEviction: upstream}").eviction.soft_in_time
    asked = _read("\n".join(f"{key}: {value}" for key, value in IN_TIME.items()))
    assert all(one.soft_in_time for one in (asked.eviction, *asked.by_layout.values()))
    assert not any("softEviction" in warning for warning in asked.warnings)
    assert ["reactor.softEviction"] == _paths("reactor: {softEviction: sooner}")


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        (
            {"evictionSoft": "{nodefs.available: 1Gi}"},
            "a soft one with a grace period above 0",
        ),
        ({"evictionHard": "{pid.available: 5%}"}, "a soft one with a grace period above 0"),
        ({"evictionSoftGracePeriod": "{memory.available: 0s}"}, "a soft one with a grace period above 0"),
        ({"evictionMaxPodGracePeriod": "0"}, "evictionMaxPodGracePeriod is 0"),
    ],
)
def test_soft_evictions_in_time_that_can_not_be_are_warned_of(changes: dict[str, str], because: str) -> None:
    if "evictionSoft" in changes:
        changes = {**changes, "evictionSoftGracePeriod": "{nodefs.available: 30s}"}
    written = "\n".join(f"{key}: {value}" for key, value in {**IN_TIME, **changes}.items())
    (warning,) = [one for one in _read(written).warnings if "reactor.softEviction" in one]
    assert "inTime has no effect" in warning
    assert because in warning


def test_the_distance_of_the_time_left_is_an_amount_or_a_share() -> None:
    assert "10%" == getattr(_read("reactor: {timeLeftWithin: 10%}").time_left_within, "text", None)
    assert ["reactor.timeLeftWithin"] == _paths("reactor: {timeLeftWithin: soon}")
    (warning,) = [
        one
        for one in _read("{evictionHard: {pid.available: 5%}, reactor: {timeLeftWithin: 1Gi}}").warnings
        if "timeLeftWithin" in one
    ]
    assert "has no effect: there is no hard memory threshold" in warning


SOFT = (
    "evictionSoft: {memory.available: 1Gi}, evictionSoftGracePeriod: {memory.available: 30s}, "
    "evictionMaxPodGracePeriod: 20"
)


def test_hooks_before_soft_evictions_are_those_that_are_written() -> None:
    assert not _read("{}").hooks
    asked = _read(
        "{reactor: {beforeEviction: {commands: [/usr/bin/save, --all], urls: ['http://[::1]:80/x'], "
        f"prekill: true, timeout: 2s}}}}, {SOFT}}}"
    )
    assert asked.hooks == HookSettings(
        commands=(("/usr/bin/save", "--all"),), urls=("http://[::1]:80/x",), prekill=True, timeout_seconds=2.0
    )
    assert not any("beforeEviction" in warning for warning in asked.warnings)


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("{prekill: true}", "reactor.beforeEviction.timeout"),
        ("{commands: [/bin/a]}", "reactor.beforeEviction.timeout"),
        ("{timeout: 2s}", "reactor.beforeEviction"),
        ("{prekill: true, timeout: 0s}", "reactor.beforeEviction.timeout"),
        ("{prekill: true, timeout: 2m}", "reactor.beforeEviction.timeout"),
        ("{commands: [save], timeout: 2s}", "reactor.beforeEviction.commands"),
        ("{urls: ['ftp://x'], timeout: 2s}", "reactor.beforeEviction.urls[0]"),
        ("{hooks: true, timeout: 2s, prekill: true}", "reactor.beforeEviction.hooks"),
    ],
)
def test_hooks_that_can_not_be_are_refused(written: str, path: str) -> None:
    assert [path] == _paths(f"{{reactor: {{beforeEviction: {written}}}}}")


def test_hooks_without_a_time_limit_are_refused_in_words_of_a_file() -> None:
    with pytest.raises(ConfigError, match="timeout: got 'nothing'; accepted: a duration such as 2s"):
        _read("{reactor: {beforeEviction: {prekill: true}}}")


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ("evictionMaxPodGracePeriod: 20", "there is no soft threshold"),
        (SOFT.replace("20", "0"), "pods are killed at once"),
        (SOFT.replace("20", "3"), "hooks have 1.5 s at the most"),
    ],
)
def test_hooks_without_time_are_warned_of(others: str, why: str) -> None:
    asked = _read(f"{{reactor: {{beforeEviction: {{prekill: true, timeout: 2s}}}}, {others}}}")
    (warning,) = [one for one in asked.warnings if "beforeEviction" in one]
    assert why in warning


def test_kernel_kills_without_a_hard_memory_threshold_are_warned_of() -> None:
    soft = "{reactor: {kernelKill: hard}, evictionHard: {pid.available: 5%}}"
    assert any("reactor.kernelKill: has no effect" in warning for warning in _read(soft).warnings)
    assert not any("kernelKill" in warning for warning in _read("reactor: {kernelKill: hard}").warnings)
    counted = _read("reactor: {kernelKill: hard, memoryAvailable: memAvailable}").warnings
    assert any("kernelKill: has no effect with memoryAvailable" in warning for warning in counted)
    ranked = _read("reactor: {kernelKill: hard, ranking: memory+swap}").warnings
    assert any("kernelKill: has no effect with ranking" in warning for warning in ranked)


@pytest.mark.parametrize(
    ("filesystems", "layout"),
    [
        ("{}", Layout.SINGLE),
        ("{imagefs: /i}", Layout.DEDICATED),
        ("{imagefs: /i, containerfs: /i}", Layout.DEDICATED),
        ("{imagefs: /i, containerfs: /}", Layout.SPLIT),
    ],
)
def test_the_paths_tell_the_layout(filesystems: str, layout: Layout) -> None:
    assert layout is _read(f"reactor: {{filesystems: {filesystems}}}").eviction.layout


def test_the_layout_may_be_named() -> None:
    assert Layout.SPLIT is _read("reactor: {layout: split}").eviction.layout


@pytest.mark.parametrize("off", ["off", "'off'", "false"])
def test_metrics_may_be_off(off: str) -> None:
    assert _read(f"reactor: {{metrics: {off}}}").metrics_address is None


def test_pods_of_a_virtual_node_are_its_children_unless_parents_are_named() -> None:
    assert ("/demo",) == _read("reactor: {nodeCgroup: /demo}").pod_parents
    assert _read("reactor: {nodeCgroup: /}").node_cgroup is None


def test_parents_may_be_patterns() -> None:
    parents = ("/user.slice/user-[1-9]*.slice/user@*.service/app.slice", "/machine.slice", "/jobs/?")
    text = f"reactor: {{pods: {{parents: {json.dumps(parents)}}}}}"
    assert parents == settings_from_text(text, "f").pod_parents
    inside = "reactor: {nodeCgroup: /node, pods: {parents: [/node/*/app]}}"
    assert ("/node/*/app",) == settings_from_text(inside, "f").pod_parents


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{pods: {parents: ['/a/**/b']}}", "there is no **"),
        ("{pods: {parents: ['/a/[b']}}", "[...]"),
        ("{pods: {parents: ['/a/[/]']}}", "[...]"),
        ('{pods: {parents: ["/a/*\\n"]}}', "[...]"),
        (f"{{pods: {{parents: ['{'/*' * 17}']}}}}", "16 components"),
        ("{pods: {parents: ['a/*']}}", "a cgroup's path"),
        ("{pods: {parents: ['/a/../*']}}", "without .."),
        ("{nodeCgroup: /node, pods: {parents: ['/*/a']}}", "/node or a cgroup below it"),
        ("{nodeCgroup: /node, pods: {parents: ['/node*/a']}}", "/node or a cgroup below it"),
        ("{nodeCgroup: '/node*'}", "patterns are for pods.parents"),
        ("{kubernetes: {}, pods: {parents: ['/kubepods/*']}}", "on a Kubernetes node"),
        ("{pods: {parents: [/a/b, '/a/*']}}", "what /a/b matches"),
        ("{pods: {parents: ['/a/*', /a/b/c]}}", "what /a/* matches"),
        ("{pods: {parents: ['/a/*', '/a/*']}}", "what /a/* matches"),
    ],
)
def test_a_pattern_that_can_not_be_is_refused_with_what_can(section: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings_from_text(f"reactor: {section}", "f")
    (problem,) = refused.value.problems
    assert told in problem.accepted
    assert problem.path.startswith(("reactor.pods.parents[", "reactor.nodeCgroup"))


def test_parents_that_are_paths_may_lie_in_one_another() -> None:
    assert ("/a", "/a/b") == settings_from_text("reactor: {pods: {parents: [/a, /a/b]}}", "f").pod_parents


def test_lists_of_pods_are_names_paths_and_mappings() -> None:
    lists = _read(
        "reactor: {pods: {never: [db.service, /s//x-*], avoid: [{unit: 'app-*', trusting: true}], "
        "prefer: [{process: chrome}], priorities: {db.service: 5, 'batch-*': -1}, "
        "mayEvict: [docker.service], managedOOMPreference: false}}"
    ).pod_lists
    assert (PodEntry(unit="db.service"), PodEntry(cgroup="/s/x-*")) == lists.never
    assert (PodEntry(unit="app-*", is_trusting=True),) == lists.avoid
    assert (PodEntry(process="chrome"),) == lists.prefer
    assert ((PodEntry(unit="db.service"), 5), (PodEntry(unit="batch-*"), -1)) == lists.priorities
    assert set(BUILT_IN_NEVER) - {"docker.service"} == set(lists.built_in_never)
    assert not lists.honours_oomd
    assert PodLists() == _read("reactor: {}").pod_lists


def test_process_victims_are_rules_with_names_of_processes_that_are_spared() -> None:
    lists = _read(
        "reactor: {pods: {processVictims: [firefox.service, /s/x-*, "
        "{unit: 'app-*', trusting: true, never: [mutter, 'kwin*', '~code(-.*)?']}, {unit: a, never: null}]}}"
    ).pod_lists
    assert (
        ProcessVictimEntry(pods=PodEntry(unit="firefox.service")),
        ProcessVictimEntry(pods=PodEntry(cgroup="/s/x-*")),
        ProcessVictimEntry(
            pods=PodEntry(unit="app-*", is_trusting=True), never=("mutter", "kwin*", "~code(-.*)?")
        ),
        ProcessVictimEntry(pods=PodEntry(unit="a")),
    ) == lists.process_victims


def test_a_process_victim_is_a_process_a_tree_of_them_or_a_cgroup_and_unit_says_so_beside_a_cgroup() -> None:
    lists = _read(
        "reactor: {pods: {processVictims: [{unit: a.service, victim: tree}, {cgroup: /b, victim: leaf}, "
        "{cgroup: /c, unit: tree}, {cgroup: /d, unit: e.scope}, {unit: tree}, {unit: a, victim: process}]}}"
    ).pod_lists
    assert [
        (PodEntry(unit="a.service"), VictimUnit.TREE),
        (PodEntry(cgroup="/b"), VictimUnit.LEAF),
        (PodEntry(cgroup="/c"), VictimUnit.TREE),
        (PodEntry(cgroup="/d", unit="e.scope"), VictimUnit.PROCESS),
        (PodEntry(unit="tree"), VictimUnit.PROCESS),
        (PodEntry(unit="a"), VictimUnit.PROCESS),
    ] == [(one.pods, one.unit) for one in lists.process_victims]


def test_process_victims_on_a_kubernetes_node_go_by_namespaces_and_labels() -> None:
    lists = _read(
        "reactor: {kubernetes: {}, pods: {processVictims: [{namespace: agents-*, never: [db]}, "
        "{namespace: shop, labels: {app.kubernetes.io/name: web, role: ''}, victim: leaf}]}}"
    ).pod_lists
    assert (
        ProcessVictimEntry(pods=PodEntry(namespace="agents-*"), never=("db",)),
        ProcessVictimEntry(
            pods=PodEntry(namespace="shop", labels=(("app.kubernetes.io/name", "web"), ("role", ""))),
            unit=VictimUnit.LEAF,
        ),
    ) == lists.process_victims
    assert {"app.kubernetes.io/name", "role"} == lists.label_keys


def test_a_namespace_among_process_victims_is_refused_on_a_plain_node() -> None:
    with pytest.raises(ConfigError) as caught:
        _read("reactor: {nodeCgroup: /demo, pods: {parents: [/demo], processVictims: [a, {namespace: a}]}}")
    assert "reactor.pods.processVictims[1]: got 'a'; accepted: a unit or a cgroup" in str(caught.value)


def test_a_unit_among_process_victims_is_no_error_on_a_kubernetes_node() -> None:
    settings = _read("reactor: {kubernetes: {}, pods: {processVictims: [a, {namespace: a}, {cgroup: /b}]}}")
    why = "has no effect on a Kubernetes node, where entries name a namespace"
    assert [f"reactor.yaml: reactor.pods.processVictims[{index}]: {why}" for index in (0, 2)] == [
        one for one in settings.warnings if "processVictims" in one
    ]


def test_labels_of_more_keys_than_the_guard_is_told_are_refused() -> None:
    entries = ", ".join(f"{{namespace: a, labels: {{k{number}: v}}}}" for number in range(17))
    with pytest.raises(ConfigError, match="labels of 17 keys; accepted: 16 keys at most"):
        _read(f"reactor: {{kubernetes: {{}}, pods: {{processVictims: [{entries}]}}}}")


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("{pods: {processVictims: {a: b}}}", "reactor.pods.processVictims"),
        ("{pods: {processVictims: [5]}}", "reactor.pods.processVictims[0]"),
        ("{pods: {processVictims: [a, {never: [b]}]}}", "reactor.pods.processVictims[1]"),
        ("{pods: {processVictims: [{process: b}]}}", "reactor.pods.processVictims[0]"),
        ("{pods: {processVictims: [{unit: a, victims: b}]}}", "reactor.pods.processVictims[0]"),
        ("{pods: {processVictims: [{unit: a, victim: b}]}}", "reactor.pods.processVictims[0].victim"),
        ("{pods: {processVictims: [{cgroup: /a, victim: [tree]}]}}", "reactor.pods.processVictims[0].victim"),
        (
            "{pods: {processVictims: [{cgroup: /a, unit: tree, victim: all}]}}",
            "reactor.pods.processVictims[0].victim",
        ),
        ("{pods: {processVictims: [{unit: a, never: b}]}}", "reactor.pods.processVictims[0].never"),
        ("{pods: {processVictims: [{unit: a, never: [b, 5]}]}}", "reactor.pods.processVictims[0].never[1]"),
        (
            "{pods: {processVictims: [{unit: a, never: ['~(b']}]}}",
            "reactor.pods.processVictims[0].never[0]",
        ),
        (
            f"{{pods: {{processVictims: [{{unit: a, never: [{', '.join('b' * 65)}]}}]}}}}",
            "reactor.pods.processVictims[0].never",
        ),
        *(
            (
                f"{{kubernetes: {{}}, pods: {{processVictims: [{entry}]}}}}",
                f"reactor.pods.processVictims[0]{at}",
            )
            for entry, at in (
                ("{labels: {a: b}}", ""),
                ("{namespace: a, unit: b}", ""),
                ("{namespace: a, trusting: true}", ""),
                ("{namespace: ''}", ".namespace"),
                ("{namespace: '~a'}", ".namespace"),
                ("{namespace: A}", ".namespace"),
                ("{namespace: [a]}", ".namespace"),
                (f"{{namespace: {'a' * 64}}}", ".namespace"),
                ("{namespace: a, labels: {}}", ".labels"),
                ("{namespace: a, labels: [b]}", ".labels"),
                ("{namespace: a, labels: {-b: c}}", ".labels"),
                (f"{{namespace: a, labels: {{{'b' * 254}: c}}}}", ".labels"),
                ("{namespace: a, labels: {b: true}}", ".labels.b"),
                ("{namespace: a, labels: {b: 'c*'}}", ".labels.b"),
                (f"{{namespace: a, labels: {{b: {'c' * 64}}}}}", ".labels.b"),
                ("{namespace: a, victim: b}", ".victim"),
                ("{namespace: a, never: b}", ".never"),
            )
        ),
        ("{nodeCgroup: demo}", "reactor.nodeCgroup"),
        ("{nodeCgroup: /a/../b}", "reactor.nodeCgroup"),
        ("{pods: {parents: [/ok, ../x]}}", "reactor.pods.parents[1]"),
        ("{nodeCgroup: /demo, pods: {parents: [/demo2]}}", "reactor.pods.parents[0]"),
        ("{pods: {manifests: etc}}", "reactor.pods.manifests"),
        ("{pods: {never: [5]}}", "reactor.pods.never[0]"),
        ("{pods: {never: [ok, '']}}", "reactor.pods.never[1]"),
        ("{pods: {never: [a/b]}}", "reactor.pods.never[0]"),
        ("{pods: {never: ['~(a']}}", "reactor.pods.never[0]"),
        ("{pods: {never: [{cgroup: '~*a'}]}}", "reactor.pods.never[0].cgroup"),
        ("{pods: {never: [{unit: a, process: '~[a'}]}}", "reactor.pods.never[0].process"),
        ("{pods: {never: [/a/../b]}}", "reactor.pods.never[0]"),
        ("{pods: {never: [{process: sshd}]}}", "reactor.pods.never[0]"),
        ("{pods: {avoid: [{process: sshd, trusting: true}]}}", "reactor.pods.avoid[0]"),
        ("{pods: {avoid: [{unit: a, cgroup: a}]}}", "reactor.pods.avoid[0].cgroup"),
        ("{pods: {avoid: [{unit: a, name: a}]}}", "reactor.pods.avoid[0]"),
        ("{pods: {avoid: [{unit: a, trusting: 'yes'}]}}", "reactor.pods.avoid[0].trusting"),
        ("{pods: {avoid: [{trusting: true}]}}", "reactor.pods.avoid[0]"),
        ("{pods: {prefer: [{unit: a, trusting: true}]}}", "reactor.pods.prefer[0]"),
        ("{pods: {prefer: [{process: more-than-15-long}]}}", "reactor.pods.prefer[0].process"),
        ("{pods: {priorities: {a.service: high}}}", 'reactor.pods.priorities["a.service"]'),
        ("{pods: {priorities: {a.service: 2147483648}}}", 'reactor.pods.priorities["a.service"]'),
        ("{pods: {priorities: {a/b: 1}}}", "reactor.pods.priorities.a/b"),
        ("{pods: {mayEvict: [sshd]}}", "reactor.pods.mayEvict[0]"),
        ("{pods: {managedOOMPreference: 1}}", "reactor.pods.managedOOMPreference"),
        ("{housekeepingInterval: 9ms}", "reactor.housekeepingInterval"),
        ("{evictionsPerMinute: 0}", "reactor.evictionsPerMinute"),
        ("{hardMemoryEvictionsPerMinute: 0}", "reactor.hardMemoryEvictionsPerMinute"),
        ("{unhelpfulEvictionPause: -1s}", "reactor.unhelpfulEvictionPause"),
        ("{reclaimBeforeSoft: 61s}", "reactor.reclaimBeforeSoft"),
        ("{reclaimBeforeSoft: true}", "reactor.reclaimBeforeSoft"),
        ("{minimumVictimBytes: 0}", "reactor.minimumVictimBytes"),
        ("{inFlightDeadline: -1s}", "reactor.inFlightDeadline"),
        ("{metrics: 9753}", "reactor.metrics"),
        ("{metrics: '127.0.0.1:99999'}", "reactor.metrics"),
        ("{metrics: [a]}", "reactor.metrics"),
        ("{journal: {maxSize: 1}}", "reactor.journal.maxSize"),
        ("{journal: {files: true}}", "reactor.journal.files"),
        ("{realtime: {fifoPriority: 100}}", "reactor.realtime.fifoPriority"),
        ("{realtime: {lockMemory: 'no'}}", "reactor.realtime.lockMemory"),
        ("{sources: {kprobe: true}}", "reactor.sources.kprobe"),
        ("{ebpf: {loader: clang}}", "reactor.ebpf.loader"),
        ("{filesystems: {tmpfs: /tmp}}", "reactor.filesystems.tmpfs"),
        ("{layout: triple}", "reactor.layout"),
        ("{reclaim: {nodefs: rm -rf /tmp}}", "reactor.reclaim.nodefs"),
        ("{reclaim: {nodefs: [journalctl]}}", "reactor.reclaim.nodefs"),
        ("{reclaim: {nodefs: []}}", "reactor.reclaim.nodefs"),
        ("{reclaim: {nodefs: [[/bin/true], []]}}", "reactor.reclaim.nodefs"),
        ("{reclaim: {nodefs: [/bin/true, 5]}}", "reactor.reclaim.nodefs"),
        ("{reclaim: {rootfs: [/bin/true]}}", "reactor.reclaim.rootfs"),
        ("{reclaimTimeout: 0s}", "reactor.reclaimTimeout"),
        ("{onEviction: page me}", "reactor.onEviction"),
        ("{onEviction: [page]}", "reactor.onEviction"),
        ("{onOomKill: [/bin/true]}", "reactor.onOomKill"),
        ("{onSourceLost: []}", "reactor.onSourceLost"),
        ("{webhook: {url: 'ftp://x'}}", "reactor.webhook.url"),
        ("{webhook: {url: 'https://u:p@x/'}}", "reactor.webhook.url"),
        ("{webhook: {url: 'https://x/#f'}}", "reactor.webhook.url"),
        ("{webhook: {url: 'https://x:0/'}}", "reactor.webhook.url"),
        ("{webhook: {url: 5}}", "reactor.webhook.url"),
        ("{webhook: {}}", "reactor.webhook"),
        ("{webhook: {url: 'https://x', urlFile: /etc/url}}", "reactor.webhook"),
        ("{webhook: {url: 'http://x', tokenFile: /etc/t}}", "reactor.webhook.tokenFile"),
        ("{webhook: {urlFile: url}}", "reactor.webhook.urlFile"),
        ("{webhook: {url: 'https://x', password: a}}", "reactor.webhook.password"),
        ("{notifyTimeout: 0s}", "reactor.notifyTimeout"),
        ("{unknown: 1}", "reactor.unknown"),
        ("5", "reactor"),
    ],
)
def test_a_wrong_section_is_reported_by_path(section: str, path: str) -> None:
    assert [path] == _paths(f"reactor: {section}")


def test_wrong_keys_of_both_parts_and_a_wrong_kind_are_told_together() -> None:
    text = "kind: Pod\nevictionHard: {memory.available: x}\nreactor: {dryRun: maybe}\n"
    assert ['evictionHard["memory.available"]', "kind", "reactor.dryRun"] == _paths(text)


def test_what_is_not_a_mapping_is_no_configuration() -> None:
    assert ["reactor.yaml"] == _paths("- a\n")
    assert _read("# nothing\n---\n") == _read("{}")


def test_the_kubernetes_section_is_read_and_an_empty_one_means_the_defaults() -> None:
    settings = _read(
        """
        reactor:
          kubernetes:
            nodeName: worker-1.example.com
            kubeconfig: /etc/reactor/kubeconfig
            role: sole
            taints: nodeController
            pods: kubelet
            kubelet: {url: "https://[::1]:10250/", caFile: /etc/ca.crt, insecure: true}
            evictedPodTTL: 1h
        """
    )
    assert settings.kubernetes == KubernetesSettings(
        node_name="worker-1.example.com",
        kubeconfig_path="/etc/reactor/kubeconfig",
        role=Role.SOLE,
        tainted_by=TaintedBy.NODE_CONTROLLER,
        pods_from=PodOrigin.KUBELET,
        kubelet_url="https://[::1]:10250",
        kubelet_ca_path="/etc/ca.crt",
        kubelet_verified=False,
        evicted_pod_ttl_seconds=3600.0,
    )
    assert KubernetesSettings() == _read("reactor: {kubernetes: {}}").kubernetes
    assert _read("reactor: {}").kubernetes is None


def test_taints_can_be_left_to_the_node_controller_only_with_the_conditions_that_it_knows() -> None:
    assert ["reactor.kubernetes.taints"] == _paths("reactor: {kubernetes: {taints: nodeController}}")
    assert ["reactor.kubernetes.taints"] == _paths("reactor: {kubernetes: {role: sole, taints: kubelet}}")
    assert KubernetesSettings() == _read("reactor: {kubernetes: {taints: reactor}}").kubernetes


def test_wrong_kubernetes_keys_are_named_by_their_paths() -> None:
    assert [
        "reactor.kubernetes.nodeName",
        "reactor.kubernetes.kubeconfig",
        "reactor.kubernetes.role",
        "reactor.kubernetes.kubelet.url",
        "reactor.kubernetes.evictedPodTTL",
        "reactor.kubernetes.token",
    ] == _paths(
        """
        reactor:
          kubernetes:
            nodeName: Worker_1
            kubeconfig: relative
            role: both
            kubelet: {url: "http://127.0.0.1:10255"}
            evictedPodTTL: -1s
            token: secret
        """
    )


@pytest.mark.parametrize(
    ("text", "parents"),
    [
        ("reactor: {kubernetes: {}}", ("/kubepods", "/kubepods.slice")),
        (
            "cgroupRoot: /kubelet\nreactor: {kubernetes: {}}",
            ("/kubelet/kubepods", "/kubelet.slice/kubelet-kubepods.slice"),
        ),
        ("reactor: {nodeCgroup: /node, kubernetes: {}}", ("/node/kubepods",)),
        (
            "cgroupRoot: /node/kubelet\nreactor: {nodeCgroup: /node, kubernetes: {}}",
            ("/node/kubelet/kubepods",),
        ),
        (
            "cgroupRoot: /node\nreactor: {nodeCgroup: /node.slice, kubernetes: {}}",
            ("/node.slice/node-kubepods.slice",),
        ),
        ("cgroupRoot: /elsewhere\nreactor: {nodeCgroup: /node, kubernetes: {}}", ("/node/kubepods",)),
        ("reactor: {pods: {parents: [/pods]}, kubernetes: {}}", ("/pods",)),
        ("cgroupRoot: /kubelet", ()),
    ],
)
def test_on_a_kubernetes_node_pods_are_below_the_kubelets_cgroups(
    text: str, parents: tuple[str, ...]
) -> None:
    assert parents == settings_from_text(text, "f").pod_parents


def test_the_runtimes_endpoint_is_a_socket_with_or_without_its_scheme() -> None:
    for endpoint in ("unix:///run/c.sock", "/run/c.sock"):
        text = f"reactor: {{runtime: {{endpoint: '{endpoint}'}}}}"
        assert settings_from_text(text, "f").runtime_endpoint == "/run/c.sock"
    assert settings_from_text("{}", "f").runtime_endpoint is None


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1", "run/c.sock", "''", "5"])
def test_an_endpoint_that_is_no_unix_socket_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"reactor\.runtime\.endpoint: .*accepted: a Unix socket's path"):
        settings_from_text(f"reactor: {{runtime: {{endpoint: {endpoint}}}}}", "f")


def test_where_static_pods_come_from_is_taken_from_the_kubelets_own_key() -> None:
    found = settings_from_text("staticPodPath: /etc/kubernetes/manifests", "f")
    assert found.static_pods_path == "/etc/kubernetes/manifests"


def test_the_oom_killer_keeps_its_own_order_unless_the_policys_is_asked_for() -> None:
    assert OomOrderMode.LEAVE is _read("{}").oom_order
    assert OomOrderMode.POLICY is _read("reactor: {oomOrder: policy}").oom_order
    assert ["reactor.oomOrder"] == _paths("reactor: {oomOrder: off}")


@pytest.mark.parametrize("value", ["hard", "off", "{}"])
def test_the_brake_is_refused_in_any_form_and_what_is_accepted_in_its_place_is_named(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(f"reactor: {{brake: {value}}}")
    (problem,) = caught.value.problems
    assert "reactor.brake" == problem.path
    assert "removed" in problem.got
    assert "kernelKill: hard" in problem.accepted


@pytest.mark.parametrize(
    ("document", "is_derived"),
    [
        ("{}", False),
        ("{reactor: {pods: {parents: [/pods.slice]}}}", False),
        ("{enforceNodeAllocatable: null}", False),
        ("{enforceNodeAllocatable: [kube-reserved]}", False),
        ("{enforceNodeAllocatable: [pods]}", True),
        ("{reactor: {kubernetes: {}}}", True),
        ("{reactor: {kubernetes: {}}, enforceNodeAllocatable: []}", False),
    ],
)
def test_a_plain_node_has_no_threshold_on_its_pods_cgroup_unless_that_is_asked_for(
    document: str,
    is_derived: bool,  # noqa: FBT001
) -> None:
    found = {str(threshold.signal) for threshold in _read(document).eviction.thresholds}
    assert "memory.available" in found
    assert is_derived is ("allocatableMemory.available" in found)


def test_podmans_images_are_removed_unless_that_is_switched_off() -> None:
    assert (True, None) == (_read("{}").podman, _read("{}").podman_socket)
    assert "/run/p.sock" == _read("reactor: {podman: {socket: unix:///run/p.sock}}").podman_socket
    assert not _read("reactor: {podman: {images: false}}").podman
    assert ["reactor.podman.socket"] == _paths("reactor: {podman: {socket: p.sock}}")


@pytest.mark.parametrize(
    ("root", "cgroupfs", "systemd"),
    [
        ("/", "/kubepods", "/kubepods.slice"),
        ("", "/kubepods", "/kubepods.slice"),
        ("/kubelet", "/kubelet/kubepods", "/kubelet.slice/kubelet-kubepods.slice"),
        ("/a/b", "/a/b/kubepods", "/a.slice/a-b.slice/a-b-kubepods.slice"),
        ("/a-b/", "/a-b/kubepods", "/a_b.slice/a_b-kubepods.slice"),
    ],
)
def test_the_cgroup_of_all_pods_is_named_as_either_driver_names_it(
    root: str, cgroupfs: str, systemd: str
) -> None:
    assert (cgroupfs, systemd) == kubepods_cgroups(root)


@pytest.mark.parametrize(
    ("size_bytes", "got"), [(None, "not a regular file"), ((4 << 20) + 1, "larger than 4 MiB")]
)
def test_a_device_and_a_file_that_is_larger_than_any_configuration_are_refused(
    tmp_path: Path, size_bytes: int | None, got: str
) -> None:
    path = tmp_path / "config.yaml"
    if size_bytes is None:
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b" " * size_bytes)

    with pytest.raises(ConfigError) as refused:
        load_settings(path)

    (problem,) = refused.value.problems
    assert (str(path), got) == (problem.path, problem.got)


def test_yaml_that_takes_a_daemon_seconds_to_read_is_refused_and_as_json_it_is_not(tmp_path: Path) -> None:
    path, names = tmp_path / "config.yaml", [f"name-{number:07}.service" for number in range(48_000)]
    path.write_text("reactor: {pods: {never: [\n" + ",\n".join(names) + "]}}\n")
    with pytest.raises(ConfigError, match="YAML of up to 1024 KiB, or JSON"):
        load_settings(path)

    path.write_text(json.dumps({"reactor": {"pods": {"never": names}}}, indent=4))

    assert names == [one.unit for one in load_settings(path).pod_lists.never]


def test_pods_are_ranked_and_memory_is_counted_as_upstream_unless_it_is_said_otherwise() -> None:
    settings = _read("{}")
    assert not settings.eviction.ranks_swap
    assert MemoryAvailable.WORKING_SET is settings.memory_available
    assert not settings.eviction.counts_swap
    settings = _read("reactor: {ranking: memory+swap, memoryAvailable: memAvailable}")
    assert settings.eviction.ranks_swap
    assert all(one.ranks_swap for one in settings.by_layout.values())
    assert settings.eviction.counts_swap
    assert MemoryAvailable.MEM_AVAILABLE is settings.memory_available


@pytest.mark.parametrize("key", ["ranking", "memoryAvailable"])
@pytest.mark.parametrize("wrong", ["swap", "true", "3", "[]"])
def test_a_way_to_count_that_there_is_not_is_refused(key: str, wrong: str) -> None:
    assert [f"reactor.{key}"] == _paths(f"reactor: {{{key}: {wrong}}}")


def test_swap_has_thresholds_like_every_signal() -> None:
    settings = _read(
        "{evictionHard: {swap.available: 10%}, evictionSoft: {swap.available: 1Gi}, "
        "evictionSoftGracePeriod: {swap.available: 30s}, evictionMinimumReclaim: {swap.available: 64Mi}}"
    )
    hard, soft = settings.eviction.thresholds
    assert ("swap.available<10%", 0.0) == (str(hard), hard.grace_period_seconds)
    assert ("swap.available<1Gi", 30.0) == (str(soft), soft.grace_period_seconds)
    assert hard.minimum_reclaim is not None
    assert settings.eviction.counts_swap


OF_DISKS = {"nodefs.available<10%", "nodefs.inodesFree<5%", "imagefs.available<15%", "imagefs.inodesFree<5%"}


@pytest.mark.parametrize(
    ("text", "on_disk"),
    [
        ("", set()),
        ("evictionHard: {memory.available: 200Mi}\nmergeDefaultEvictionSettings: true", set()),
        ("evictionHard: {nodefs.available: 7%}", {"nodefs.available<7%", "containerfs.available<7%"}),
    ],
)
def test_a_plain_node_has_no_default_thresholds_for_disks(text: str, on_disk: set[str]) -> None:
    settings = settings_from_text(f"{text}\nreactor: {{pods: {{parents: [/system.slice]}}}}", "f")
    thresholds = set(map(str, settings.eviction.thresholds))
    assert on_disk == {one for one in thresholds if "fs." in one}
    assert settings.eviction.evicts_holders_only
    assert all(one.evicts_holders_only for one in settings.by_layout.values())


@pytest.mark.parametrize(
    "text", ["", "evictionHard: {memory.available: 200Mi}\nmergeDefaultEvictionSettings: true"]
)
def test_a_kubernetes_node_has_upstreams_default_thresholds_for_disks(text: str) -> None:
    settings = settings_from_text(f"{text}\nreactor: {{kubernetes: {{}}}}", "f")
    assert set(map(str, settings.eviction.thresholds)) >= OF_DISKS
    assert not settings.eviction.evicts_holders_only
