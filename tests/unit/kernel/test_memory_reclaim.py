from __future__ import annotations

import errno
from pathlib import Path

import pytest

from reactor.errors import RefusedError
from reactor.kernel import memory_control
from reactor.kernel.cgroup import CgroupVersion
from reactor.kernel.memory_control import reclaim, unavailable_because

MIB = 1 << 20


@pytest.fixture
def pods(make_tree):
    fake = make_tree(CgroupVersion.V2)
    fake.add("/pods/a")
    return fake.tree


@pytest.fixture
def answers(monkeypatch):
    """What the kernel answers to each write, by errno (0: it is done); what was written is in `asked`."""

    class Answers:
        def __init__(self) -> None:
            self.asked: list[str] = []
            self.numbers: list[int] = []

        def write(self, path: Path, text: str) -> None:
            self.asked.append(f"{path.parent.name}/{path.name} {text}")
            number = self.numbers.pop(0) if self.numbers else 0
            if number:
                raise OSError(number, "refused", str(path))

    found = Answers()
    monkeypatch.setattr(memory_control, "write_file", found.write)
    return found


def test_it_needs_cgroup_v2_and_a_kernel_that_has_it(make_tree) -> None:
    assert "cgroup v1" in (unavailable_because(make_tree(CgroupVersion.V1).tree) or "")
    fake = make_tree(CgroupVersion.V2)
    assert "5.19" in (unavailable_because(fake.tree) or "")
    fake.file("/", "memory.reclaim", "")
    assert unavailable_because(fake.tree) is None


def test_amount_is_asked_for_once(pods, answers) -> None:
    assert reclaim(pods, "/pods/a", MIB)
    assert answers.asked == [f"a/memory.reclaim {MIB}"]


def test_less_than_that_is_no_error(pods, answers) -> None:
    answers.numbers = [errno.EAGAIN]
    assert not reclaim(pods, "/pods/a", MIB, to_swap=True)
    assert answers.asked == [f"a/memory.reclaim {MIB} swappiness=200"]


def test_kernel_that_knows_no_swappiness_there_is_asked_without(pods, answers) -> None:
    answers.numbers = [errno.EINVAL]
    assert reclaim(pods, "/pods/a", MIB, to_swap=True)
    assert answers.asked[1:] == [f"a/memory.reclaim {MIB}"]


@pytest.mark.parametrize("to_swap", [True, False])
def test_any_other_error_is_the_callers(pods, answers, to_swap) -> None:
    answers.numbers = [errno.ENOENT]
    with pytest.raises(FileNotFoundError):
        reclaim(pods, "/pods/a", MIB, to_swap=to_swap)


def test_path_that_is_not_plain_is_refused(pods, answers) -> None:
    with pytest.raises(RefusedError):
        reclaim(pods, "/pods/../a", MIB)
    assert answers.asked == []
