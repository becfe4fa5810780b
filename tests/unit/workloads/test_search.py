"""Cgroups by pattern: which are found, also while they come and go, and whose bounds hold."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reactor.kernel.cgroup import CgroupVersion
from reactor.model.name_patterns import PodParent
from reactor.model.pod_lists import PodEntry, PodLists
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.workloads.cgroups import CgroupPods
from reactor.workloads.parents import MOST_ENTRIES, MOST_OF_A_PART
from reactor.workloads.search import Selected, find_selected, matches_of
from tests.support.this_machine import without_descriptors

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker

USER = "/user.slice/user-{0}.slice/user@{0}.service"
APPLICATIONS = "/user.slice/user-*.slice/user@*.service/app.slice"


@pytest.fixture
def small(make_tree: FakeTreeMaker) -> FakeTree:
    return make_tree(CgroupVersion.V2)


def listing_of(fake: FakeTree, tmp_path: Path, *parents: str) -> CgroupPods:
    return CgroupPods(fake.tree, Settings(pod_parents=parents), proc=tmp_path / "proc")


def found(listing: CgroupPods) -> list[str | None]:
    return [pod.cgroup for pod in listing.list()]


def refreshed(listing: CgroupPods) -> list[str | None]:
    return [pod.cgroup for pod in listing.refresh()]


def application(uid: int, name: str) -> str:
    return f"{USER.format(uid)}/app.slice/{name}"


def test_the_children_of_every_match_are_pods_and_nothing_beside_them(fake: FakeTree, tmp_path: Path) -> None:
    wanted = [application(1000, "browser.scope"), application(1000, "mail.service"), application(1001, "x")]
    for cgroup in (
        *wanted,
        f"{USER.format(1000)}/session.slice/shell.service",
        "/user.slice/user-1000.slice/session-1.scope",
        "/system.slice/app.slice/no",
        f"{wanted[0]}/inner",
    ):
        fake.add(cgroup)
    listing = listing_of(fake, tmp_path, APPLICATIONS)
    assert wanted == found(listing) == refreshed(listing)
    assert {APPLICATIONS: [f"{USER.format(uid)}/app.slice" for uid in (1000, 1001)]} == listing.matches
    assert {} == listing.problems


def test_who_logs_in_and_out_while_the_daemon_runs_is_seen_at_the_next_refresh(
    fake: FakeTree, tmp_path: Path
) -> None:
    listing = listing_of(fake, tmp_path, APPLICATIONS)
    assert [] == found(listing) == refreshed(listing)
    for step in ("/user.slice", "/user.slice/user-7.slice", USER.format(7), f"{USER.format(7)}/app.slice"):
        fake.add(step)
        assert [] == refreshed(listing)
    fake.add(application(7, "a"))
    assert [application(7, "a")] == refreshed(listing)
    fake.add(application(8, "b"))
    assert [application(7, "a"), application(8, "b")] == refreshed(listing)
    shutil.rmtree(fake.directory("/user.slice/user-7.slice"))
    assert [application(8, "b")] == refreshed(listing)
    fake.add(application(7, "c"))
    assert [application(7, "c"), application(8, "b")] == refreshed(listing) == found(listing)


def test_where_no_inotify_is_to_be_had_every_refresh_looks(
    fake: FakeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("reactor.kernel.directories.open_inotify", refuse)
    listing = listing_of(fake, tmp_path, APPLICATIONS)
    assert [] == found(listing)
    fake.add(application(7, "a"))
    assert [application(7, "a")] == refreshed(listing)
    shutil.rmtree(fake.directory("/user.slice/user-7.slice"))
    fake.add(application(8, "b"))
    assert [application(8, "b")] == refreshed(listing) == found(listing)


@pytest.mark.slow
def test_a_storm_of_changes_leaves_a_refresh_true(small: FakeTree, tmp_path: Path) -> None:
    """More events than are read one by one, and the queue of the kernel runs over."""
    small.add(application(7, "a"))
    listing = listing_of(small, tmp_path, APPLICATIONS)
    listing.list()
    directory = small.directory(f"{USER.format(7)}/app.slice")
    for rounds in (2_000, int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())):
        for _ in range(rounds):
            (directory / "x").mkdir()
            (directory / "x").rmdir()
        small.add(application(8, f"b{rounds}"))
        assert application(8, f"b{rounds}") in refreshed(listing)
    assert 3 == len(refreshed(listing))


def test_a_refresh_lists_only_what_has_changed(
    fake: FakeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid in range(1000, 1010):
        fake.add(application(uid, "a"))
    listing = listing_of(fake, tmp_path, APPLICATIONS)
    listing.list()
    read: list[str] = []
    scandir = os.scandir

    def counted(path: str) -> object:
        read.append(os.fspath(path))
        return scandir(path)

    monkeypatch.setattr("reactor.workloads.search.os.scandir", counted)
    assert 10 == len(refreshed(listing))
    assert [] == read
    fake.add(application(1003, "b"))
    assert 11 == len(refreshed(listing))
    assert [str(fake.directory(f"{USER.format(1003)}/app.slice"))] == read


def test_a_match_that_was_made_again_is_listed_again(fake: FakeTree, tmp_path: Path) -> None:
    fake.add(application(7, "a"))
    listing = listing_of(fake, tmp_path, APPLICATIONS)
    (before,) = listing.list()
    fake.directory(f"{USER.format(7)}/app.slice").rename(fake.tree.memory_root / "kept")
    fake.add(application(7, "a"))
    (after,) = listing.refresh()
    assert before.cgroup == after.cgroup
    assert before.uid != after.uid


def test_signs_stand_for_parts_of_one_component(fake: FakeTree, tmp_path: Path) -> None:
    for cgroup in ("/p/a1/x", "/p/a2/y", "/p/b1/z", "/p/a1/inner/a2/w", "/p/a10/v"):
        fake.add(cgroup)
    assert ["/p/a1/inner", "/p/a1/x", "/p/a2/y"] == found(listing_of(fake, tmp_path, "/p/[a]?"))
    assert ["/p/b1/z"] == found(listing_of(fake, tmp_path, "/p/[!a]*"))


def test_symlinks_and_files_match_nothing(fake: FakeTree, tmp_path: Path) -> None:
    fake.add("/other/user@7.service/app.slice/x")
    fake.add("/user.slice/user-7.slice")
    (fake.directory("/user.slice") / "user-8.slice").symlink_to(fake.directory("/other"))
    (fake.directory("/user.slice/user-7.slice") / "user@7.service").symlink_to(
        fake.directory("/other/user@7.service")
    )
    (fake.directory("/user.slice") / "user-9.slice").write_text("")
    listing = listing_of(fake, tmp_path, APPLICATIONS, "/user.slice/user-*.slice/*/app")
    assert [] == found(listing)


def test_odd_names_are_found_as_they_are(fake: FakeTree, tmp_path: Path) -> None:
    odd = ["/p/a\nb/\x1b[2J", f"/p/a{os.fsdecode(bytes([0xFF]))}/x"]
    for cgroup in odd:
        fake.add(cgroup)
    listing = listing_of(fake, tmp_path, "/p/a*")
    assert sorted(odd) == sorted(str(cgroup) for cgroup in found(listing))
    assert {} == listing.problems


def test_what_reactor_stands_on_is_no_pod_of_a_match(fake: FakeTree, tmp_path: Path) -> None:
    for cgroup in ("/s/reactor.service/guard", "/s/reactor.service/other", "/s/web.service/worker"):
        fake.add(cgroup)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(
        "4:memory:/s/reactor.service/guard\n0::/s/reactor.service/guard\n"
    )
    assert ["/s/reactor.service/other", "/s/web.service/worker"] == found(
        listing_of(fake, tmp_path, "/s/*.service")
    )


def test_names_below_a_match_count_for_as_much_as_who_gave_them(small: FakeTree, tmp_path: Path) -> None:
    """A user's `sshd.service` is no sshd, and what he calls a database is protected by no list."""
    for cgroup in (application(7, "sshd.service"), application(7, "db.service"), "/jobs/a/db.service"):
        small.add(cgroup)
    lists = PodLists(never=(PodEntry(unit="db.service"),))
    settings = Settings(pod_parents=(APPLICATIONS, "/jobs/*"), pod_lists=lists)
    pods = CgroupPods(small.tree, settings, proc=tmp_path / "proc").list()
    assert {"/jobs/a/db.service"} == {pod.cgroup for pod in pods if pod.critical_because is not None}


