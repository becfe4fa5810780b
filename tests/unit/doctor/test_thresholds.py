from __future__ import annotations

import json
from pathlib import Path

import pytest

from reactor.cli import main
from reactor.config.settings import settings_from_text
from reactor.doctor.thresholds import (
    absurd_on_this_machine,
    late_on_this_machine,
    without_holders_by_name,
    without_swap_on_this_machine,
)
from reactor.kernel.cgroup import CgroupVersion

MIB = 1 << 20
MORE_THAN_ANY_MACHINE = "8Ei"

HARD = "evictionHard: {nodefs.available: 10%, imagefs.available: 15%, memory.available: 100Mi}"
BOTH = {"threshold nodefs.available<10%", "threshold imagefs.available<15%"}


def test_a_parent_whose_limit_is_below_the_threshold_is_named(make_tree):
    tree = make_tree(CgroupVersion.V1)
    tree.add("/pods", usage_bytes=10 * MIB)
    tree.tree.set_memory_limit("/pods", 300 * MIB)
    text = "{evictionHard: {memory.available: 500Mi}, enforceNodeAllocatable: [pods], "
    settings = settings_from_text(text + "reactor: {nodeCgroup: /pods, pods: {parents: [/pods]}}}", "f")

    found = absurd_on_this_machine(settings, tree.tree)

    assert list(found) == ["threshold memory.available<500Mi", "threshold allocatableMemory.available<500Mi"]
    assert "below the 300Mi that the node has" in found["threshold memory.available<500Mi"]


def a_machine(proc, *, slab_mib):
    """Write a /proc of 4 GiB where processes and files use 2 GiB, and slab as much as is said."""
    proc.mkdir(exist_ok=True)
    lines = {"MemTotal": 4096, "MemFree": 1700, "Buffers": 0, "Cached": 1024, "AnonPages": 1024}
    lines |= {"Inactive(file)": 512, "SReclaimable": 100, "SUnreclaim": slab_mib, "PageTables": 10}
    (proc / "meminfo").write_text("".join(f"{name}: {mib << 10} kB\n" for name, mib in lines.items()))
    return proc


@pytest.mark.parametrize("version", list(CgroupVersion))
@pytest.mark.parametrize(("slab_mib", "is_late"), [(190, True), (180, False)])
def test_a_threshold_that_the_kernels_own_memory_hides_is_named(
    make_tree, tmp_path, version, slab_mib, is_late
):
    tree = make_tree(version)
    tree.add("/", usage_bytes=2048 * MIB, inactive_file_bytes=512 * MIB)
    settings = settings_from_text("{evictionHard: {memory.available: 200Mi, pid.available: 5%}}", "f")

    found = late_on_this_machine(settings, tree.tree, proc=a_machine(tmp_path / "proc", slab_mib=slab_mib))

    assert list(found) == ["threshold memory.available<200Mi"] * is_late
    assert all("200Mi of what counts as available" in why for why in found.values())


def test_no_threshold_of_a_virtual_node_is_hidden_by_the_kernels_memory(make_tree, tmp_path):
    tree = make_tree(CgroupVersion.V2)
    tree.add("/pods")
    settings = settings_from_text(
        "{evictionHard: {memory.available: 1Mi}, reactor: {nodeCgroup: /pods}}", "f"
    )
    proc = a_machine(tmp_path / "proc", slab_mib=1000)
    assert {} == late_on_this_machine(settings, tree.tree, proc=proc)


def test_what_can_not_be_observed_is_not_judged(make_tree, tmp_path):
    settings = settings_from_text("{evictionHard: {memory.available: 1Mi}}", "f")
    assert {} == late_on_this_machine(settings, make_tree(CgroupVersion.V2).tree, proc=tmp_path)


