from __future__ import annotations

import json

from reactor.cli import main
from reactor.config.settings import settings_from_text
from reactor.doctor.thresholds import absurd_on_this_machine
from reactor.kernel.cgroup import CgroupVersion

MIB = 1 << 20
MORE_THAN_ANY_MACHINE = "8Ei"


def test_a_parent_whose_limit_is_below_the_threshold_is_named(make_tree):
    tree = make_tree(CgroupVersion.V1)
    tree.add("/pods", usage_bytes=10 * MIB)
    tree.tree.set_memory_limit("/pods", 300 * MIB)
    text = "{evictionHard: {memory.available: 500Mi}, enforceNodeAllocatable: [pods], "
    settings = settings_from_text(text + "reactor: {nodeCgroup: /pods, pods: {parents: [/pods]}}}", "f")

    found = absurd_on_this_machine(settings, tree.tree)

    assert list(found) == ["threshold memory.available<500Mi", "threshold allocatableMemory.available<500Mi"]
    assert "below the 300Mi that the node has" in found["threshold memory.available<500Mi"]


def test_an_absurd_threshold_is_warned_of_and_no_error(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text("evictionHard: {nodefs.available: 100.0%}\n")

    assert main(["config", "check", str(config)]) == 0

    told = capsys.readouterr().err
    assert "threshold nodefs.available<100.0%: on this machine ignored: it is not below" in told


def test_the_doctor_names_absurd_thresholds_in_both_of_its_outputs(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(f"evictionHard: {{nodefs.available: {MORE_THAN_ANY_MACHINE}}}\n")
    name = f"threshold nodefs.available<{MORE_THAN_ANY_MACHINE}"

    main(["doctor", "--config", str(config), "--output", "json"])
    assert name in json.loads(capsys.readouterr().out)["absurd_thresholds"]

    main(["doctor", "--config", str(config)])
    assert f"{name}: ignored" in " ".join(capsys.readouterr().out.split())
