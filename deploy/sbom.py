"""What a release consists of, as CycloneDX documents: the same text for the same lock file, image and time.

Source: the CycloneDX specification 1.6; package URLs are those of the types "pypi" and "deb".
"""

from __future__ import annotations

import re
import tarfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pins import by_name

_PIN: Final = re.compile(r"^([a-z0-9-]+)==(\S+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Debian:
    """A package of Debian's in an image."""

    name: str
    version: str
    architecture: str


def document(distribution: str, version: str, lock: str, epoch: int, debian: Iterable[Debian] = ()) -> str:
    """Return the document: the distribution, each package of the lock file, and those of Debian beside them.

    A package's hashes are those of all files that the lock file accepts. Licences are those that the installed
    packages name; all of the lock has to be installed. Raises LookupError for a package that is not.
    """
    root = Component(
        name=distribution,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"pkg:pypi/{distribution}@{version}",
        purl=PackageURL("pypi", None, distribution, version),
        licenses=_licences(distribution),
    )
    libraries = {name: _library(name, lines) for name, lines in by_name(lock).items()}
    packages = [_package(each) for each in debian]
    made = Bom(components=[*libraries.values(), *packages])
    made.metadata.component = root
    made.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    known: Mapping[str, Component] = {distribution: root, **libraries}
    for name, component in known.items():
        needed = {canonicalize_name(Requirement(line).name) for line in _requires(name)}
        made.register_dependency(component, [libraries[each] for each in sorted(needed & set(libraries))])
    made.register_dependency(root, packages)
    shown = "\n".join(sorted(str(each.purl) for each in (root, *libraries.values(), *packages)))
    made.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{epoch}\n{shown}")
    return JsonV1Dot6(made).output_as_string(indent=2) + "\n"


def debian_in(archive: Path) -> list[Debian]:
    """Return Debian's packages in an image's OCI archive, by the list of dpkg in its layer."""
    found = []
    with tarfile.open(archive) as outer:
        for member in outer.getmembers():
            blob = outer.extractfile(member)
            if blob is None or blob.read(2) != b"\x1f\x8b":  # a layer is packed by gzip, and nothing else is
                continue
            blob.seek(0)
            with tarfile.open(fileobj=blob, mode="r:gz") as layer:
                listed = layer.extractfile("var/lib/dpkg/status")
                assert listed is not None  # extractfile is None for what is no file
                found += debian_of(listed.read().decode())
    return found


def debian_of(status: str) -> list[Debian]:
    """Return the packages of dpkg's list, in order of their names."""
    found = []
    for paragraph in status.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"[A-Z][\w-]*: ", line))
        found.append(
            Debian(name=fields["Package"], version=fields["Version"], architecture=fields["Architecture"])
        )
    return sorted(found, key=lambda package: package.name)


def _library(name: str, lines: str) -> Component:
    pinned = _PIN.match(lines)
    assert pinned is not None, lines  # by_name begins each with one
    version = pinned[2]
    return Component(
        name=name,
        version=version,
        bom_ref=f"pkg:pypi/{name}@{version}",
        purl=PackageURL("pypi", None, name, version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in _HASH.findall(lines)],
        licenses=_licences(name),
    )


def _package(package: Debian) -> Component:
    purl = PackageURL("deb", "debian", package.name, package.version, {"arch": package.architecture})
    return Component(name=package.name, version=package.version, bom_ref=purl.to_string(), purl=purl)


def _licences(name: str) -> list[DisjunctiveLicense]:
    """Return the licence that a package names, in its newer field, its older one, or its classifiers."""
    try:
        fields = metadata(name)
    except PackageNotFoundError:
        raise LookupError(f"{name} is not installed: run `make setup`") from None
    older = fields.get("License") or ""
    said = fields.get("License-Expression") or (older if "\n" not in older else "")
    for line in fields.get_all("Classifier") or ():
        if not said and line.startswith("License :: OSI Approved :: "):
            said = line.rpartition(" :: ")[2]
    return [DisjunctiveLicense(name=said)] if said else []


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        raise LookupError(f"{name} is not installed: run `make setup`") from None
