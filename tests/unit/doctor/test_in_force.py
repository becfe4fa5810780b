"""`reactor config show`: what is in force, where it is from, and who is there by it."""

from __future__ import annotations

import io
import json

import pytest

from reactor.cli import main
from reactor.config.settings import layers_of, load_settings
from reactor.doctor.in_force import in_force, present
from reactor.kernel.cgroup import CgroupVersion
from reactor.tables import Screen

MIB = 1 << 20


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "etc" / "config.yaml"
    path.parent.mkdir()
    path.write_text(
        "evictionHard: {memory.available: 10%, pid.available: 5%}\n"
        "reactor: {nodeCgroup: /node, pods: {parents: [/node/jobs]}, housekeepingInterval: 5s}\n"
    )
    return path


@pytest.fixture
def drop_ins(tmp_path):
    path = tmp_path / "etc" / "config.d"
    (path / "site").mkdir(parents=True)
    (path / "10-soft.conf").write_text(
        "{evictionSoft: {memory.available: 300Mi}, evictionSoftGracePeriod: {memory.available: 1m30s}}"
    )
    (path / "site/20.conf").write_text("{reactor: {dryRun: true, journal: {files: 4}}}")
    return path


@pytest.fixture
def node(make_tree, tmp_path):
    tree = make_tree(CgroupVersion.V2)
    for cgroup in ("/", "/node", "/node/jobs", "/node/jobs/idle", "/elsewhere"):
        tree.add(cgroup)
    tree.add("/node/jobs/hog", usage_bytes=300 * MIB, inactive_file_bytes=100 * MIB)
    tree.tree.set_memory_limit("/node", 1024 * MIB)
    tree.tree.set_memory_request("/node/jobs/hog", 64 * MIB)
    tree.add("/node/jobs/reactor.service")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/node/jobs/reactor.service\n")
    names = ("MemTotal", "MemFree", "Buffers", "Cached", "AnonPages", "Inactive(file)", "SReclaimable")
    lines = dict.fromkeys((*names, "SUnreclaim", "PageTables"), 4 << 20)
    (tmp_path / "meminfo").write_text("".join(f"{name}: {kib} kB\n" for name, kib in lines.items()))
    return tree


@pytest.fixture
def document(config, drop_ins, node, tmp_path, monkeypatch):
    monkeypatch.setattr("reactor.doctor.in_force.daemon_cgroup", lambda: None)
    settings, layers = load_settings(config, drop_ins), layers_of(config, drop_ins)
    return in_force(settings, layers, node.tree, proc=tmp_path)


def test_thresholds_are_reported_in_bytes_and_by_the_file_that_they_are_from(document, config, drop_ins):
    hard, _, soft = document["thresholds"]
    assert (hard["value"], hard["amount"], hard["capacity"]) == ("10%", 107_374_184, 1024 * MIB)
    assert (hard["kind"], hard["file"]) == ("hard", str(config))
    assert (soft["kind"], soft["grace_period_seconds"], soft["file"]) == (
        "soft",
        90,
        f"{drop_ins}/10-soft.conf",
    )


def test_every_key_has_its_value_and_the_file_or_the_default_that_it_is_from(document, config, drop_ins):
    by_key = {one["key"]: (one["value"], one["file"]) for one in document["settings"]}
    site = f"{drop_ins}/site/20.conf"
    assert [str(config), f"{drop_ins}/10-soft.conf", site] == document["files"]
    assert ("5s", str(config)) == by_key["reactor.housekeepingInterval"]
    assert (True, site) == by_key["reactor.dryRun"]
    assert (4, site) == by_key["reactor.journal.files"]
    assert ("16Mi", None) == by_key["reactor.journal.maxSize"]
    assert ("300s", None) == by_key["evictionPressureTransitionPeriod"]
    assert (10, None) == by_key["reactor.evictionsPerMinute"]
    assert ("off", None) == by_key["reactor.kernelKill"]
    assert "reactor.brake" not in by_key
    assert (["/node/jobs"], str(config)) == by_key["reactor.pods.parents"]


