"""A release of the commit, built twice: its bytes, what is in it, and that the parts agree."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTENTS = ROOT / "tests/fixtures/contents"
TRIPLET = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}[os.uname().machine]
# As uname calls a machine, and its number in an ELF header; an eBPF object is of none.
MACHINES = {"amd64": ("x86_64", 62), "arm64": ("aarch64", 183)}
BPF = 247


@pytest.fixture(scope="session")
def releases() -> list[Path]:
    named = os.environ.get("REACTOR_RELEASES")
    if named is None:
        pytest.skip("no releases: make test-release builds two and names them in REACTOR_RELEASES")
    return [Path(name).resolve() for name in named.split()]


@pytest.fixture(scope="session")
def release(releases: list[Path]) -> Path:
    return releases[0]


@pytest.fixture(scope="session")
def image(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files of the image's layer."""
    directory = tmp_path_factory.mktemp("image")
    with tarfile.open(one(release, "*.oci.tar")) as outer:
        for member in outer.getmembers():
            blob = outer.extractfile(member)
            assert blob is not None
            if blob.read(2) == b"\x1f\x8b":
                blob.seek(0)
                with tarfile.open(fileobj=blob, mode="r:gz") as layer:
                    layer.extractall(directory, filter="tar")
    return directory


def one(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


def listed(name: str) -> list[str]:
    return (CONTENTS / name).read_text().splitlines()


def in_general(names: Iterable[str]) -> list[str]:
    """Return names as a list has them: without this machine's kind, versions, and what is below a package."""
    shown = set()
    for name in names:
        general = name.replace(TRIPLET, "TRIPLET").removesuffix("/")
        general = re.sub(r"^(.*?/site-packages|opt/reactor)/([^/]+)/.*", r"\1/\2", general)
        general = re.sub(r"-[\d.]+(post\d+)?\.dist-info$", "-VERSION.dist-info", general)
        general = re.sub(r"_cffi_backend\.cpython-\d+-.*\.so", "_cffi_backend.*.so", general)
        shown.add(general)
    return sorted(shown)


def test_two_builds_are_equal_byte_for_byte(releases: list[Path]) -> None:
    first, second = ({path.name: path.read_bytes() for path in each.iterdir()} for each in releases)
    assert set(first) == set(second)
    assert [] == [name for name in first if first[name] != second[name]]


def test_release_has_wheel_package_image_chart_documents_and_checksums(release: Path) -> None:
    names = {re.sub(r"\d+\.\d+\.\d+(~\d+)?", "VERSION", path.name) for path in release.iterdir()}
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    assert {
        "SHA256SUMS",
        "node_reactor-VERSION-py3-none-any.whl",
        f"reactor-VERSION-{machine}.image.cdx.json",
        f"reactor-VERSION-{machine}.oci.tar",
        "reactor-VERSION.cdx.json",
        "reactor-chart-VERSION.tgz",
        "reactor_VERSION_amd64.deb",
        "reactor_VERSION_arm64.deb",
    } == names


def test_checksums_are_those_of_all_other_files(release: Path) -> None:
    others = sorted(path for path in release.iterdir() if path.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in others]
    assert sums == (release / "SHA256SUMS").read_text().splitlines()


def files_of(package: Path) -> Iterator[tuple[str, bytes]]:
    """Generate the name and the first bytes of each file of a Debian package."""
    command = ["dpkg-deb", "--fsys-tarfile", package]
    content = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member) if member.isfile() else None
            if not member.isdir():
                yield member.name.removeprefix("./"), file.read(20) if file else b""


@pytest.mark.parametrize("architecture", MACHINES)
def test_package_is_for_its_architecture_and_so_is_each_program_in_it(
    release: Path, architecture: str
) -> None:
    package, (machine, number) = one(release, f"*_{architecture}.deb"), MACHINES[architecture]
    shown = ["dpkg-deb", "--show", "--showformat=${Architecture} ${Depends}", package]
    word, depends = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split(" ", 1)
    elf = {name: head for name, head in files_of(package) if head.startswith(b"\x7fELF")}
    native = {Path(name).name for name, head in elf.items() if head[18:20] != BPF.to_bytes(2, "little")}

    assert architecture == word
    assert {"libbpf1", "libc6", "python3"} == {each.split()[0] for each in depends.split(", ")}
    assert {number, BPF} == {int.from_bytes(head[18:20], "little") for head in elf.values()}
    source = hashlib.sha256((ROOT / "reactor/testbed/allocator.c").read_bytes()).hexdigest()[:16]
    modules = {f"_cffi_backend.cpython-{python}-{machine}-linux-gnu.so" for python in (311, 312, 313)}
    assert {f"allocator-{source}-{machine}", *modules} == native


