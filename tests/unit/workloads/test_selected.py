from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from reactor.model.pod_parents import PodParent
from reactor.workloads import selected
from reactor.workloads.selected import MOST_OF_A_PART, Selected, find_selected

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree


def find(fake: FakeTree, *texts: str) -> tuple[Mapping[str, Selected], dict[str, str]]:
    problems: dict[str, str] = {}
    finding = find_selected(fake.tree, [PodParent(text) for text in texts], problems)
    while True:
        try:
            next(finding)
        except StopIteration as over:
            return over.value, problems


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["/"], {"/"}),
        (["/a"], {"/a"}),
        (["/none", "/a/*/none"], set()),
        (["/a/*"], {"/a/one", "/a/two"}),
        (["/a/*/c*"], {"/a/one/c1", "/a/one/c2", "/a/two/c1"}),
        (["/*/one/c1", "/a/t*"], {"/a/one/c1", "/a/two"}),
    ],
)
def test_the_cgroups_that_are_named_or_match_are_found_and_no_files(
    fake: FakeTree, texts: list[str], expected: set[str]
) -> None:
    for cgroup in ("/a/one/c1", "/a/one/c2", "/a/two/c1", "/a/two/d1"):
        fake.add(cgroup)
    fake.file("/a", "three", "")
    found, problems = find(fake, *texts)
    assert expected == found.keys()
    assert {} == problems
    for cgroup, one in found.items():
        assert (cgroup, fake.directory(cgroup).stat().st_ino) == (one.cgroup, one.inode)
        assert str(fake.directory(cgroup)) == one.directory.rstrip("/")


def test_a_symbolic_link_is_no_cgroup(fake: FakeTree) -> None:
    fake.add("/a/one")
    (fake.directory("/a") / "link").symlink_to(fake.directory("/a/one"))
    assert {"/a/one"} == find(fake, "/a/*")[0].keys()


def test_of_a_part_that_is_not_roots_alone_so_many_are_taken_on_all_levels(fake: FakeTree) -> None:
    for number in range(MOST_OF_A_PART):
        for inner in "ab":
            (fake.directory("/u.service") / f"c{number}" / inner).mkdir(parents=True)
    found, problems = find(fake, "/u.service/*/*")
    assert MOST_OF_A_PART + 1 == len(found)
    assert ["/u.service"] == list(problems)
    assert found["/u.service"].inode == fake.directory("/u.service").stat().st_ino


def test_of_all_so_many_are_taken(fake: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selected, "MOST_OF_ALL", 5)
    for number in range(9):
        fake.directory(f"/a/c{number}").mkdir(parents=True)
    found, problems = find(fake, "/a/*")
    assert 5 == len(found)
    assert "more than 5 cgroups" in problems["/a/*"]
