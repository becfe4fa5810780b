"""Who is guarded, and what of it a machine can't do without."""

from __future__ import annotations

import pytest

from reactor.doctor.guarded import GuardedPod
from reactor.model.pod_lists import BUILT_IN_NEVER
from reactor.model.pods import Pod


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