def test_an_absurd_threshold_is_warned_of_and_no_error(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text("evictionHard: {nodefs.available: 100.0%, memory.available: 1Mi}\n")

    assert main(["config", "check", str(config)]) == 0

    told = capsys.readouterr()
    assert "threshold nodefs.available<100.0%: on this machine ignored: it is not below" in told.err
    assert "nodefs.available<100.0% (ignored)" in told.out
    assert "memory.available<1Mi (ignored)" not in told.out


def test_the_doctor_names_absurd_thresholds_in_both_of_its_outputs(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(f"evictionHard: {{nodefs.available: {MORE_THAN_ANY_MACHINE}}}\n")
    name = f"threshold nodefs.available<{MORE_THAN_ANY_MACHINE}"

    main(["doctor", "--config", str(config), "--output", "json"])
    assert name in json.loads(capsys.readouterr().out)["absurd_thresholds"]

    main(["doctor", "--config", str(config)])
    assert f"{name}: ignored" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("meminfo", "is_named"),
    [("SwapTotal: 0 kB\nSwapFree: 0 kB\n", True), ("", True), ("SwapTotal: 8 kB\nSwapFree: 8 kB\n", False)],
)
def test_a_threshold_on_swap_is_named_where_the_machine_has_none(tmp_path, meminfo, is_named):
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\n{meminfo}")
    text = "{evictionHard: {swap.available: 10%, memory.available: 1Mi}}"
    found = without_swap_on_this_machine(settings_from_text(text, "f"), proc=tmp_path)
    assert list(found) == ["threshold swap.available<10%"] * is_named
    assert {} == without_swap_on_this_machine(settings_from_text("{}", "f"), proc=tmp_path)


def test_swap_that_can_not_be_read_is_not_judged(tmp_path):
    settings = settings_from_text("{evictionHard: {swap.available: 10%}}", "f")
    assert {} == without_swap_on_this_machine(settings, proc=tmp_path)


def test_a_threshold_as_mem_available_counts_is_hidden_by_no_memory_of_the_kernels(make_tree, tmp_path):
    tree = make_tree(CgroupVersion.V1)
    tree.add("/", usage_bytes=2048 * MIB)
    text = "{evictionHard: {memory.available: 1Mi}, reactor: {memoryAvailable: memAvailable}}"
    proc = a_machine(tmp_path / "proc", slab_mib=1000)
    assert {} == late_on_this_machine(settings_from_text(text, "f"), tree.tree, proc=proc)


def _manifest(directory: Path, where: str, volume: str) -> None:
    directory.mkdir()
    manifest = {
        "metadata": {"name": "a", "annotations": {"reactor/unit": "a.service", where: volume}},
        "spec": {
            "containers": [{"name": "main"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "host", "hostPath": {"path": "/x/y"}}],
        },
    }
    (directory / "a.json").write_text(json.dumps(manifest))


def _named(section: str) -> set[str]:
    text = f"{HARD}\nreactor: {{pods: {{parents: [/system.slice]}}, {section}}}"
    return set(without_holders_by_name(settings_from_text(text, "f.yaml")))


def test_without_manifests_none_can_evict_a_pod() -> None:
    assert BOTH == _named("metrics: off")


@pytest.mark.parametrize(
    ("where", "volume", "named"),
    [
        ("reactor/volumes", "scratch=/var/lib/a", set()),
        ("reactor/rootfs", "main=/var/lib/a", set()),
        ("reactor/volumes", "host=/var/lib/a", BOTH),
        ("reactor/logs", "main=/var/log/a", BOTH),
    ],
)
def test_a_manifest_counts_if_it_names_files_that_are_removed_with_its_pod(
    tmp_path: Path, where: str, volume: str, named: set[str]
) -> None:
    directory = tmp_path / "manifests"
    _manifest(directory, where, volume)
    text = f"{HARD}\nreactor: {{pods: {{parents: [/system.slice], manifests: {directory}}}}}"
    assert named == set(without_holders_by_name(settings_from_text(text, "f.yaml")))


def test_a_threshold_with_commands_is_there_for_them() -> None:
    assert set() == _named("reclaim: {nodefs: [/bin/true]}")  # images lie with the node's files
    assert {"threshold nodefs.available<10%"} == _named(
        "reclaim: {imagefs: [/bin/true]}, layout: dedicated, filesystems: {imagefs: /images}"
    )


def test_on_a_kubernetes_node_and_where_reactor_only_observes_nothing_is_named() -> None:
    for section in ("kubernetes: {}", "pods: {parents: []}"):
        settings = settings_from_text(f"{HARD}\nreactor: {{{section}}}", "f.yaml")
        assert {} == without_holders_by_name(settings)


@pytest.mark.parametrize("key", ["evictionHard", "evictionSoft"])
def test_config_check_warns_of_it_by_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"{key}: {{imagefs.available: 35%}}\nevictionSoftGracePeriod: {{imagefs.available: 1m}}\n"
        "reactor: {pods: {parents: [/system.slice]}}\n"
    )
    assert main(["config", "check", str(config)]) == 0
    said = capsys.readouterr().err
    assert f'{key}["imagefs.available"]: can evict no pod on this node' in said


def test_doctor_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"{HARD}\nreactor: {{pods: {{parents: [/system.slice]}}}}\n")
    main(["doctor", "--config", str(config), "--output", "json"])
    assert BOTH == set(json.loads(capsys.readouterr().out)["thresholds_without_files"])
