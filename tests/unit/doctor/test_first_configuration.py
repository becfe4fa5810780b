"""`reactor config init`: valid, without a warning, safe, and never over another file."""

from __future__ import annotations

import dataclasses
import os

import pytest

from reactor.cli import main
from reactor.config.settings import settings_from_text
from reactor.doctor.first_configuration import Machine, first_configuration, warnings, write
from reactor.errors import ConfigError
from reactor.kernel.cgroup import CgroupVersion

MIB = 1 << 20


@pytest.fixture(params=list(CgroupVersion))
def machine(request, make_tree):
    tree = make_tree(request.param)
    for cgroup in ("/", "/system.slice", "/system.slice/ssh.service", "/machine.slice", "/jobs"):
        tree.add(cgroup)
    return Machine(
        tree=tree.tree,
        has_systemd=True,
        memory_bytes=4096 * MIB,
        kernel_bytes=100 * MIB,
        parents=("/machine.slice",),
        others={"/jobs": 3},
    )


def without_thresholds(said):
    """Return the warnings but for those of thresholds, which are about the machine that runs the test."""
    return [one for one in said if "threshold" not in one]


def test_it_guards_containers_alone_and_starts_as_a_dry_run(machine):
    text = first_configuration(machine)
    settings = settings_from_text(text, "f")
    assert ("/machine.slice",) == settings.pod_parents
    assert settings.dry_run
    assert [] == without_thresholds(warnings(text, machine))


def test_the_threshold_follows_from_the_size_and_what_the_kernel_holds(machine):
    def memory(**changes):
        settings = settings_from_text(first_configuration(dataclasses.replace(machine, **changes)), "f")
        return next(str(one) for one in settings.eviction.thresholds if "memory" in one.signal)

    assert memory() == "memory.available<270Mi"  # 4 % are 163.8Mi
    assert memory(memory_bytes=512 * MIB) == "memory.available<200Mi"
    assert memory(memory_bytes=512 * 1024 * MIB) == "memory.available<1130Mi"
    assert memory(memory_bytes=256 * MIB, kernel_bytes=200 * MIB) == "memory.available<128Mi"


def test_a_machine_without_containers_has_nobody_guarded_and_is_told_what_could_be(machine):
    text = first_configuration(dataclasses.replace(machine, parents=()))
    assert () == settings_from_text(text, "f").pod_parents
    assert [] == without_thresholds(warnings(text, machine))
    assert "#   /jobs    # 3 children now" in text
    assert "Slice=guarded.slice" in text


def test_a_slice_that_systemd_makes_on_demand_is_guarded_before_it_is_there(machine, monkeypatch):
    monkeypatch.setattr("reactor.doctor.findings.daemon_cgroup", lambda: "/system.slice/reactor.service")
    text = first_configuration(dataclasses.replace(machine, parents=("/machine.slice", "/guarded.slice")))
    assert ("/machine.slice", "/guarded.slice") == settings_from_text(text, "f").pod_parents
    assert [] == without_thresholds(warnings(text, machine))


def test_a_kubernetes_node_has_the_kubelets_thresholds(machine, tmp_path):
    kubelet = tmp_path / "config.yaml"
    kubelet.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 110\n"
        "evictionHard: {memory.available: 333Mi, nodefs.available: 7%}\ncgroupRoot: /\n"
        "systemReserved: {memory: 1Gi}\n"
    )
    node = dataclasses.replace(
        machine, is_kubernetes=True, kubelet_config=kubelet, kubeconfig="/etc/kubernetes/kubelet.conf"
    )
    text = first_configuration(node)
    settings = settings_from_text(text, "f")
    assert "memory.available<333Mi" in map(str, settings.eviction.thresholds)
    assert settings.reserved_memory_bytes == 1024 * MIB
    assert settings.kubernetes is not None
    assert settings.kubernetes.kubeconfig_path == "/etc/kubernetes/kubelet.conf"
    assert "maxPods" not in text


def test_a_kubernetes_node_whose_kubelet_says_nothing_has_thresholds_by_its_size(machine, tmp_path):
    kubelet = tmp_path / "config.yaml"
    for content in ("kind: KubeletConfiguration\n", "evictionHard: {nonsense: 1}\n", "["):
        kubelet.write_text(content)
        text = first_configuration(dataclasses.replace(machine, is_kubernetes=True, kubelet_config=kubelet))
        settings = settings_from_text(text, "f")
        assert "memory.available<270Mi" in map(str, settings.eviction.thresholds)
        assert settings.kubernetes is not None


def test_thresholds_are_taken_from_a_result_of_tune(machine, tmp_path):
    tuned = tmp_path / "reactor.yaml"
    tuned.write_text(
        'evictionHard:\n  "memory.available": "410Mi"\nmergeDefaultEvictionSettings: true\n'
        'evictionSoft:\n  "memory.available": "900Mi"\n'
        'evictionSoftGracePeriod:\n  "memory.available": "20s"\n'
        "evictionMaxPodGracePeriod: 5\nreactor:\n  brake: hard\n"
    )
    text = first_configuration(machine, tuned)
    settings = settings_from_text(text, "f")
    assert {"memory.available<410Mi", "memory.available<900Mi"} <= set(map(str, settings.eviction.thresholds))
    assert (settings.brake, settings.eviction.max_pod_grace_period_seconds) == ("hard", 5)
    assert ("/machine.slice",) == settings.pod_parents
    assert f"# From {tuned}." in text


@pytest.mark.parametrize("content", ["reactor: {dryRun: true}\n", "evictionHard: {memory.available: 1Xi}\n"])
def test_a_file_without_thresholds_or_with_wrong_ones_is_refused(machine, tmp_path, content):
    (tmp_path / "tuned.yaml").write_text(content)
    with pytest.raises(ConfigError):
        first_configuration(machine, tmp_path / "tuned.yaml")


def test_a_file_is_never_overwritten_without_force(tmp_path):
    path = tmp_path / "etc" / "config.yaml"
    write("one\n", path, force=False)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("one\n", 0o644)
    with pytest.raises(FileExistsError):
        write("two\n", path, force=False)
    assert (path.read_text(), os.listdir(path.parent)) == ("one\n", ["config.yaml"])
    write("two\n", path, force=True)
    assert (path.read_text(), os.listdir(path.parent)) == ("two\n", ["config.yaml"])


def test_the_command_refuses_a_file_that_exists_and_names_force(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text("mine\n")
    assert main(["config", "init", str(path)]) == 1
    assert f"{path}: exists; --force replaces it" in capsys.readouterr().err
    assert path.read_text() == "mine\n"
    assert main(["config", "init", "--force", str(path)]) == 0
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().err == ""
