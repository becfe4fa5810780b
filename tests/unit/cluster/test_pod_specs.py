"""What the kubelet's log directories and the manifests of static pods tell of pods."""

from __future__ import annotations

import os

from reactor.cluster.pod_specs import NodeFilesWatch, read_node_files
from reactor.model.pods import NodeFiles
from tests.support.waiting import until


def test_pods_are_named_by_their_log_directories_but_for_a_uid_that_two_of_them_claim(tmp_path):
    for name in ("shop_web_u1", "shop_other_u2", "bank_web_u2", "no-pod", "a_b_c_d"):
        (tmp_path / name).mkdir()
    assert read_node_files(None, tmp_path) == NodeFiles(names={"u1": ("shop", "web")})


def test_static_pods_are_known_by_the_uids_in_their_manifests(tmp_path):
    (tmp_path / "one.yaml").write_text("kind: Pod\nmetadata: {name: a, uid: given}\n")
    (tmp_path / "two.yaml").write_text("kind: Pod\nmetadata: {name: b}\n")
    (tmp_path / "broken.yaml").write_text("{")
    os.mkfifo(tmp_path / "fifo.yaml")
    assert read_node_files(str(tmp_path), tmp_path / "none").static_uids == {"given"}


async def test_a_change_of_the_files_is_reported_once(tmp_path, nursery):
    changes = list[NodeFiles]()
    watch = NodeFilesWatch(None, tmp_path, 0.01, lambda: changes.append(watch.files))
    nursery.start_soon(watch.run)
    for uid in ("u1", "u2"):
        (tmp_path / f"shop_web_{uid}").mkdir()
        await until(lambda uid=uid: uid in watch.files.names)
    assert [sorted(files.names) for files in changes] == [["u1"], ["u1", "u2"]]