def test_wheel_has_the_allocator_for_both_architectures(release: Path) -> None:
    with zipfile.ZipFile(one(release, "*.whl")) as wheel:
        names = [Path(name).name for name in wheel.namelist() if "/compiled/allocator-" in name]

    assert {machine for machine, _ in MACHINES.values()} == {name.rpartition("-")[2] for name in names}
    assert len(names) == len(MACHINES)


@pytest.mark.parametrize("architecture", MACHINES)
def test_package_has_what_the_list_says_and_nothing_else(release: Path, architecture: str) -> None:
    found = [name for name, _ in files_of(one(release, f"*_{architecture}.deb"))]
    pages = {
        f"usr/share/doc/reactor/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*")
    }
    pages |= {f"{page}.gz" for page in pages}
    assert listed("deb.txt") == in_general(name for name in found if name not in pages)
    assert len(set(found) & pages) == sum(path.is_file() for path in (ROOT / "docs").rglob("*"))


def test_image_has_what_the_list_says_and_nothing_else(image: Path) -> None:
    """Down to the third level, but for Debian's libraries."""
    names = (path.relative_to(image).parts for path in image.rglob("*"))
    found = {"/".join(parts[: 2 if parts[0] in {"lib", "lib64"} else 3]) for parts in names}
    assert listed("image.txt") == in_general(found)


def test_image_has_no_shell_and_no_trace_of_the_machine_that_built_it(image: Path) -> None:
    assert ["python3", "python3.11"] == sorted(os.listdir(image / "usr/bin"))
    tools = {"sh", "bash", "dash", "perl", "apt", "dpkg", "tar"}
    assert [] == [path for path in image.rglob("*") if path.name in tools and not path.is_dir()]
    assert ["", ""] == [(image / "etc" / name).read_text() for name in ("hostname", "resolv.conf")]
    host = os.uname().nodename.encode()
    paths = (b"/tmp/reactor", str(ROOT).encode(), *((host,) if len(host) > 4 else ()))
    ours = [path for path in (image / "opt/reactor").rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(ours) > 500
    assert [] == [path for path in ours for name in paths if name in path.read_bytes()]
    assert [] == list((image / "opt/reactor").rglob("direct_url.json"))
    # Programs that pip has made name the Python that ran it, and these lists would have their hashes.
    records = [path.read_text() for path in (image / "opt/reactor").glob("*.dist-info/RECORD")]
    assert len(records) > 10
    assert [] == [line for text in records for line in text.splitlines() if re.match(r"(../../)?bin/", line)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a chroot: sudo -E make test-release")
def test_image_answers(image: Path, release: Path) -> None:
    version = one(release, "*.whl").name.split("-")[1]
    command = ["chroot", image, "/usr/bin/python3", "-I", "-m", "reactor", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (f"reactor {version}\n", 0) == (shown.stdout, shown.returncode), shown.stderr


def test_documents_name_every_library_that_package_and_image_have(image: Path, release: Path) -> None:
    of_image = one(release, "*.image.cdx.json")
    (of_packages,) = set(release.glob("*.cdx.json")) - {of_image}
    in_image = set()
    for path in (image / "opt/reactor").glob("*.dist-info/METADATA"):
        fields = dict(re.findall(r"^(Name|Version): (.*)$", path.read_text(), re.MULTILINE))
        name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
        in_image.add(f"pkg:pypi/{name}@{fields['Version']}")
    assert in_image == {purl for purl in components(of_image) if purl.startswith("pkg:pypi/")}
    assert in_image == components(of_packages)
    packages = re.findall(r"^Package: (.*)$", (image / "var/lib/dpkg/status").read_text(), re.MULTILINE)
    named = {purl.split("/")[2].split("@")[0] for purl in components(of_image) if purl.startswith("pkg:deb/")}
    assert {name.replace("+", "%2B") for name in packages} == {name.replace("+", "%2B") for name in named}
    assert {"libbpf1", "python3.11-minimal", "libssl3"} <= named


def components(document: Path) -> set[str]:
    read = json.loads(document.read_text())
    return {read["metadata"]["component"]["purl"], *(each["purl"] for each in read["components"])}


def test_chart_is_the_checkouts(release: Path, tmp_path: Path) -> None:
    packed = one(release, "*.tgz")
    assert gzip.decompress(packed.read_bytes())
    shutil.unpack_archive(packed, tmp_path)
    found = {str(path.relative_to(tmp_path / "reactor")): path.read_bytes() for path in tmp_path.rglob("*")
             if path.is_file()}  # fmt: skip
    command = ["git", "-C", ROOT / "deploy/helm/reactor", "ls-files"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {name: (ROOT / "deploy/helm/reactor" / name).read_bytes() for name in names} == found
