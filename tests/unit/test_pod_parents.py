"""Parents of pods by path and by pattern: what they match, hold and overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.name_patterns import PodParent, fences
from reactor.model.settings import Settings

APPLICATIONS = "/user.slice/user-*.slice/user@*.service/app.slice"
OF_ONE_USER = "/user.slice/user-1000.slice/user@1000.service/app.slice"


def test_the_fence_of_a_pattern_is_what_stands_before_its_first_sign() -> None:
    assert ("/user.slice", "/machine.slice", "/") == fences(
        [APPLICATIONS, "/machine.slice", "/user.slice/*.slice", "/guarded-?.slice"]
    )


@pytest.mark.parametrize(
    ("parent", "cgroup", "is_parent", "holds"),
    [
        ("/pods", "/pods", True, False),
        ("/pods", "/pods/a", False, True),
        ("/pods", "/pods/a/b", False, True),
        ("/pods", "/podsx/a", False, False),
        ("/", "/a", False, True),
        ("/", "/", True, False),
        (APPLICATIONS, OF_ONE_USER, True, True),
        (APPLICATIONS, f"{OF_ONE_USER}/firefox.scope", False, True),
        (APPLICATIONS, "/user.slice/user-1000.slice/user@1000.service", False, False),
        (APPLICATIONS, "/user.slice/user-1000.slice/user@1000.service/session.slice/x", False, False),
        (APPLICATIONS, "/user.slice/user-1000.slice/session-1.scope", False, False),
        ("/a/*", "/a/x\ny", True, True),
        ("/a/*", "/a/\udcff/b", False, True),
        ("/a/[!b]", "/a/b/c", False, False),
        ("/a/[[]b]", "/a/[b]/c", False, True),
    ],
)
def test_what_a_parent_is_and_holds(parent: str, cgroup: str, is_parent: bool, holds: bool) -> None:  # noqa: FBT001
    assert (is_parent, holds) == (PodParent(parent).is_parent(cgroup), PodParent(parent).holds(cgroup))


@pytest.mark.parametrize("cgroup", ["/a/../etc", "/a//b", "/a/./b", "/a/b\0", "a/b/c", "/a/b/", "", "/"])
@pytest.mark.parametrize("parent", ["/a", "/a/*", "/*", "/*/*"])
def test_a_path_that_is_not_normal_is_held_by_none(parent: str, cgroup: str) -> None:
    assert not PodParent(parent).holds(cgroup)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("/a", "/a/b", False),  # paths may be nested: the inner one is no pod of the outer one
        ("/a/*", "/a/*", True),
        ("/a/*", "/a/b", True),
        ("/a/*", "/a", True),
        ("/", "/a/*", True),
        ("/a/*", "/a/b/c", True),
        ("/a/b*/c", "/a/b/c*/d", True),
        ("/a/b*/c", "/a/*/d", False),
        ("/a/b*", "/a/c*", False),
        ("/a/*/b", "/b/*", False),
        (APPLICATIONS, "/user.slice/user-*.slice/user@*.service/background.slice", False),
        (APPLICATIONS, "/system.slice", False),
    ],
)
def test_parents_that_have_the_same_pods_have_texts_that_overlap(one: str, other: str, overlap: bool) -> None:  # noqa: FBT001
    assert [overlap] * 2 == [
        PodParent(one).overlaps(PodParent(other)),
        PodParent(other).overlaps(PodParent(one)),
    ]


def test_what_all_pods_use_is_measured_at_the_fences_but_not_at_the_whole_machine() -> None:
    assert ("/user.slice",) == Settings(pod_parents=(APPLICATIONS,)).measured_parents
    assert () == Settings(pod_parents=("/a", "/user-*")).measured_parents
    assert ("/",) == Settings(pod_parents=("/",)).measured_parents


@given(st.text(alphabet="ab*?[]!-/.", max_size=12), st.text(alphabet="ab*[]/.", max_size=12))
def test_a_pattern_holds_nothing_outside_its_fence(pattern: str, cgroup: str) -> None:
    parent = PodParent(f"/{pattern}")
    inside = parent.fence.rstrip("/")
    assert not parent.holds(cgroup) or cgroup.startswith(f"{inside}/")
