#!/usr/bin/env python3
"""Make what a release consists of, from the commit that is checked out, and nothing else.

usage: .venv/bin/python deploy/release.py [--rehearse] [--mirror URL] [--image ARCHITECTURE]... DIRECTORY

The directory, which must be empty or absent, gets the wheel, the Debian package, the image as an OCI archive, the
chart, a CycloneDX document for the packages and one for each image, and SHA256SUMS. Debian packages are for amd64
and arm64; images are for the architectures named of these, else for this machine's. They are built in a clone of the
commit, so that nothing else of the checkout gets in. Two builds of a commit by the same tools, on kernels with the
same BTF and of the same state of Debian's archive, are equal byte for byte.

A checkout with changes is refused, and so is one whose version is not tagged, not in the changelog, or not the
chart's; --rehearse builds such a commit all the same, but no checkout with changes.

Needs root, what `make deb` and `make bpf` need, the other architecture's compiler, mmdebstrap, and the checkout's
virtual environment. Exit status 0, or 1 and each reason in a line on standard error.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pins import DISTRIBUTION, MACHINES
from sbom import debian_in, document

CHECKOUT: Final = Path(__file__).resolve().parents[1]
CHART: Final = "deploy/helm/reactor"
CHECKSUMS: Final = "SHA256SUMS"


class ReleaseError(Exception):
    """The release can't be made: each argument is a reason."""


