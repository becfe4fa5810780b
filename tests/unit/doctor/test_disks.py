"""Thresholds for filesystems that can evict no pod of a plain node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reactor.cli import main
from reactor.config.settings import settings_from_text
from reactor.doctor.disks import without_holders_by_name

HARD = "evictionHard: {nodefs.available: 10%, imagefs.available: 15%, memory.available: 100Mi}"
BOTH = {"threshold nodefs.available<10%", "threshold imagefs.available<15%"}


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
