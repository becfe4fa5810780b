"""Drop-in files beside the configuration: `*.conf`, merged over it as the kubelet's `--config-dir` is.

Among the drop-ins a later file wins: mappings are merged key by key, a list or a value replaces the one
before, and null takes back what an earlier drop-in said (JSON merge patch). What comes of them goes over the
main file in the same way, so null never takes back what that says. The main file counts with its defaults:
where it has no evictionHard, that of a drop-in is merged into the default thresholds.

Source: cmd/kubelet/app/server.go, mergeKubeletConfigurations.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from reactor.config.refused import join, shorten
from reactor.errors import ConfigError, Problem

EXTENSION: Final = ".conf"


class Named(NamedTuple):
    """A file's document, as plain values, and where it is from."""

    name: str
    document: Any


class Layers:
    """One document made of several, `names` are their files'; `located` says which one a problem is from."""

    def __init__(self, main: Named, drop_ins: Iterable[Named]) -> None:
        """Merge. Raises ConfigError where one is no mapping."""
        drop_ins = tuple(drop_ins)
        self.names = (main.name, *(one.name for one in drop_ins))
        self._main = main.name
        self._origins: dict[str, str] = {}
        base = _mapping(main)
        over: dict[Any, Any] = {}
        for one in drop_ins:
            over = self._merged(over, _mapping(one), one.name, "")
        if "evictionHard" in over and base.get("evictionHard") is None:
            over["mergeDefaultEvictionSettings"] = True
        self.document = self._merged(base, over, None, "")

    def located(self, problem: Problem) -> Problem:
        """Return a problem with the file that its value is from: the main one where no drop-in has it.

        A mapping may be of several; a problem with it as a whole is the last one's.
        """
        at = f"{self.file_of(problem.path)}: {problem.path}"
        return Problem(path=at, got=problem.got, accepted=problem.accepted)

    def file_of(self, path: str) -> str:
        """Return the name of the file that the value at a path is from, as `located` has it."""
        found = [origin for origin in self._origins if _is_within(path, origin)]
        found = found or [origin for origin in self._origins if _is_within(origin, path)]
        return self._origins[found[-1]] if found else self._main

    def origin(self, path: str) -> str | None:
        """Return the name of the file that says what is at a path, or below it; None where no file does."""
        is_given = any(_is_within(one, path) or _is_within(path, one) for one in _leaves(self.document, ""))
        return self.file_of(path) if is_given else None

    def _merged(self, target: Any, patch: Mapping[Any, Any], name: str | None, path: str) -> dict[Any, Any]:
        """Return a mapping with another merged over it; `name` is the latter's file, None: noted already."""
        result = dict(target) if isinstance(target, Mapping) else {}
        for key, value in patch.items():
            at = join(path, key)
            if value is None:
                result.pop(key, None)
            elif isinstance(value, Mapping):
                result[key] = self._merged(result.get(key), value, name, at)
            else:
                result[key] = value
                if name is not None:
                    self._origins[at] = name
        return result


def drop_in_paths(directory: Path) -> tuple[Path, ...]:
    """Return the drop-ins in their order: by name, those of a subdirectory in its place. Raises OSError.

    Links to files are followed, links to directories are not.
    """
    return tuple(_walked(directory))


def _walked(directory: Path) -> Iterator[Path]:
    with os.scandir(directory) as entries:
        found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walked(Path(entry.path))
        elif entry.name.endswith(EXTENSION):
            yield Path(entry.path)


def _mapping(named: Named) -> Mapping[Any, Any]:
    if named.document is None:
        return {}
    if not isinstance(named.document, Mapping):
        got = shorten(named.document)
        raise ConfigError([Problem(path=named.name, got=got, accepted="a mapping")])
    kind = named.document.get("kind")
    if kind not in {None, "KubeletConfiguration"}:
        accepted = "KubeletConfiguration, or no kind at all"
        raise ConfigError([Problem(path=f"{named.name}: kind", got=repr(kind), accepted=accepted)])
    return named.document


def _leaves(document: Mapping[Any, Any], path: str) -> Iterator[str]:
    """Yield the path of each value that is no mapping."""
    for key, value in document.items():
        at = join(path, key)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, at)
        elif value is not None:
            yield at


def _is_within(path: str, above: str) -> bool:
    return path == above or (path.startswith(above) and path[len(above)] in ".[")
