"""The image by the Containerfile, on a base of Debian that is made here: no registry has to be reached."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package.test_release import in_general, listed

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/reactor-test-base"
IMAGE = "localhost/reactor-test"
MINUTES = 40  # packages of a compiler and the developers' libraries are fetched

pytestmark = [
    pytest.mark.timeout(MINUTES * 60),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo -E make test-release"),
    *(
        pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}: install Debian's package {name}")
        for name in ("podman", "mmdebstrap")
    ),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Yield podman's command with a storage of its own, whose images are gone after the tests."""
    directory = tmp_path_factory.mktemp("podman")
    command = [
        "podman",
        "--root",
        f"{directory}/root",
        "--runroot",
        f"{directory}/run",
        "--storage-driver=vfs",
    ]
    yield [*command, "--cgroup-manager=cgroupfs"]
    subprocess.run([*command, "system", "reset", "--force"], check=False, capture_output=True)


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MINUTES * 60)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(engine: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files of the image that the Containerfile makes of this commit."""
    directory = tmp_path_factory.mktemp("containerfile")
    base, context, made = directory / "base.tar", directory / "context", directory / "made"
    # As on this machine, pip trusts the certificates that the machine trusts.
    certificates = Path("/etc/ssl/certs/ca-certificates.crt").read_bytes()
    (directory / "machine.crt").write_bytes(certificates)
    (directory / "pip.conf").write_text("[global]\ncert = /etc/machine.crt\ntimeout = 180\n")
    run("mmdebstrap", "--quiet", "--variant=apt", f"--customize-hook=copy-in {directory}/machine.crt /etc",
        f"--customize-hook=copy-in {directory}/pip.conf /etc", "bookworm", base)  # fmt: skip
    run(*engine, "import", base, BASE)
    run("git", "clone", "--quiet", ROOT, context)
    build = ["build", "--isolation=chroot", "--network=host", f"--build-arg=BASE={BASE}", f"--tag={IMAGE}"]
    run(*engine, *build, f"--file={context}/deploy/image/Containerfile", context)
    made.mkdir()
    mounted = run(*engine, "image", "mount", IMAGE).strip()
    run("cp", "--archive", f"{mounted}/.", made)
    run(*engine, "image", "unmount", IMAGE)
    return made


def test_containerfile_makes_the_image_that_a_release_has(built: Path) -> None:
    names = (path.relative_to(built).parts for path in built.rglob("*"))
    found = {"/".join(parts[: 2 if parts[0] in {"lib", "lib64"} else 3]) for parts in names}
    assert listed("image.txt") == in_general(found)
    assert list((built / "opt/reactor/reactor/kernel/bpf/compiled").glob("*.bpf.o"))


def test_image_of_the_containerfile_answers_by_its_entry_point(engine: list[str], built: Path) -> None:
    entry = run(*engine, "image", "inspect", '--format={{join .Config.Entrypoint " "}}', IMAGE).split()
    command = ["chroot", str(built), *entry]
    assert run(*command, "--version").startswith("reactor ")
    assert (
        "memory controller"
        in subprocess.run([*command, "doctor"], capture_output=True, text=True, check=False).stdout
    )
