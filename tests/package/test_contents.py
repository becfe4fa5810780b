"""What the package holds, and that it runs from there with its own libraries and no others."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "usr/lib/reactor"
PYTHONS = ("3.11", "3.12", "3.13")


def field(deb: Path, name: str) -> str:
    return subprocess.run(
        ["dpkg-deb", "--field", deb, name], capture_output=True, text=True, check=True
    ).stdout.strip()


def python(unpacked: Path, *arguments: str) -> str:
    """Return what the package's own interpreter prints."""
    command = [unpacked / LIBRARY / "bin/python3", "-I", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_called_reactor_and_needs_only_what_debian_12_and_13_have(deb: Path) -> None:
    assert "reactor" == field(deb, "Package")
    depends = {one.split()[0] for one in field(deb, "Depends").split(", ")}

    assert depends == {"libbpf1", "libc6", "python3"}


def test_the_allocator_of_demo_and_tune_is_in_it_for_this_machine(unpacked: Path) -> None:
    source = hashlib.sha256((ROOT / "reactor/testbed/allocator.c").read_bytes()).hexdigest()[:16]
    compiled = unpacked / LIBRARY / "site-packages/reactor/testbed/compiled"
    assert [f"allocator-{source}-{os.uname().machine}"] == os.listdir(compiled)
    assert os.access(compiled / os.listdir(compiled)[0], os.X_OK)


def test_all_ebpf_objects_are_in_it(unpacked: Path) -> None:
    compiled = unpacked / LIBRARY / "site-packages/reactor/kernel/bpf/compiled"
    sources = {path.name.replace(".bpf.c", ".bpf.o") for path in (ROOT / "bpf").glob("*.bpf.c")}
    sources |= {name.replace(".bpf.o", "_kprobe.bpf.o") for name in sources if name != "warrant.bpf.o"}

    assert sources | {path.name for path in (ROOT / "bpf/bcc").glob("*.bcc.c")} == set(os.listdir(compiled))
    assert {(compiled / name).read_bytes()[:4] for name in sources} == {b"\x7fELF"}


def test_the_benchmarks_of_a_checkout_are_not_in_it(unpacked: Path) -> None:
    packages = {path.name for path in (unpacked / LIBRARY / "site-packages").iterdir()}

    assert "reactor" in packages
    assert "bench" not in packages


def test_daemon_and_commands_import_what_they_need_from_the_package_alone(unpacked: Path) -> None:
    asked = (
        "import sys, reactor.cli, reactor.guard.run, reactor.guard.kubernetes, reactor.steward.__main__\n"
        "import cffi, h2, reactor.config.settings, reactor.kernel.bpf.objects as objects\n"
        "assert objects.not_installed() is None, objects.not_installed()\n"
        "files = {getattr(module, '__file__', None) or '' for module in sys.modules.values()}\n"
        "print(*sorted(file for file in files if 'packages' in file))"
    )
    files = python(unpacked, "-c", asked).split()

    assert files
    assert [file for file in files if not file.startswith(str(unpacked))] == []


def test_extension_module_is_there_for_each_python_and_found_by_it(unpacked: Path) -> None:
    site = unpacked / LIBRARY / "site-packages"
    for version in PYTHONS:
        name = f"cpython-{version.replace('.', '')}"
        assert len([path for path in site.glob("_cffi_backend.*.so") if name in path.name]) == 1
        assert (unpacked / LIBRARY / f"lib/python{version}/site-packages").resolve() == site.resolve()


def test_command_says_its_version(unpacked: Path) -> None:
    assert python(unpacked, "-m", "reactor", "--version").startswith("reactor ")
    assert (unpacked / "usr/bin/reactor").read_text().startswith("#!/usr/lib/reactor/bin/python3 -I\n")


def test_configuration_is_a_conffile_and_is_valid(deb: Path, unpacked: Path) -> None:
    control = subprocess.run(
        ["dpkg-deb", "--info", deb, "conffiles"], capture_output=True, text=True, check=True
    )
    assert ["/etc/reactor/config.yaml"] == control.stdout.split()

    checked = python(unpacked, "-m", "reactor", "config", "check", str(unpacked / "etc/reactor/config.yaml"))

    assert ": ok" in checked


@pytest.mark.parametrize("page", ["man8/reactor.8.gz", "man5/reactor.yaml.5.gz"])
def test_manual_pages_are_there_and_groff_has_no_complaint(unpacked: Path, page: str) -> None:
    path = unpacked / "usr/share/man" / page
    assert b".TH" in gzip.decompress(path.read_bytes())[:500]
    if shutil.which("man") is None:
        pytest.skip("no man: install Debian's package man-db")
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANROFFSEQ": ""}
    command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", path]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr == ""


@pytest.mark.parametrize(
    "name",
    [
        "usr/share/bash-completion/completions/reactor",
        "usr/share/zsh/vendor-completions/_reactor",
        "usr/share/fish/vendor_completions.d/reactor.fish",
        "usr/lib/systemd/catalog/reactor.catalog",
        "usr/lib/systemd/system/reactor.service.d/guarded.conf",
        "usr/share/reactor/monitoring/rules.yaml",
        "usr/share/reactor/monitoring/prometheusrule.yaml",
        "usr/share/reactor/monitoring/dashboard.json",
        "usr/share/doc/reactor/install.md",
        "usr/share/doc/reactor/configuration.md",
        "usr/share/doc/reactor/copyright",
        "usr/share/doc/reactor/changelog.gz",
    ],
)
def test_it_has(unpacked: Path, name: str) -> None:
    found = unpacked / name
    assert found.exists() or found.with_name(f"{found.name}.gz").exists()


def test_each_alert_leads_to_its_section_of_a_page_in_the_package(unpacked: Path) -> None:
    rules = (unpacked / "usr/share/reactor/monitoring/rules.yaml").read_text()
    links = re.findall(r"runbook_url: .* # (\S+)#(\S+)", rules)

    assert len(links) == rules.count("- alert: ") > 0
    for page, section in links:
        text = (unpacked / "usr/share/doc/reactor/operations" / page).read_text()
        assert f"\n## {section}\n" in text.lower()


def test_pages_lead_to_pages_that_are_in_the_package(unpacked: Path) -> None:
    documents = unpacked / "usr/share/doc/reactor"
    for page in documents.glob("**/*.md"):
        for link in re.findall(r"\]\(([^)#:]+)[)#]", page.read_text()):
            target = (page.parent / link).resolve()
            assert target.exists() or not target.is_relative_to(documents), f"{page}: {link}"


def test_maintainer_can_be_written_to(deb: Path) -> None:
    address = re.fullmatch(r".+ <\S+@(\S+)>", field(deb, "Maintainer"))

    assert address is not None
    assert address[1].rpartition(".")[2] not in {"invalid", "localhost"}


def test_units_are_there_and_only_the_service_is_enabled(deb: Path, unpacked: Path) -> None:
    units = {path.name for path in unpacked.glob("**/systemd/system/*")}
    scripts = subprocess.run(
        ["dpkg-deb", "--info", deb, "postinst"], capture_output=True, text=True, check=True
    ).stdout

    assert units == {"reactor.service", "reactor.service.d", "reactor-stand-by.service", "guarded.slice"}
    assert "deb-systemd-helper enable 'reactor.service'" in scripts
    assert "enable 'reactor-stand-by.service'" not in scripts


def test_every_file_belongs_to_root_and_no_bytecode_is_shipped(deb: Path) -> None:
    listed = subprocess.run(
        ["dpkg-deb", "--contents", deb], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(maxsplit=5) for line in listed.splitlines()]

    assert {row[1] for row in rows} == {"root/root"}
    assert [row[5] for row in rows if "__pycache__" in row[5]] == []
    writable = [row for row in rows if "w" in (row[0][5], row[0][8]) and not row[0].startswith("l")]
    assert writable == []


def test_lintian_has_no_complaint_and_each_override_has_its_reason(deb: Path) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("no lintian: install Debian's package lintian")
    command = ["lintian", "--fail-on", "error,warning", "--tag-display-limit", "0", deb]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (checked.returncode, checked.stdout) == (0, "")

    reasoned = False
    for line in (ROOT / "deploy/debian/reactor.lintian-overrides").read_text().splitlines():
        assert line.startswith("#") or not line or reasoned, f"no reason above: {line}"
        reasoned = bool(line)
