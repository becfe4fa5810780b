#!/usr/bin/env python3
"""Make the image's content, and of it an OCI archive, without a container engine.

usage: .venv/bin/python deploy/image/build.py --root DIRECTORY           the content as a directory
       .venv/bin/python deploy/image/build.py --archive FILE [--tag T]   the content as an OCI archive, which
                                                       `ctr --namespace k8s.io images import FILE` takes
       either with --architecture arm64                for another architecture than this machine's

The content is Python and a few libraries, unpacked from Debian's packages by mmdebstrap without running any of
their scripts, the dependencies pinned in constraints.txt, and the wheel of this checkout. Shell and package tools
are left out. The eBPF objects are those of `make bpf`: without them the image has none, which is said.

Needs root (a chroot compiles the modules), mmdebstrap, and the checkout's virtual environment (`make setup`); for
another architecture qemu-user-static and arch-test, registered with binfmt_misc.
Times in the archive are those of SOURCE_DATE_EPOCH, else of the last commit. Exit status 0, or 1 and a line on
standard error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from oci import Image, write_archive

CHECKOUT: Final = Path(__file__).resolve().parents[2]
sys.path.append(str(CHECKOUT / "deploy"))
from pins import DISTRIBUTION, EXTRA, MACHINES, RUNTIME, closure, pins, target  # noqa: E402 - beside the image's directory

DEFAULT_TAG: Final = "reactor.example/reactor:dev"
SUITE: Final = "bookworm"
PYTHON: Final = "3.11"
# libbpf1 loads the eBPF objects; cysystemd is linked to libsystemd0; ncurses-base describes the terminals.
PACKAGES: Final = ("python3", "libbpf1", "libsystemd0", "ncurses-base")
# Nothing in the image reads or runs these: they are half of its size, or a tool for an intruder.
LEFT_OUT: Final = (
    "bin",
    "sbin",
    "etc/alternatives",
    "etc/apt",
    "etc/cron.daily",
    "etc/dpkg",
    "etc/gss",
    "etc/logrotate.d",
    "lib/systemd",
    "opt/reactor/bin",  # programs of the libraries, which name the Python that has installed them
    "usr/sbin",
    "usr/share",
    "usr/lib/binfmt.d",
    "usr/lib/dpkg",
    "usr/lib/MACHINE-linux-gnu/gconv",
    "usr/lib/MACHINE-linux-gnu/perl-base",
    "usr/lib/mime",
    "usr/lib/valgrind",
    "usr/libexec",
    "usr/lib/python3.11/ensurepip",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/python3.11/unittest",
    "var/cache",
    "var/lib/apt",
    "var/log/apt",
    "dev",  # a container gets its own
)
NO_EBPF: Final = (
    "no eBPF objects in this checkout: on cgroup v2 the image's daemon wakes by pressure and by its ticker alone; "
    "run `make bpf` first"
)
PROGRAMS: Final = ("python3", "python3.11")
APPLICATION: Final = "opt/reactor"
# As if dpkg had installed the packages: what scans an image for known faults reads this list.
LIST_PACKAGES: Final = """
for deb in "$1"/var/cache/apt/archives/*.deb; do
  dpkg-deb --field "$deb" | sed '/^Package:/a Status: install ok installed'
  echo
done >"$1/var/lib/dpkg/status"
"""
ENTRYPOINT: Final = ("/usr/bin/python3", "-I", "-m", "reactor")


class BuildError(Exception):
    """The build failed; the message is one line on standard error."""


def main() -> int:
    """Build what the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--architecture", choices=MACHINES, default=_own_architecture(), help="the nodes' (this machine's)"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--root", metavar="DIRECTORY", type=Path, help="make the content there; it must not exist"
    )
    what.add_argument("--archive", metavar="FILE", type=Path, help="make an OCI archive")
    parser.add_argument("--tag", default=DEFAULT_TAG, help=f"the image's name in the archive ({DEFAULT_TAG})")
    parser.add_argument(
        "--mirror",
        default="http://deb.debian.org/debian",
        help="where Debian is fetched from, and with -security added its security updates",
    )
    arguments = parser.parse_args()
    if not ebpf_objects(CHECKOUT):
        print(f"image: {NO_EBPF}", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is half made is removed then, too
    try:
        if arguments.root is not None:
            make_root(arguments.root, arguments.mirror, arguments.architecture)
        else:
            with tempfile.TemporaryDirectory(prefix="reactor-image-") as directory:
                root = Path(directory) / "root"
                make_root(root, arguments.mirror, arguments.architecture)
                image = Image(
                    tag=arguments.tag,
                    entrypoint=ENTRYPOINT,
                    command=("run",),
                    epoch=_epoch(),
                    architecture=arguments.architecture,
                )
                write_archive(root, image, arguments.archive)
    except (BuildError, OSError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


def ebpf_objects(checkout: Path) -> list[Path]:
    """Return the compiled eBPF objects of a checkout."""
    return sorted((checkout / "reactor/kernel/bpf/compiled").glob("*.bpf.o"))


def _own_architecture() -> str:
    """Return this machine's, as Debian calls it."""
    own = os.uname().machine
    return next((name for name, machine in MACHINES.items() if machine == own), "amd64")


def make_root(root: Path, mirror: str, architecture: str) -> None:
    """Make the content in a new directory."""
    if os.geteuid() != 0:
        raise BuildError("needs root: the modules are compiled in a chroot")
    root.mkdir(mode=0o755)
    packages = ",".join(PACKAGES)
    options = ["--quiet", "--variant=extract", f"--include={packages}", "--format=directory"]
    options += [f"--architectures={architecture}", f"--extract-hook={LIST_PACKAGES}"]
    signed = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    sources = (f"{mirror} {SUITE}", f"{mirror} {SUITE}-updates", f"{mirror}-security {SUITE}-security")
    _run("mmdebstrap", *options, SUITE, str(root), *(f"{signed} {source} main" for source in sources))
    _install(root, MACHINES[architecture])
    # Now, since on a read-only root nothing can be kept: without it each start would compile for a second.
    _run("chroot", str(root), "/usr/bin/python3", "-m", "compileall", "-q", "-j1",
         "--invalidation-mode=unchecked-hash", f"/{APPLICATION}", f"/usr/lib/python{PYTHON}")  # fmt: skip
    for left_out in LEFT_OUT:
        shutil.rmtree(root / left_out.replace("MACHINE", MACHINES[architecture]), ignore_errors=True)
    for program in (root / "usr/bin").iterdir():
        if program.name not in PROGRAMS:
            program.unlink()
    for of_the_builder in ("etc/hostname", "etc/resolv.conf"):
        (root / of_the_builder).write_text("")
    for directory in ("etc/reactor", "run/reactor", "var/log/reactor", "proc", "sys", "dev"):
        (root / directory).mkdir(parents=True, exist_ok=True)


def _install(root: Path, machine: str) -> None:
    """Install the wheel of this checkout and what it needs."""
    application = root / APPLICATION
    common = ["--no-deps", "--no-compile", f"--target={application}"]
    with tempfile.TemporaryDirectory(prefix="reactor-wheel-") as directory:
        requirements = Path(directory) / "requirements.txt"
        requirements.write_text(_pinned(RUNTIME.read_text()))
        _pip("install", "--require-hashes", *common, *target(PYTHON, machine), f"--requirement={requirements}")
        _pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={directory}", str(CHECKOUT))
        # By its name: of a wheel that is installed by its path, pip notes that path.
        _pip("install", "--no-index", *common, f"--find-links={directory}", DISTRIBUTION)
    for record in application.glob("*.dist-info/RECORD"):  # hashes of programs that are left out, as below
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = (line for line in lines if not line.startswith(("bin/", "../../bin/")))
        record.write_text("".join(kept), encoding="utf-8")
    # Isolated mode ignores PYTHONPATH; site reads this file all the same.
    (root / "usr/lib/python3/dist-packages").mkdir(parents=True, exist_ok=True)
    (root / "usr/lib/python3/dist-packages/reactor.pth").write_text(f"/{APPLICATION}\n")


def _pinned(constraints: str) -> str:
    """Return the part of the constraints that the daemon needs on a Kubernetes node."""
    try:
        return pins(constraints, closure(DISTRIBUTION, EXTRA, PYTHON) - {DISTRIBUTION})
    except LookupError as error:
        raise BuildError(str(error)) from None


def _epoch() -> int:
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    if shutil.which("git") is None:  # as in the container that builds the image, which has no .git either
        return 0
    command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def _pip(*arguments: str) -> None:
    options = ("--quiet", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore")
    _run(sys.executable, "-m", "pip", arguments[0], *options[:3], *arguments[1:])


def _run(*command: str) -> None:
    # The order of a set's members is in the compiled modules.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if epoch := _epoch():
        environment["SOURCE_DATE_EPOCH"] = str(epoch)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise BuildError(f"{' '.join(command[:3])}…: {(done.stderr or done.stdout).strip()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
