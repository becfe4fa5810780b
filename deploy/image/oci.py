"""A directory as a container image: an archive in the OCI image layout, one layer, the same for the same input.

Source: the OCI image specification's image-layout.md, manifest.md and config.md.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What is said of an image: its name, how it is run, and the time in seconds that all its files bear."""

    tag: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    epoch: int
    architecture: str = "amd64"


def write_archive(root: Path, image: Image, archive: Path) -> None:
    """Write the directory as an archive; a file that is there is replaced when the new one is whole."""
    plain = _layer(root, image.epoch)
    packed = gzip.compress(plain, mtime=0)
    configuration = _json(
        {
            "created": datetime.fromtimestamp(image.epoch, UTC).isoformat(),
            "architecture": image.architecture,
            "os": "linux",
            "config": {
                "Entrypoint": image.entrypoint,
                "Cmd": image.command,
                "Env": ["PATH=/usr/bin"],
                "User": "0:0",
                "Labels": {"org.opencontainers.image.licenses": "Apache-2.0"},
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, configuration),
            "layers": [_descriptor(_LAYER, packed)],
        }
    )
    names = {
        "io.containerd.image.name": image.tag,
        "org.opencontainers.image.ref.name": image.tag.rpartition(":")[2],
    }
    index = _json(
        {
            "schemaVersion": 2,
            "mediaType": _INDEX,
            "manifests": [{**_descriptor(_MANIFEST, manifest), "annotations": names}],
        }
    )
    unfinished = archive.with_name(f".{archive.name}.new")
    with tarfile.open(unfinished, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), image.epoch)
        _add(tar, "index.json", index, image.epoch)
        for blob in (configuration, packed, manifest):
            _add(tar, f"blobs/sha256/{_digest(blob).partition(':')[2]}", blob, image.epoch)
    unfinished.replace(archive)


def _layer(root: Path, epoch: int) -> bytes:
    """Return the directory as a tar: sorted, everything root's, all of one time."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = epoch
        return member

    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(root)), recursive=False, filter=plain)
    return content.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, epoch: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(content), epoch, 0o644
    tar.addfile(member, io.BytesIO(content))


def _descriptor(kind: str, content: bytes) -> Mapping[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()