def test_a_directory_that_is_given_away_later_gives_no_names_that_count(
    small: FakeTree, tmp_path: Path
) -> None:
    small.add("/jobs/a/sshd.service")
    now = [100.0]
    settings = Settings(pod_parents=("/jobs/*",))
    listing = CgroupPods(small.tree, settings, proc=tmp_path / "proc", clock_seconds=lambda: now[0])
    assert [True] == [pod.critical_because is not None for pod in listing.list()]
    now[0] += 10  # it is not young any more
    assert [True] == [pod.critical_because is not None for pod in listing.list()]
    small.directory("/jobs/a").chmod(0o777)
    assert [False] == [pod.critical_because is not None for pod in listing.list()]


@pytest.mark.parametrize("name", ["memory.low", "memory.min", "memory.soft_limit_in_bytes"])
def test_what_a_user_asks_for_in_his_part_of_the_tree_does_not_protect_him(
    fake: FakeTree, tmp_path: Path, name: str
) -> None:
    if (name == "memory.soft_limit_in_bytes") is not (fake.tree.version is CgroupVersion.V1):
        return
    for cgroup in (application(7, "hog"), application(7, "of-root"), "/jobs/a/given", "/jobs/a/b"):
        fake.add(cgroup)
        fake.file(cgroup, name, f"{1 << 30}\n")
    for cgroup in (application(7, "hog"), "/jobs/a/given"):
        (fake.directory(cgroup) / name).chmod(0o666)
    listing = listing_of(fake, tmp_path, APPLICATIONS, "/jobs/*")
    for pods in (listing.list(), listing.refresh()):
        asked = {Resource.MEMORY: 1 << 30}
        assert {"hog": {}, "of-root": asked, "given": {}, "b": asked} == {
            pod.name: pod.requests for pod in pods
        }