def test_a_default_parent_is_reported_as_what_it_comes_to(config, node, tmp_path):
    config.write_text("reactor: {nodeCgroup: /node}")
    document = in_force(load_settings(config), layers_of(config), node.tree, proc=tmp_path)
    by_key = {one["key"]: (one["value"], one["file"]) for one in document["settings"]}
    assert (["/node"], None) == by_key["reactor.pods.parents"]


def test_what_an_empty_mapping_does_not_say_is_a_default(config, node, tmp_path):
    config.write_text(
        "{mergeDefaultEvictionSettings: true, evictionHard: {}, "
        "reactor: {nodeCgroup: /node, kubernetes: {kubelet: {}, role: alongside}}}"
    )
    document = in_force(load_settings(config), layers_of(config), node.tree, proc=tmp_path)
    by_key = {one["key"]: (one["value"], one["file"]) for one in document["settings"]}
    assert ("120s", None) == by_key["reactor.kubernetes.leaseDuration"]
    assert ("0s", None) == by_key["reactor.kubernetes.evictedPodTTL"]
    assert ({}, str(config)) == by_key["reactor.kubernetes.kubelet"]
    assert (False, None) == by_key["reactor.kubernetes.kubelet.insecure"]
    assert ("alongside", str(config)) == by_key["reactor.kubernetes.role"]
    assert {None} == {one["file"] for one in document["thresholds"]}
    assert document["thresholds"]


def test_who_is_guarded_spared_and_never_touched(document):
    pods = {one["cgroup"]: one for one in document["pods"]}
    assert ["/node/jobs/hog", "/node/jobs/idle"] == sorted(pods)
    hog = pods["/node/jobs/hog"]
    assert (hog["used_bytes"], hog["request_bytes"], hog["is_guarded"]) == (200 * MIB, 64 * MIB, True)
    assert [{"cgroup": "/node/jobs/reactor.service", "because": "reactor's own cgroup"}] == document["never"]


def test_a_pod_that_a_manifest_makes_critical_is_spared(config, node, tmp_path):
    manifests = tmp_path / "m"
    manifests.mkdir()
    (manifests / "idle.yaml").write_text(
        "{metadata: {name: idle, annotations: {reactor/cgroup: /node/jobs/idle}}, "
        "spec: {priority: 2000000000, containers: []}}"
    )
    config.write_text(
        f"reactor: {{nodeCgroup: /node, pods: {{parents: [/node/jobs], manifests: {manifests}}}}}"
    )
    document = in_force(load_settings(config), layers_of(config), node.tree, proc=tmp_path)
    spared = {one["cgroup"]: one["because"] for one in document["pods"] if not one["is_guarded"]}
    assert {"/node/jobs/idle": "priority 2000000000"} == spared


def test_what_a_pattern_matches_is_shown(config, node, tmp_path, monkeypatch):
    monkeypatch.setattr("reactor.doctor.in_force.daemon_cgroup", lambda: None)
    node.add("/node/night/batch")
    config.write_text(
        "reactor: {nodeCgroup: /node, pods: {parents: ['/node/[jn]*', '/node/user-*/app.slice']}}"
    )
    document = in_force(load_settings(config), layers_of(config), node.tree, proc=tmp_path)
    matches = {"/node/[jn]*": ["/node/jobs", "/node/night"], "/node/user-*/app.slice": []}
    assert matches == document["pod_parent_matches"]
    assert ["/node/[jn]*", "/node/user-*/app.slice"] == document["pod_parents"]
    assert {"/node/jobs/hog", "/node/jobs/idle", "/node/night/batch"} == {
        one["cgroup"] for one in document["pods"]
    }
    assert ["/node/jobs/reactor.service"] == [one["cgroup"] for one in document["never"]]
    paper = io.StringIO()
    present(document, None, Screen(file=paper, width=80))
    assert "/node/[jn]* matches 2 cgroups now:\n  /node/jobs\n  /node/night\n" in paper.getvalue()
    assert "/node/user-*/app.slice matches 0 cgroups now\n" in paper.getvalue()
    assert any("matches no cgroup on this machine" in one for one in document["warnings"])


