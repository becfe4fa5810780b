from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.workloads.manifests import ManifestDirectory

DATABASE = """\
apiVersion: v1
kind: Pod
metadata:
  name: database
  annotations: {reactor/cgroup: /pods/database}
spec:
  priority: 100
  containers:
  - name: postgres
    resources: {requests: {memory: 64Mi}}
"""


def test_pods_are_read_with_what_they_run_in(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(DATABASE)
    (tmp_path / "a.json").write_text(
        '{"metadata": {"name": "web", "annotations": {"reactor/unit": "web.service"}}}'
    )
    (tmp_path / "notes.txt").write_text("not a manifest")
    (tmp_path / ".hidden.yaml").write_text("not: [a manifest")
    directory = ManifestDirectory(str(tmp_path))
    web, database = directory.read()
    assert ("web", None, "web.service") == (web.pod.name, web.cgroup, web.unit)
    assert ("database", "/pods/database", 100) == (database.pod.name, database.cgroup, database.pod.priority)
    assert {} == directory.problems


def test_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(DATABASE)
    directory = ManifestDirectory(str(tmp_path))
    (first,) = directory.read()
    (second,) = directory.read()
    assert first is second
    path.write_text(DATABASE.replace("100", "101"))
    os.utime(path, ns=(1, 1))
    assert [101] == [manifest.pod.priority for manifest in directory.read()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metadata: {name: a}", "annotations: got neither"),
        (
            "metadata: {name: a, annotations: {reactor/cgroup: /p/a, reactor/unit: a.service}}",
            "annotations: got both",
        ),
        ("kind: Deployment\nmetadata: {name: a}", "kind: got 'Deployment'"),
        ("metadata: {name: a", "a.yaml:"),
        ("metadata: {name: a, name: b}", "each key once"),
        ("[1, 2]", "a.yaml[0]"),
        ("just text", "a.yaml[0]"),
        ("metadata: {annotations: {reactor/cgroup: /pods/a}}", "metadata.name"),
        ("\ud83d", "utf-8"),
        ("#" * (1 << 20) + "\n", "larger than 1 MiB"),
    ],
)
def test_wrong_manifest_is_named_and_costs_nothing_else(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.yaml").write_bytes(text.encode(errors="surrogatepass"))
    (tmp_path / "b.yaml").write_text(DATABASE)
    directory = ManifestDirectory(str(tmp_path))
    assert ["database"] == [manifest.pod.name for manifest in directory.read()]
    assert said in directory.problems[str(tmp_path / "a.yaml")]


def test_a_file_that_others_can_write_does_not_count_until_they_can_not(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(DATABASE)
    directory = ManifestDirectory(str(tmp_path))
    for spoil in (lambda: path.chmod(0o666), lambda: os.chown(path, 12345, -1)):
        spoil()
        assert () == ManifestDirectory(str(tmp_path)).read()
    assert () == directory.read()
    assert f"does not count: {path} belongs to uid 12345" in directory.problems[str(path)]
    os.chown(path, os.geteuid(), -1)
    path.chmod(0o644)
    assert 1 == len(directory.read())
    path.chmod(0o666)
    assert ["database"] == [one.pod.name for one in directory.read()]  # as it last was right
    assert directory.problems


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_that_others_can_write_is_named_and_what_was_known_stays(
    tmp_path: Path, mode: int
) -> None:
    (tmp_path / "a.yaml").write_text(DATABASE)
    directory = ManifestDirectory(str(tmp_path))
    known = directory.read()
    tmp_path.chmod(mode)
    (tmp_path / "b.yaml").write_text(DATABASE.replace("database", "other"))
    assert known == directory.read()
    assert "others may write it" in directory.problems[str(tmp_path)]
    assert () == ManifestDirectory(str(tmp_path)).read()
    tmp_path.chmod(0o755)
    assert 2 == len(directory.read())
    assert {} == directory.problems


def test_wrong_document_costs_no_other_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"metadata: {{name: a}}\n---\n{DATABASE}---\n")
    directory = ManifestDirectory(str(tmp_path))
    assert ["database"] == [manifest.pod.name for manifest in directory.read()]
    assert "a.yaml[0]" in directory.problems[str(tmp_path / "a.yaml")]


def test_file_that_becomes_wrong_counts_as_it_last_was_right(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(DATABASE)
    directory = ManifestDirectory(str(tmp_path))
    before = directory.read()
    path.write_text("metadata: {")
    assert before == directory.read() == directory.read()
    assert str(path) in directory.problems
    path.unlink()
    assert () == directory.read()
    assert {} == directory.problems


def test_unreadable_directory_is_named_and_what_was_known_stays(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    directory = ManifestDirectory(str(manifests))
    assert () == directory.read()
    assert str(manifests) in directory.problems
    manifests.mkdir()
    (manifests / "a.yaml").write_text(DATABASE)
    assert 1 == len(directory.read())
    assert {} == directory.problems
    manifests.rename(tmp_path / "away")
    assert 1 == len(directory.read())
    assert str(manifests) in directory.problems


def test_fifo_and_directory_of_that_name_hold_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "directory.yaml").mkdir()
    (tmp_path / "dangling.yaml").symlink_to("nowhere")
    directory = ManifestDirectory(str(tmp_path))
    assert () == directory.read()
    assert str(tmp_path / "directory.yaml") in directory.problems


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=60).map(lambda text: f"metadata: {{name: {text}}}".encode(errors="replace")),
        st.integers(0, len(DATABASE)).map(lambda cut: DATABASE[:cut].encode()),
    )
)
def test_arbitrary_files_never_raise(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.yaml").write_bytes(raw)
    directory = ManifestDirectory(str(tmp_path))
    directory.read()
    assert all(isinstance(problem, str) for problem in directory.problems.values())