def test_a_match_that_another_pattern_has_already_is_its_and_the_other_is_named(
    small: FakeTree, tmp_path: Path
) -> None:
    small.add("/p/ab/x")
    listing = listing_of(small, tmp_path, "/p/a*", "/p/*b")
    assert ["/p/ab/x"] == found(listing)
    assert {"/p/a*": ["/p/ab"], "/p/*b": []} == listing.matches
    assert {"/p/*b": "/p/ab: its pods are those of /p/a*, which matches there too"} == listing.problems


@pytest.mark.parametrize("parents", [("/p/a*", "/p/*b/in"), ("/p/*b/in", "/p/a*")])
def test_who_makes_a_match_inside_another_gets_nothing_out_of_it(
    small: FakeTree, tmp_path: Path, parents: tuple[str, str]
) -> None:
    for cgroup in ("/p/ab/hog", "/p/ab/in/x"):
        small.add(cgroup)
    listing = listing_of(small, tmp_path, *parents)
    assert ["/p/ab/hog", "/p/ab/in"] == found(listing)
    assert "/p/ab/in: its pods are those of /p/a*" in listing.problems["/p/*b/in"]


def test_a_user_with_too_many_pods_is_one_and_others_keep_theirs(small: FakeTree, tmp_path: Path) -> None:
    small.add(application(8, "a"))
    small.add(application(7, "a"))
    many = small.directory(f"{USER.format(7)}/app.slice")
    for number in range(MOST_OF_A_PART):
        (many / f"flood-{number}").mkdir()
    listing = listing_of(small, tmp_path, APPLICATIONS)
    (one, other) = listing.list()
    assert [f"{USER.format(7)}/app.slice", application(8, "a")] == [one.cgroup, other.cgroup]
    assert many.stat().st_ino == one.cgroup_inode
    assert f"{one.cgroup} is one pod as a whole" in listing.problems[USER.format(7)]
    shutil.rmtree(many / "flood-0")
    assert MOST_OF_A_PART + 1 == len(listing.refresh())
    listing.list()
    assert {} == {name: why for name, why in listing.problems.items() if "as a whole" in why}