def main() -> int:
    """Make the release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="also a commit that is no release")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian", help="where Debian is fetched from")
    parser.add_argument(
        "--image",
        action="append",
        choices=tuple(MACHINES),
        help="an architecture to make the image for; may be repeated (this machine's)",
    )
    arguments = parser.parse_args()
    try:
        if reasons := refused_because(CHECKOUT, is_rehearsal=arguments.rehearse):
            raise ReleaseError(*reasons)
        for path in make(CHECKOUT, arguments.directory, arguments.mirror, arguments.image):
            print(path)
    except ReleaseError as error:
        for reason in error.args:
            print(f"release: {reason}", file=sys.stderr)
        return 1
    except (OSError, LookupError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def refused_because(checkout: Path, *, is_rehearsal: bool) -> list[str]:
    """Return why no release is made of a checkout; a rehearsal takes every commit. Raises ReleaseError."""
    reasons = []
    if changed := _run("git", "-C", checkout, "status", "--porcelain").splitlines():
        reasons.append(f"the checkout has changes: {changed[0]}; commit or stash them")
    if is_rehearsal:
        return reasons
    version = version_of(checkout)
    tags = _run("git", "-C", checkout, "tag", "--points-at", "HEAD").split()
    if f"v{version}" not in tags:
        shown = ", ".join(tags) or "none"
        reasons.append(f"tags of this commit: {shown}; accepted: v{version}, the version of reactor/__init__.py")
    changelog = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## .*$", changelog, re.MULTILINE)
    newest = headings[0] if headings else ""
    if not re.fullmatch(rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", newest):
        reasons.append(
            f"CHANGELOG.md begins with {newest!r}; accepted: '## [{version}] - DATE', as `make changelog` writes it"
        )
    chart = (checkout / CHART / "Chart.yaml").read_text(encoding="utf-8")
    for key in ("version", "appVersion"):
        found = re.search(rf"^{key}: *[\"']?([^\s\"']+)", chart, re.MULTILINE)
        if found is None or found[1] != version:
            reasons.append(f"{CHART}/Chart.yaml: {key} {found[1] if found else 'missing'!r}; accepted: {version}")
    return reasons


def version_of(checkout: Path) -> str:
    """Return the version of a checkout's package. Raises ReleaseError."""
    found = re.search(
        r'^__version__ = "([^"]+)"$', (checkout / "reactor/__init__.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    if found is None:
        raise ReleaseError("reactor/__init__.py has no __version__")
    return found[1]


def make(checkout: Path, directory: Path, mirror: str, images: Sequence[str] | None = None) -> list[Path]:
    """Make a commit's files in the directory; return them. Raises ReleaseError, OSError, LookupError."""
    if os.geteuid() != 0:
        raise ReleaseError("needs root: the image's modules are compiled in a chroot")
    if directory.exists() and any(directory.iterdir()):
        raise ReleaseError(f"{directory} is not empty; accepted: an empty or absent directory")
    for architecture, machine in MACHINES.items():
        if architecture != _architecture() and shutil.which(f"{machine}-linux-gnu-gcc") is None:
            lacked = f"gcc-{machine.replace('_', '-')}-linux-gnu"
            raise ReleaseError(f"no compiler for {architecture}: apt-get install {lacked}")
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    with tempfile.TemporaryDirectory(prefix="reactor-release-") as scratch:
        source = Path(scratch) / "source"
        _run("git", "clone", "--quiet", "--shared", checkout, source)
        epoch = int(_run("git", "-C", source, "log", "-1", "--format=%ct"))
        version = version_of(source)
        print(f"release: {version}, {epoch}: eBPF objects", file=sys.stderr)
        _run("make", "bpf", "allocators", f"PYTHON={sys.executable}", cwd=source)
        print("release: wheel", file=sys.stderr)
        _wheel(source, directory, epoch)
        for architecture in MACHINES:
            print(f"release: Debian package for {architecture}", file=sys.stderr)
            _debian(checkout, source, directory, epoch, architecture)
        lock = (source / "constraints.txt").read_text()
        for architecture in images or [_architecture()]:
            print(f"release: image for {architecture}", file=sys.stderr)
            name = f"reactor-{version}-{architecture}"
            image = directory / f"{name}.oci.tar"
            build = [sys.executable, "deploy/image/build.py", "--archive", str(image), "--mirror", mirror]
            build += ["--architecture", architecture, "--tag", f"reactor:{version}"]
            _run(*build, cwd=source, epoch=epoch)
            of_image = document(DISTRIBUTION, version, lock, epoch, debian_in(image))
            (directory / f"{name}.image.cdx.json").write_text(of_image)
        print("release: chart, CycloneDX document, checksums", file=sys.stderr)
        chart(source, directory / f"reactor-chart-{version}.tgz", epoch)
        packages = directory / f"reactor-{version}.cdx.json"
        packages.write_text(document(DISTRIBUTION, version, lock, epoch))
    made = sorted(directory.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    (directory / CHECKSUMS).write_text(sums)
    return [*made, directory / CHECKSUMS]


def _wheel(source: Path, directory: Path, epoch: int) -> None:
    options = ("--quiet", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    _run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", directory, source, epoch=epoch)


def _debian(checkout: Path, source: Path, directory: Path, epoch: int, architecture: str) -> None:
    """Build the package; the libraries' wheels, which are taken by hash, are those that the checkout has."""
    wheels = f".cache/deb/wheels-{MACHINES[architecture]}"
    if (checkout / wheels).exists():
        shutil.copytree(checkout / wheels, source / wheels)
    stage = source / ".cache/deb/reactor"
    staging = (sys.executable, "deploy/debian/stage.py", stage, "--architecture", architecture)
    _run(*staging, cwd=source, epoch=epoch)
    _run("dpkg-checkbuilddeps", "-a", architecture, "debian/control", cwd=stage)
    building = ("dpkg-buildpackage", "--host-arch", architecture, "--build=binary", "--no-sign")
    _run(*building, cwd=stage, epoch=epoch)
    (package,) = stage.parent.glob(f"reactor_*_{architecture}.deb")
    shutil.copy(package, directory)


def chart(source: Path, archive: Path, epoch: int) -> None:
    """Pack the chart as `helm package` does: its files below its name, sorted, all of one owner and time."""
    content = io.BytesIO()
    names = _run("git", "-C", source / CHART, "ls-files", "-z").split("\0")
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(filter(None, names), key=lambda name: (name != "Chart.yaml", name)):
            member = tarfile.TarInfo(f"reactor/{name}")
            text = (source / CHART / name).read_bytes()
            member.size, member.mtime, member.mode = len(text), epoch, 0o644
            tar.addfile(member, io.BytesIO(text))
    archive.write_bytes(gzip.compress(content.getvalue(), mtime=0))


def _architecture() -> str:
    return _run("dpkg", "--print-architecture").strip()


def _run(*command: str | Path, cwd: Path | None = None, epoch: int = 0) -> str:
    """Return what a command prints, in an environment that leaves no trace. Raises ReleaseError."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    if epoch:
        environment["SOURCE_DATE_EPOCH"] = str(epoch)
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):  # of a make that has called this
        environment.pop(name, None)
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=1800
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise ReleaseError(f"{' '.join(str(word) for word in command[:4])}…: status {done.returncode}: {said}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