@pytest.mark.parametrize("columns", [80, 40])
def test_the_tables_fit_80_columns_and_never_break_a_path(document, config, drop_ins, columns):
    paper = io.StringIO()
    present(document, drop_ins, Screen(file=paper, width=columns))
    lines = [line.rstrip() for line in paper.getvalue().splitlines()]
    for path in (config, drop_ins / "10-soft.conf", drop_ins / "site/20.conf"):
        assert any(str(path) in line for line in lines)
    for cgroup in ("/node/jobs/hog", "/node/jobs/reactor.service"):
        assert any(line.split()[:1] == [cgroup] for line in lines)
    if columns == 80:
        assert max(len(line) for line in lines if str(config.parent) not in line) <= 80
        assert any(line.split() == ["dryRun", "true", "site/20.conf"] for line in lines)
        assert any(line.split()[:4] == ["memory.available", "hard", "10%", "102.4Mi"] for line in lines)


def test_show_prints_tables_or_json_and_names_errors(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text("evictionHard: {memory.available: 100Mi}\n")
    assert main(["config", "show", str(config)]) == 0
    assert "guarded: nobody" in capsys.readouterr().out
    assert main(["config", "show", "--output", "json", str(config)]) == 0
    assert [str(config)] == json.loads(capsys.readouterr().out)["files"]
    config.write_text("reactor: {dryrun: true}\n")
    assert main(["config", "show", str(config)]) == 2
    assert "did you mean dryRun?" in capsys.readouterr().err


def test_pods_of_which_one_process_is_killed_are_shown_with_the_rule_and_what_is_spared(
    config, node, tmp_path, monkeypatch
):
    monkeypatch.setattr("reactor.doctor.in_force.daemon_cgroup", lambda: None)
    rules = "processVictims: [hog, {unit: nobody, never: [mutter]}]"
    config.write_text(config.read_text().replace("parents: [/node/jobs]", f"parents: [/node/jobs], {rules}"))
    found = in_force(load_settings(config), layers_of(config), node.tree, proc=tmp_path)
    assert {"/node/jobs/hog": "process", "/node/jobs/idle": "pod"} == {
        one["cgroup"]: one["victim"] for one in found["pods"]
    }
    assert [("unit hog", []), ("unit nobody", ["mutter"])] == [
        (one["rule"], one["never"]) for one in found["process_victims"]
    ]
    assert "gnome-shell" in found["process_victims"][0]["built_in_never"]
    assert any("processVictims[1]: matches no pod" in one for one in found["warnings"])
    out = io.StringIO()
    present(found, None, Screen(file=out, width=120))
    text = out.getvalue()
    assert "ONE PROCESS IS KILLED BY" in text
    assert "/node/jobs/hog" in text
    assert "processes spared by any such rule: systemd" in text


def test_a_pattern_on_a_list_that_matches_no_pod_is_shown_and_no_warning(config, node, tmp_path, monkeypatch):
    monkeypatch.setattr("reactor.doctor.in_force.daemon_cgroup", lambda: None)
    monkeypatch.setattr("reactor.doctor.findings.daemon_cgroup", lambda: None)
    config.write_text(
        "evictionHard: {memory.available: 10%}\n"
        "reactor: {nodeCgroup: /node, pods: {parents: [/node/jobs], never: ['ho*', 'db*'], "
        "prefer: ['x*', hog]}}\n"
    )
    found = in_force(load_settings(config), layers_of(config), node.tree, proc=tmp_path)
    missing = ["reactor.pods.never[1]: unit db*", "reactor.pods.prefer[0]: unit x*"]
    assert missing == found["patterns_without_pod"]
    assert not [one for one in found["warnings"] if "matches no pod" in one]
    paper = io.StringIO()
    present(found, None, Screen(file=paper, width=80))
    assert "reactor.pods.never[1]: unit db* matches no pod now\n" in paper.getvalue()