def test_matches_that_a_user_makes_share_his_bound_and_none_of_them_escapes(
    small: FakeTree, tmp_path: Path
) -> None:
    of_user = f"{USER.format(7)}/app.slice"
    for match in ("a", "b", "c"):
        small.add(f"{of_user}/{match}")
        for number in range(MOST_OF_A_PART // 2):
            (small.directory(f"{of_user}/{match}") / f"p{number}").mkdir()
    pods = [str(cgroup) for cgroup in found(listing_of(small, tmp_path, f"{APPLICATIONS}/*"))]
    assert MOST_OF_A_PART + 1 == len(pods)
    assert f"{of_user}/c" in pods


def test_of_too_many_matches_each_is_one_pod_that_nothing_is_read_of(small: FakeTree, tmp_path: Path) -> None:
    many = small.directory(USER.format(7))
    many.mkdir(parents=True)
    for number in range(MOST_ENTRIES + 10):
        (many / f"a{number}").mkdir()
    listing = listing_of(small, tmp_path, "/user.slice/user-*.slice/user@*.service/a*")
    assert MOST_ENTRIES == len(listing.list())
    assert "finds not all" in listing.problems[USER.format(7)]


def test_what_roots_names_match_has_no_bound(small: FakeTree, tmp_path: Path) -> None:
    small.add("/p/a")
    for number in range(MOST_OF_A_PART + 10):
        (small.directory("/p/a") / f"p{number}").mkdir()
    assert MOST_OF_A_PART + 10 == len(found(listing_of(small, tmp_path, "/p/*")))


def test_of_a_directory_that_a_user_fills_no_more_is_read_than_its_bound_and_that_is_said(
    small: FakeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reactor.workloads.parents.MOST_ENTRIES", 100)
    assert MOST_ENTRIES > 100
    small.add(f"{USER.format(7)}/app.slice")
    for number in range(200):
        (small.directory(USER.format(7)) / f"flood-{number}").mkdir()
    small.add(application(8, "a"))
    small.add(application(7, "a"))
    listing = listing_of(small, tmp_path, "/user.slice/user-*.slice/user@*.service/a*")
    assert application(8, "a") in found(listing)
    assert "finds not all" in listing.problems[USER.format(7)]
    # A name is looked up, however much lies beside it.
    assert application(7, "a") in found(listing_of(small, tmp_path, APPLICATIONS))


def test_a_match_that_cannot_be_listed_keeps_the_pods_that_were_known(fake: FakeTree, tmp_path: Path) -> None:
    fake.add(application(7, "a"))
    fake.add(application(8, "b"))
    listing = listing_of(fake, tmp_path, APPLICATIONS)
    before = listing.list()
    fake.add(application(8, "c"))
    with without_descriptors():
        refreshed = listing.refresh()
    assert {pod.uid for pod in before} == {pod.uid for pod in refreshed}
    assert all(pod.critical_because is not None for pod in refreshed), "they may not be all"
    assert f"{USER.format(8)}/app.slice" in listing.problems
    assert [application(7, "a"), application(8, "b"), application(8, "c")] == found(listing)
    assert {} == listing.problems


def test_a_directory_that_goes_while_it_is_listed_is_no_problem(
    fake: FakeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid in (7, 8):
        fake.add(application(uid, "a"))
    scandir = os.scandir

    def gone_under(path: str | int) -> object:
        if not isinstance(path, int) and "user-7" in os.fspath(path):
            shutil.rmtree(fake.directory("/user.slice/user-7.slice"), ignore_errors=True)
        return scandir(path)

    monkeypatch.setattr("reactor.workloads.search.os.scandir", gone_under)
    listing = listing_of(fake, tmp_path, APPLICATIONS)
    assert [application(8, "a")] == found(listing)
    assert {} == listing.problems


def test_matches_are_found_without_a_listing_too(fake: FakeTree) -> None:
    for uid in (7, 8):
        fake.add(application(uid, "a"))
    assert ("/named", *(f"{USER.format(uid)}/app.slice" for uid in (7, 8))) == matches_of(
        fake.tree, ["/named", APPLICATIONS]
    )


async def test_a_manifest_may_name_a_unit_in_a_match(small: FakeTree, tmp_path: Path) -> None:
    small.add(application(7, "web.service"))
    small.add("/other/web.service")
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    for name, unit in (("web", "web.service"), ("no", "no.service")):
        (manifests / f"{name}.yaml").write_text(
            f"metadata: {{name: {name}, uid: {name}, annotations: {{reactor/unit: {unit}}}}}\n"
            "spec: {priority: 9, containers: [{name: c}]}\n"
        )
    settings = Settings(pod_parents=(APPLICATIONS,), manifests_path=str(manifests))
    workloads = CgroupPods(small.tree, settings, proc=tmp_path / "proc")
    assert [("web", application(7, "web.service"), 9)] == [
        (pod.name, pod.cgroup, pod.priority) for pod in await workloads.listed()
    ]


def selected(fake: FakeTree, *texts: str) -> tuple[Mapping[str, Selected], dict[str, str]]:
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
    found, problems = selected(fake, *texts)
    assert expected == found.keys()
    assert {} == problems
    for cgroup, one in found.items():
        assert (cgroup, fake.directory(cgroup).stat().st_ino) == (one.cgroup, one.inode)
        assert str(fake.directory(cgroup)) == one.directory.rstrip("/")


def test_a_symbolic_link_is_no_cgroup(fake: FakeTree) -> None:
    fake.add("/a/one")
    (fake.directory("/a") / "link").symlink_to(fake.directory("/a/one"))
    assert {"/a/one"} == selected(fake, "/a/*")[0].keys()


def test_of_a_part_that_is_not_roots_alone_so_many_are_taken_on_all_levels(fake: FakeTree) -> None:
    for number in range(MOST_OF_A_PART):
        for inner in "ab":
            (fake.directory("/u.service") / f"c{number}" / inner).mkdir(parents=True)
    found, problems = selected(fake, "/u.service/*/*")
    assert MOST_OF_A_PART + 1 == len(found)
    assert ["/u.service"] == list(problems)
    assert found["/u.service"].inode == fake.directory("/u.service").stat().st_ino


def test_of_all_so_many_are_taken(fake: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reactor.workloads.search.MOST_SELECTED", 5)
    for number in range(9):
        fake.directory(f"/a/c{number}").mkdir(parents=True)
    found, problems = selected(fake, "/a/*")
    assert 5 == len(found)
    assert "more than 5 cgroups" in problems["/a/*"]


def test_of_a_part_whose_entries_are_too_many_to_read_the_whole_is_taken_besides(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reactor.workloads.parents.MOST_ENTRIES", 20)
    for number in range(40):
        (fake.directory("/u.service") / f"flood-{number}" / "a").mkdir(parents=True)
    found, problems = selected(fake, "/u.service/*/a")
    assert "/u.service" in found
    assert 20 + 1 >= len(found)
    assert "so many cgroups that a rule is not for each" in problems["/u.service"]


def test_a_cgroup_that_a_rule_names_is_found_however_much_its_owner_puts_beside_it(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reactor.workloads.parents.MOST_ENTRIES", 20)
    fake.add("/u.service/one/named")
    for number in range(40):
        (fake.directory("/u.service/one") / f"flood-{number}").mkdir()
    found, problems = selected(fake, "/u.service/*/named")
    assert (["/u.service/one/named"], {}) == (list(found), problems)
