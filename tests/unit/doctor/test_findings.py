"""What is right in form and guards nobody, everybody or too late."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reactor.cli import main
from reactor.config.documents import Layers, Named, load_document
from reactor.config.settings import settings_from_text
from reactor.doctor.findings import GuardedPod, findings, nobody_because
from reactor.kernel.cgroup import CgroupVersion
from reactor.model.pod_lists import BUILT_IN_NEVER
from reactor.model.pods import Pod
from reactor.programs import unrunnable_because

HARD = "evictionHard: {memory.available: 100Mi}"
REFUSED = "can't be run on this machine"


@pytest.fixture(params=list(CgroupVersion))
def node(request, make_tree):
    tree = make_tree(request.param)
    for cgroup in (
        "/",
        "/system.slice",
        "/machine.slice",
        "/machine.slice/a.scope",
        "/jobs",
        "/jobs/nightly",
    ):
        tree.add(cgroup)
    return tree


def found(node, text, tmp_path):
    """Return what is found of a configuration, by its path; "" for what is of another file."""
    settings = settings_from_text(text, "f.yaml")
    layers = Layers(Named("f.yaml", load_document(text, "f.yaml")), ())
    tree = None if node is None else node.tree
    said = [
        one for one in findings(settings, layers, tree, proc=tmp_path) if not one.path.startswith("threshold")
    ]
    assert all(one.file in {"f.yaml", ""} or Path(one.file).exists() for one in said)
    return {one.path: one.why for one in said}


def with_parent(parent):
    return f"{HARD}\nreactor: {{pods: {{parents: [{parent}]}}}}"


@pytest.fixture(autouse=True)
def without_systemd(monkeypatch):
    """What systemd would make is not there, whatever runs the tests."""
    monkeypatch.setattr("reactor.doctor.findings.daemon_cgroup", lambda: None)


def test_parents_that_are_there_and_hold_containers_are_nothing_to_speak_of(node, tmp_path):
    assert {} == found(node, f"{HARD}\nreactor: {{pods: {{parents: [/machine.slice, /jobs]}}}}", tmp_path)


def test_no_parents_are_named_and_an_empty_list_was_meant(node, tmp_path):
    assert "no pod can be evicted" in found(node, HARD, tmp_path)["reactor.pods.parents"]
    assert {} == found(node, f"{HARD}\nreactor: {{pods: {{parents: []}}}}", tmp_path)


@pytest.mark.parametrize(
    ("parent", "said"),
    [
        ("/machines.slice", "did you mean /machine.slice?"),
        ("/Machine.slice", "did you mean /machine.slice?"),
        ("/jobs/nighty", "did you mean /jobs/nightly?"),
        ("/job/nightly", "did you mean /jobs/nightly?"),
        ("/jobs/weekly/big", "the nearest that is there: /jobs"),
        ("/kubepods", "there are: /jobs, /machine.slice, /system.slice"),
        ("/guarded.slice", "there are: /jobs, /machine.slice, /system.slice"),
    ],
)
def test_a_parent_that_is_not_there_is_named_with_the_nearest_that_is(node, tmp_path, parent, said):
    why = found(node, with_parent(parent), tmp_path)["reactor.pods.parents[0]"]
    assert why.startswith(f"{parent} is not on this machine")
    assert said in why


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("/jobs/night*/x", "the nearest that is there: /jobs/nightly"),
        ("/user.slice/user-*.slice/user@*.service/apps.slice", "did you mean {begins}/app.slice?"),
        (
            "/user.slice/user-*.slice/users@*.service/app.slice",
            "the nearest that is there: /user.slice/user-7.slice",
        ),
        ("/user.slice/user-9*.slice/user@*.service", "the nearest that is there: /user.slice"),
        ("/usr.slice/user-*.slice", "did you mean /user.slice?"),
        ("/kubepods/*", "there are: /jobs"),
    ],
)
def test_a_pattern_that_matches_nothing_guards_nobody_and_the_nearest_that_does_is_named(
    node, tmp_path, pattern, said
):
    node.add("/user.slice/user-7.slice/user@7.service/app.slice")
    why = found(node, with_parent(f"'{pattern}'"), tmp_path)["reactor.pods.parents[0]"]
    assert why.startswith(f"{pattern} matches no cgroup on this machine: it guards no pod now")
    assert said.format(begins="/user.slice/user-*.slice/user@*.service") in why
    settings = settings_from_text(with_parent(f"'{pattern}'"), "f")
    assert nobody_because(settings, node.tree) == f"there is no cgroup {pattern} yet"


def test_a_pattern_that_matches_is_nothing_to_speak_of(node, tmp_path):
    node.add("/user.slice/user-7.slice/user@7.service/app.slice/browser.scope")
    text = with_parent("'/user.slice/user-*.slice/user@*.service/app.slice'")
    assert {} == found(node, text, tmp_path)
    assert nobody_because(settings_from_text(text, "f"), node.tree) is None


def test_a_pattern_that_matches_what_the_machine_needs_is_warned_of(node, tmp_path):
    node.add("/system.slice/user-0.slice")
    assert "user-0.slice" in found(node, with_parent("'/sys*.slice'"), tmp_path)["reactor.pods.parents[0]"]


def test_a_slice_that_systemd_makes_with_the_first_unit_in_it_may_be_missing(node, tmp_path, monkeypatch):
    monkeypatch.setattr("reactor.doctor.findings.daemon_cgroup", lambda: "/system.slice/reactor.service")
    assert {} == found(node, with_parent("/guarded.slice"), tmp_path)
    settings = settings_from_text(with_parent("/guarded.slice"), "f")
    assert nobody_because(settings, node.tree) == "there is no cgroup /guarded.slice yet"
    node.add("/guarded.slice")
    assert nobody_because(settings, node.tree) is None


@pytest.mark.parametrize("parent", ["/machines.slice", "/machine.slice/b.slice", "/guarded"])
def test_a_misspelt_slice_and_what_is_none_of_systemds_are_named_on_a_machine_with_systemd(
    node, tmp_path, monkeypatch, parent
):
    monkeypatch.setattr("reactor.doctor.findings.daemon_cgroup", lambda: "/system.slice/reactor.service")
    assert "is not on this machine" in found(node, with_parent(parent), tmp_path)["reactor.pods.parents[0]"]


@pytest.mark.parametrize("mount", ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", None])
def test_a_parent_with_the_mount_point_in_it_is_answered_with_the_cgroup(node, tmp_path, mount):
    parent = f"{mount or node.tree.memory_root}/machine.slice"
    why = found(node, with_parent(parent), tmp_path)["reactor.pods.parents[0]"]
    assert "mount point" in why
    assert "(did you mean /machine.slice?)" in why


def test_a_virtual_node_that_is_not_there_is_named_by_its_own_key(node, tmp_path):
    said = found(node, f"{HARD}\nreactor: {{nodeCgroup: /machne.slice}}", tmp_path)
    assert list(said) == ["reactor.nodeCgroup"]
    assert "did you mean /machine.slice?" in said["reactor.nodeCgroup"]


def test_a_parent_whose_pods_the_machine_needs_is_named(node, tmp_path):
    for unit in ("ssh.service", "systemd-networkd.service", "NetworkManager.service", "web.service"):
        node.add(f"/system.slice/{unit}")
    why = found(node, with_parent("/system.slice"), tmp_path)["reactor.pods.parents[0]"]
    assert "may evict what this machine needs: NetworkManager.service, systemd-networkd.service;" in why
    assert "pods.never" in why
    lists = "never: [systemd-*, NetworkManager.service]"
    text = f"{HARD}\nreactor: {{pods: {{parents: [/system.slice], {lists}}}}}"
    assert {} == found(node, text, tmp_path)
    text = f"{HARD}\nreactor: {{pods: {{parents: [/system.slice], {lists}, mayEvict: [ssh.service]}}}}"
    assert "ssh.service" in found(node, text, tmp_path)["reactor.pods.parents[0]"]


def test_the_root_as_a_parent_guards_everybody_which_is_named(node, tmp_path):
    why = found(node, with_parent("/"), tmp_path)["reactor.pods.parents[0]"]
    assert "may evict what this machine needs: system.slice;" in why


def test_what_the_machine_needs_and_is_exempt_is_not_named(node, tmp_path):
    node.add("/system.slice/ssh.service")
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    spec = {
        "metadata": {"name": "ssh", "annotations": {"reactor/unit": "ssh.service"}},
        "spec": {"priority": 2_000_001_000, "containers": [{"name": "sshd"}]},
    }
    (manifests / "ssh.yaml").write_text(json.dumps(spec))
    text = f"{HARD}\nreactor: {{pods: {{parents: [/system.slice], manifests: {manifests}}}}}"
    assert {} == found(node, text, tmp_path)


def test_on_a_machine_without_cgroups_no_pod_can_be_evicted(tmp_path):
    assert "no pod can be evicted" in found(None, with_parent("/jobs"), tmp_path)["reactor.pods.parents"]


def test_a_kubernetes_node_without_the_pods_cgroups_is_named(node, tmp_path):
    said = found(node, f"{HARD}\nreactor: {{kubernetes: {{}}}}", tmp_path)
    assert {
        "reactor.kubernetes": "none of the pods' cgroups is on this machine: /kubepods, /kubepods.slice"
    } == said
    node.add("/kubepods.slice")
    assert {} == found(node, f"{HARD}\nreactor: {{kubernetes: {{}}}}", tmp_path)


def test_commands_that_can_not_be_run_are_named_by_their_place(node, tmp_path):
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "plain").chmod(0o644)
    text = (
        f"evictionHard: {{nodefs.available: 1Ki}}\nreactor: {{pods: {{parents: [/jobs]}}, reclaim: "
        f"{{nodefs: [[/bin/true], [{tmp_path}/none], [{tmp_path}/plain]], imagefs: [{tmp_path}]}}}}"
    )
    said = found(node, text, tmp_path)
    assert {
        "reactor.reclaim.nodefs[1]": f"{REFUSED}: {tmp_path}/none: No such file or directory",
        "reactor.reclaim.nodefs[2]": f"{REFUSED}: {tmp_path}/plain has mode 0644: it can't be executed",
        "reactor.reclaim.imagefs": f"{REFUSED}: {tmp_path} is not a regular file",
    } == said


def test_a_script_whose_interpreter_is_missing_can_not_be_run(tmp_path):
    script = tmp_path / "script"
    for line, why in (("#!/bin/sh\n", None), ("#! /no/such/shell -e\n", "/no/such/shell"), ("#!\n", None)):
        script.write_text(line)
        script.chmod(0o755)
        said = unrunnable_because((str(script),))
        assert (said is None) == (why is None)
        assert why is None or why in str(said)


def test_files_that_the_configuration_names_and_the_machine_lacks_are_named(node, tmp_path):
    text = (
        f"{HARD}\nreactor: {{pods: {{parents: [/jobs], manifests: {tmp_path}/m}}, "
        f"podman: {{socket: {tmp_path}/p}}, filesystems: {{nodefs: {tmp_path}}}}}"
    )
    said = found(node, text, tmp_path)
    lacks = "No such file or directory on this machine"
    assert said["reactor.pods.manifests"] == f"{tmp_path}/m: {lacks}"
    assert said["reactor.podman.socket"] == f"{tmp_path}/p: {lacks}"
    assert "reactor.filesystems.nodefs" not in said


def test_a_class_of_priority_that_nobody_resolves_is_named_with_its_manifest(node, tmp_path):
    manifests = tmp_path / "manifests"
    manifests.mkdir()

    def manifest(name, **spec):
        document = {"metadata": {"name": name, "annotations": {"reactor/cgroup": f"/jobs/{name}"}}}
        (manifests / f"{name}.yaml").write_text(json.dumps({**document, "spec": {"containers": [], **spec}}))

    manifest("nightly", priorityClassName="high")
    manifest("weekly", priorityClassName="high", priority=1000)
    text = f"{HARD}\nreactor: {{pods: {{parents: [/jobs], manifests: {manifests}}}}}"
    settings = settings_from_text(text, "f.yaml")
    layers = Layers(Named("f.yaml", load_document(text, "f.yaml")), ())
    (finding,) = [
        one for one in findings(settings, layers, node.tree, proc=tmp_path) if "threshold" not in one.path
    ]
    assert finding.file == str(manifests / "nightly.yaml")
    assert finding.path == "[0].spec.priorityClassName"
    assert "'high' counts as priority 0" in finding.why


def test_a_manifest_that_is_refused_is_named_once(node, tmp_path):
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "a.yaml").write_text(
        "{metadata: {name: a, annotations: {reactor/cgroup: /other/a}}, spec: {}}"
    )
    (manifests / "b.yaml").write_text("{metadata: {name: b}, spec: {}}")
    text = f"{HARD}\nreactor: {{pods: {{parents: [/jobs], manifests: {manifests}}}}}"
    settings = settings_from_text(text, "f.yaml")
    layers = Layers(Named("f.yaml", load_document(text, "f.yaml")), ())
    said = [str(one) for one in findings(settings, layers, node.tree, proc=tmp_path)]
    for name in ("a.yaml", "b.yaml"):
        (line,) = [line for line in said if name in line]
        assert line.count(name) == 1


def test_check_warns_of_them_and_exits_0(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(f"{HARD}\nreactor: {{reclaim: {{nodefs: [/no/such/program]}}}}\n")
    assert main(["config", "check", str(config)]) == 0
    streams = capsys.readouterr()
    wanted = f"reactor: {config}: reactor.reclaim.nodefs: can't be run on this machine: /no/such/program"
    assert wanted in streams.err
    assert "guards nobody" in streams.out


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ("shutdownGracePeriod: 30s", "shutdownGracePeriod"),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]",
            "shutdownGracePeriodByPodPriority",
        ),
    ],
)
def test_a_shutdown_that_no_bus_reports_is_named(node, tmp_path, monkeypatch, keys, path):
    text = f"{HARD}\n{keys}\nreactor: {{pods: {{parents: [/machine.slice]}}}}"
    bus = tmp_path / "system_bus_socket"
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={bus}")
    assert f"no system bus at {bus}" in found(node, text, tmp_path)[path]
    bus.touch()
    assert {} == found(node, text, tmp_path)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "nonsense")
    assert "no system bus" in found(node, text, tmp_path)[path]


def test_a_kubelet_that_ends_the_pods_itself_at_a_shutdown_is_named(node, tmp_path, monkeypatch):
    (tmp_path / "bus").touch()
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
    kubelet = tmp_path / "config.yaml"
    kubelet.write_text("shutdownGracePeriod: 30s\n")
    text = f"shutdownGracePeriod: 20s\nreactor: {{kubernetes: {{kubelet: {{config: {kubelet}}}}}}}"
    assert "the kubelet ends the pods itself" in found(node, text, tmp_path)["shutdownGracePeriod"]
    kubelet.write_text("evictionHard: {}\n")
    assert "shutdownGracePeriod" not in found(node, text, tmp_path)


@pytest.mark.parametrize("has_file", [True, False])
def test_reclaim_before_soft_evictions_needs_cgroup_v2_and_a_kernel_that_can(node, tmp_path, has_file):
    if has_file:
        node.file("/", "memory.reclaim", "")
    soft = "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 30s}"
    told = found(
        node, f"{HARD}\n{soft}\nreactor: {{reclaimBeforeSoft: 5s, pods: {{parents: [/jobs]}}}}", tmp_path
    )
    can = has_file and node.tree.version is CgroupVersion.V2
    assert can is ("reactor.reclaimBeforeSoft" not in told)
    assert can or told["reactor.reclaimBeforeSoft"].startswith("has no effect on this machine: ")
    assert "reactor.reclaimBeforeSoft" not in found(node, f"{HARD}\n{soft}", tmp_path)
    assert "reactor.reclaimBeforeSoft" not in found(
        None, f"{HARD}\nreactor: {{reclaimBeforeSoft: 5s}}", tmp_path
    )


def test_a_rule_for_one_process_that_applies_to_no_pod_is_named(node, tmp_path):
    node.add("/jobs/build.service")
    rules = "processVictims: [build.service, bild.service, {cgroup: /jobs/nightly}]"
    said = found(node, f"{HARD}\nreactor: {{pods: {{parents: [/jobs], {rules}}}}}", tmp_path)
    assert {"reactor.pods.processVictims[1]": "matches no pod on this machine now"} == said


def test_a_rule_for_a_part_of_a_pod_that_has_none_is_named(node, tmp_path):
    for name, processes in (("one.service", "41\n"), ("two.service", "42\n43\n")):
        node.add(f"/jobs/{name}")
        node.file(f"/jobs/{name}", "cgroup.procs", processes)
    rules = "processVictims: [{unit: '*.service', victim: UNIT}]"
    text = f"{HARD}\nreactor: {{pods: {{parents: [/jobs], {rules}}}}}"
    path = "reactor.pods.processVictims[0]"
    tree = "tree: /jobs/one.service has one process alone now: the pod ends with it"
    assert {path: tree} == found(node, text.replace("UNIT", "tree"), tmp_path)
    leaf = "leaf: /jobs/one.service, /jobs/two.service has no cgroup below it now: the whole pod is evicted"
    assert {path: leaf} == found(node, text.replace("UNIT", "leaf"), tmp_path)
    assert not found(node, text.replace("UNIT", "process"), tmp_path)


def test_a_rule_for_one_process_that_goes_by_a_users_name_names_what_takes_it(node, tmp_path):
    node.add("/jobs/user@1000.service")
    node.add("/jobs/user@1000.service/app.scope")
    text = f"{HARD}\nreactor: {{pods: {{parents: [/jobs/user@1000.service], processVictims: [RULE]}}}}"
    (why,) = found(node, text.replace("RULE", "app.scope"), tmp_path).values()
    assert "root did not choose the name of /jobs/user@1000.service/app.scope" in why
    assert "trusting: true" in why
    assert {} == found(node, text.replace("RULE", "{unit: app.scope, trusting: true}"), tmp_path)


def with_lists(lists, parents="/machine.slice"):
    return f"{HARD}\nreactor: {{pods: {{parents: [{parents}], {lists}}}}}"


def test_a_name_on_a_list_that_no_pod_has_is_named_with_the_nearest(node, tmp_path):
    node.add("/machine.slice/database.scope")
    lists = "never: [databse.scope, etcd.service], avoid: [a.scope, etcd.service, databases], prefer: [b*]"
    assert {
        "reactor.pods.never[0]": "databse.scope matches no pod now (did you mean database.scope?)",
        "reactor.pods.never[1]": "etcd.service matches no pod now",
        "reactor.pods.avoid[2]": "databases matches no pod now (did you mean database.scope?)",
    } == found(node, with_lists(lists), tmp_path)


@pytest.mark.parametrize("every", ["'*'", "'~.*'"])
def test_a_never_list_that_names_each_pod_guards_nobody(node, tmp_path, every):
    text = with_lists(f"never: [{every}]")
    assert "no pod can be evicted" in found(node, text, tmp_path)["reactor.pods.never[0]"]
    because = nobody_because(settings_from_text(text, "f.yaml"), node.tree)
    assert "the only pod now is never evicted: /machine.slice/a.scope" in because


def test_the_root_as_a_parent_is_warned_of_since_its_pods_are_whole_slices(node, tmp_path):
    text = with_parent("/")
    layers = Layers(Named("f.yaml", load_document(text, "f.yaml")), ())
    said = findings(settings_from_text(text, "f.yaml"), layers, node.tree, proc=tmp_path)
    assert any("/user.slice with all users" in one.why for one in said if one.path.endswith("parents[0]"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def _told(config: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert 0 == main(["config", "check", str(config)])
    return capsys.readouterr().err


def test_commands_that_can_not_be_run_are_named_by_their_key(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = config.with_name("plain")
    plain.write_text("#!/bin/sh\n")
    plain.chmod(0o644)
    config.write_text(
        f"reactor: {{onEviction: [[/bin/true], [/nowhere/x]], onOOMKill: [{plain}], onSourceLost: [/tmp]}}\n"
    )
    told = _told(config, capsys)

    assert "reactor.onEviction: on this machine /nowhere/x: No such file or directory" in told
    assert f"reactor.onOOMKill: on this machine {plain} has mode 0644: it can't be executed" in told
    assert "reactor.onSourceLost: on this machine /tmp is not a regular file" in told


def test_files_of_a_webhook_that_can_not_be_used_or_are_open_to_all_are_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token, authority = config.with_name("token"), config.with_name("ca")
    token.write_text("secret\n")
    token.chmod(0o644)
    authority.write_text("nothing\n")
    files = f"tokenFile: {token}, caFile: {authority}"
    config.write_text(f"reactor: {{webhook: {{urlFile: /nowhere/url, {files}}}}}\n")
    told = _told(config, capsys)

    assert "reactor.webhook.urlFile: on this machine /nowhere/url: No such file or directory" in told
    assert f"reactor.webhook.tokenFile: on this machine {token} has mode 0644: every user may read it" in told
    assert f"reactor.webhook.caFile: on this machine {authority}: " in told
    assert "secret" not in told


def test_commands_that_can_be_run_are_not_mentioned(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("reactor: {onEviction: [/bin/true, -x]}\n")
    assert "onEviction" not in _told(config, capsys)


def test_a_desktop_without_a_system_bus_is_named(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = config.with_name("bus")
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={bus}")
    config.write_text("reactor: {desktop: true}\n")
    assert f"reactor.desktop: on this machine no system bus at {bus}" in _told(config, capsys)
    bus.touch()
    assert "reactor.desktop" not in _told(config, capsys)


def is_essential(unit: str) -> bool:
    pod = Pod(name=unit, namespace="cgroup", uid="u", cgroup=f"/system.slice/{unit}")
    return GuardedPod(pod=pod, used_bytes=None).is_essential


@pytest.mark.parametrize("pattern", BUILT_IN_NEVER)
def test_what_is_never_evicted_unless_the_operator_says_so_is_essential(pattern: str) -> None:
    assert is_essential(pattern.replace("*", "7"))


GETS_IN = ["ssh.socket", "sshd@4-10.0.0.1:22.service", "NetworkManager.service", "getty@tty1.service"]
STOOD_ON = ["systemd-networkd.socket", "k3s.service", "system.slice", "user-0.slice", "kubepods"]
OTHERS = ["nginx.service", "user-1000.slice", "my-sshd.service", "web.socket", "docker"]


@pytest.mark.parametrize("unit", [*GETS_IN, *STOOD_ON])
def test_what_an_operator_gets_in_by_or_others_stand_on_is_essential(unit: str) -> None:
    assert is_essential(unit)


@pytest.mark.parametrize("unit", OTHERS)
def test_other_units_are_not_essential(unit: str) -> None:
    assert not is_essential(unit)


def hooks(written):
    soft = "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 30s}"
    return (
        f"{HARD}\n{soft}\nevictionMaxPodGracePeriod: 20\n"
        f"reactor: {{pods: {{parents: [/machine.slice]}}, beforeEviction: {written}}}"
    )


def test_hooks_that_are_not_there_or_that_others_can_write_are_named(node, tmp_path, monkeypatch):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for script, mode in ((theirs, 0o777), (ours, 0o755)):
        script.write_text("#!/bin/sh\n")
        script.chmod(mode)
    commands = f"[[/no/such], [{theirs}], [{ours}]]"
    path, others = "reactor.beforeEviction.commands", f"{theirs} has mode 0777: others may write it"
    assert found(node, hooks(f"{{commands: {commands}, timeout: 2s}}"), tmp_path) == {
        f"{path}[0]": f"{REFUSED}: /no/such: No such file or directory",
        f"{path}[1]": f"is run as root, and {others}",
    }
    sockets = tmp_path / "hooks"
    monkeypatch.setattr("reactor.doctor.findings.PREKILL_DIRECTORY", sockets)
    prekill = hooks("{prekill: true, timeout: 2s}")
    because = "no hook is called on this machine"
    assert found(node, prekill, tmp_path) == {
        "reactor.beforeEviction.prekill": f"{because}: {sockets}: No such file or directory"
    }
    sockets.mkdir()
    sockets.chmod(0o777)
    assert found(node, prekill, tmp_path) == {
        "reactor.beforeEviction.prekill": f"{because}: {sockets} has mode 0777: others may write it"
    }
    sockets.chmod(0o755)
    assert found(node, prekill, tmp_path) == {}


@pytest.mark.parametrize(("mode", "is_named"), [(0o755, False), (0o775, True), (0o1777, True)])
def test_directories_in_which_others_could_take_the_daemons_place_are_named(node, tmp_path, mode, is_named):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    own = f"stateFile: {shared}/state.json, socket: {shared}/s.sock, journal: {{path: {shared}/new/j.jsonl}}"
    why = f"{shared} has mode {mode:04o}: others may write it; another user can stop the daemon there"
    named = {"reactor.stateFile", "reactor.socket"} if is_named else set()
    got = found(node, f"{HARD}\nreactor: {{pods: {{parents: [/machine.slice]}}, {own}}}", tmp_path)
    assert named == set(got)
    assert all(one.startswith(why) for one in got.values())
