"""The images that the tests' pods run: made from programs compiled here, and Debian's static busybox.

Archives in the form of `docker save`, which `ctr images import` reads: manifest, configuration, one layer.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from machine import LostError

import reactor.testbed

PAUSE: Final = "reactor.test/pause:1"
LOAD: Final = "reactor.test/load:1"
LARGE: Final = "reactor.test/large:1"
_SOURCES: Final = Path(__file__).resolve().parent / "images"
_LAB: Final = Path(reactor.testbed.__file__).parent
_BUSYBOX: Final = Path(shutil.which("busybox") or "/bin/busybox")
_APPLETS: Final = ("sh", "cat", "dd", "head", "ls", "mkdir", "rm", "seq", "sleep", "sync", "touch", "true")


def archives(directory: Path) -> tuple[Path, ...]:
    """Return the archives of PAUSE and LOAD, made in `directory`. Raises LostError."""
    pause, load, allocator = (
        _compiled(directory, source)
        for source in (_SOURCES / "pause.c", _SOURCES / "load.c", _LAB / "allocator.c")
    )
    try:
        busybox = _BUSYBOX.read_bytes()
    except OSError as error:
        raise LostError(f"{error}; install busybox-static") from error
    return (
        _archive(directory, PAUSE, {"pause": pause}, {}, ["/pause"]),
        _archive(
            directory,
            LOAD,
            {"load": load, "allocator": allocator, "bin/busybox": busybox},
            {f"bin/{applet}": "busybox" for applet in _APPLETS},
            ["/load"],
        ),
    )


def large_archive(directory: Path, mib: int) -> Path:
    """Return the archive of LARGE, an image that nobody runs, with so many MiB that can't be compressed."""
    return _archive(directory, LARGE, {"content": os.urandom(mib << 20)}, {}, ["/content"])


def _compiled(directory: Path, source: Path) -> bytes:
    program = directory / source.stem
    command = ["gcc", "-O2", "-Wall", "-Werror", "-static", "-o", program, source]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", error)
        raise LostError(f"{source} can't be compiled (gcc, libc6-dev): {detail}") from error
    return program.read_bytes()


def _archive(
    directory: Path,
    image: str,
    files: Mapping[str, bytes],
    links: Mapping[str, str],
    entrypoint: list[str],
) -> Path:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("bin", "tmp"):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(member)
        for name, content in files.items():
            _add(tar, name, content, 0o755)
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    path = directory / f"{image.partition('/')[2].partition(':')[0]}.tar"
    with tarfile.open(path, "w") as tar:
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        _add(tar, "config.json", configuration)
        _add(tar, "layer.tar", layer.getvalue())
    return path


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))
