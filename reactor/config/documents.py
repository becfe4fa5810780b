"""Files to plain values: YAML and JSON, drop-ins merged over the configuration, and who else could write one.

A key given twice is an error, never a silent choice. Drop-ins (`*.conf`) are merged as the kubelet's are.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from reactor.errors import ConfigError, Problem, join, shorten
from reactor.text import printable

_ACCEPTED = "YAML 1.2 or JSON"
# Each MiB takes the library 3 to 25 s and up to 500 MiB, and the guard reads configuration and manifests
# itself. The library nests by recursion, and repeats what `<<` merges.
_LARGEST_YAML: Final = 1 << 20  # as much as a ConfigMap holds
LARGEST_OF_PEOPLE: Final = 8 << 20  # what a command reads: a scenario, a kubeconfig
_DEEPEST: Final = 100
_MOST_MERGED: Final = 100_000
_MOST_VALUES: Final = 5_000_000  # an alias costs no more here, but again each time it is decoded
# Arbitrary input makes the library raise more than its own errors.
_UNREADABLE = (
    YAMLError,
    ValueError,
    RecursionError,
    TypeError,
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
)

EXTENSION: Final = ".conf"

ONLY_OURS: Final = (
    "a file and directory that belong to root or the daemon's user, and no other user may write"
)
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class _KeyGivenTwice(Exception):  # noqa: N818 - it reads as what it is
    """A JSON object names a key more than once."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as written, repeated keys included."""


class _Written(float):
    """A number that prints as its author wrote it: 1e9, not 1000000000.0."""

    _text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number._text = text
        return number

    def __repr__(self) -> str:
        return self._text


def _number(text: str) -> float:
    number = float(text)
    return number if repr(number) == text else _Written(text)


class _Constructor(SafeConstructor):
    merged = 0

    def construct_object(self, node: Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - the library's
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, OverflowError, KeyError) as error:
            raise ConstructorError(None, None, str(error), node.start_mark) from error

    def flatten_mapping(self, node: MappingNode) -> None:
        """Merge what `<<` names. Raises ConstructorError where merges of merges would exhaust memory."""
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                for one in value.value if isinstance(value, SequenceNode) else (value,):
                    if isinstance(one, MappingNode):
                        self.flatten_mapping(one)
                        self.merged += len(one.value)
                if self.merged > _MOST_MERGED:
                    got = f"merges (<<) of more than {_MOST_MERGED} keys"
                    raise ConstructorError(None, None, got, key.start_mark)
        super().flatten_mapping(node)

    def written_number(self, node: ScalarNode) -> float:
        try:
            return _number(node.value.replace("_", ""))
        except ValueError:  # a form that YAML has and Python has not, such as .inf
            return float(self.construct_yaml_float(node))


_Constructor.add_constructor("tag:yaml.org,2002:float", _Constructor.written_number)
# YAML 1.2 knows no instants, nor does JSON: 2026-01-31 is text.
_Constructor.add_constructor("tag:yaml.org,2002:timestamp", _Constructor.construct_yaml_str)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    yaml.max_depth = _DEEPEST
    return yaml


def load_document(text: str, name: str, *, most_bytes: int = _LARGEST_YAML) -> Any:
    """Return the one document in `text`; `name` says where it came from. Raises ConfigError."""
    documents = load_documents(text, name, most_bytes=most_bytes)
    if len(documents) != 1:
        got = f"{len(documents)} documents" if documents else "an empty file"
        raise ConfigError([Problem(path=name, got=got, accepted="one document")])
    return documents[0]


def load_documents(text: str, name: str, *, most_bytes: int = _LARGEST_YAML) -> list[Any]:
    """Return every document in `text`: JSON of any size, YAML of `most_bytes`. Raises ConfigError.

    Text that can't be read is reported with line and column, keys that are given twice with their paths.
    """
    if text.lstrip()[:1] in {"{", "["}:
        # Recordings are large and often JSON: the standard parser reads them a hundred times faster.
        # What it can't read may still be YAML in flow style.
        try:
            return [json.loads(text, object_pairs_hook=_mapping, parse_float=_number)]
        except _KeyGivenTwice:
            problems = _repeated_json_keys(text)
            if problems:
                raise ConfigError(problems) from None
        except (ValueError, RecursionError) as error:
            _refuse_large(text, name, most_bytes, error)
    _refuse_large(text, name, most_bytes)
    try:
        documents = list(_yaml().load_all(text))
        _refuse_aliases(documents if "&" in text else [], name)
    except DuplicateKeyError as error:
        problems = _repeated_yaml_keys(text)
        raise ConfigError(problems or [_problem(error, name, "each key once")]) from error
    except MaxDepthExceededError as error:
        error.problem = f"more than {_DEEPEST} levels"
        raise ConfigError([_problem(error, name, "lists and mappings nested less deeply")]) from error
    except MarkedYAMLError as error:
        raise ConfigError([_problem(error, name, _ACCEPTED)]) from error
    except _UNREADABLE as error:
        got = [*f"{type(error).__name__}: {error}".splitlines(), ""][0]
        raise ConfigError([Problem(path=name, got=got, accepted=_ACCEPTED)]) from error
    return documents


def _refuse_aliases(documents: Sequence[Any], name: str) -> None:
    """Raise ConfigError where aliases of aliases would exhaust time and memory once they are decoded."""
    if sum(_count_values(one, {}) for one in documents) > _MOST_VALUES:
        got, accepted = f"aliases (*) for more than {_MOST_VALUES} values", "fewer of them"
        raise ConfigError([Problem(path=name, got=got, accepted=accepted)])


def _count_values(value: Any, counted: dict[int, int]) -> int:
    """Return how many values there are in one, those behind an alias each time."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counted:
        counted[id(value)] = 0  # in case that it holds itself
        inner = value.values() if isinstance(value, dict) else value
        counted[id(value)] = 1 + sum(_count_values(one, counted) for one in inner)
    return counted[id(value)]


def _problem(error: MarkedYAMLError, name: str, accepted: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    where = name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"
    got = str(error.problem or error.context or "unreadable text").splitlines()[0].removeprefix("found ")
    if got.startswith("character '\\t'"):
        got, accepted = "a tab", "blanks to indent by"
    return Problem(path=where, got=printable(f"{got:.200}"), accepted=accepted)


def _refuse_large(text: str, name: str, most_bytes: int, error: Exception | None = None) -> None:
    """Raise ConfigError where YAML would take too long; `error` is why it is not JSON."""
    if len(text) <= most_bytes:
        return
    accepted = f"YAML of up to {most_bytes >> 10} KiB, or JSON, which is read a hundred times faster"
    where, got = name, f"{math.ceil(len(text) / 1024)} KiB"
    if isinstance(error, json.JSONDecodeError):
        where, got, accepted = f"{name}:{error.lineno}:{error.colno}", error.msg, "JSON"
    raise ConfigError([Problem(path=where, got=got, accepted=accepted)])


def _mapping(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise _KeyGivenTwice
    return mapping


def _repeated_json_keys(text: str) -> list[Problem]:
    """Return the keys given twice; none where the text turns out not to be JSON further on."""
    try:
        return list(_repeated_keys(json.loads(text, object_pairs_hook=_Pairs), "", set()))
    except (ValueError, RecursionError):
        return []


def _repeated_yaml_keys(text: str) -> list[Problem]:
    """Return what the library refused, as far as it is in what the text says word for word."""
    try:
        documents = list(_yaml().compose_all(text))
        return [problem for document in documents for problem in _repeated_keys(document, "", set())]
    except _UNREADABLE:
        return []


def _repeated_keys(tree: Any, path: str, seen: set[int]) -> Iterator[Problem]:
    """Yield a problem for each key that one mapping holds more than once.

    `tree` is a YAML node or a JSON value; an alias makes one node appear in several places.
    """
    if id(tree) in seen:
        return
    seen.add(id(tree))
    keys: dict[str, int] = {}
    for key, value in _entries(tree):
        if isinstance(key, str):
            keys[key] = keys.get(key, 0) + 1
            if keys[key] == 2:
                yield Problem(
                    path=join(path, key), got=f'the duplicate key "{key}"', accepted="each key once"
                )
        yield from _repeated_keys(value, join(path, key), seen)


def _entries(tree: Any) -> Iterable[tuple[str | int, Any]]:
    """Return keys and values of a mapping, indices and items of a list, nothing of anything else."""
    if isinstance(tree, MappingNode):
        return [
            (key.value if isinstance(key, ScalarNode) else "?", value)
            for key, value in tree.value
            if not (isinstance(key, ScalarNode) and key.tag == "tag:yaml.org,2002:merge")
        ]
    if isinstance(tree, _Pairs):
        return tree
    if isinstance(tree, SequenceNode):
        return list(enumerate(tree.value))
    return list(enumerate(tree)) if isinstance(tree, list) else ()


class Named(NamedTuple):
    """A file's document, as plain values, and where it is from."""

    name: str
    document: Any


class Layers:
    """One document made of several, `names` are their files'; `located` says which one a problem is from.

    `void` names each null that removes nothing: one removes what an earlier drop-in has, and not what the
    main file has.
    """

    def __init__(self, main: Named, drop_ins: Iterable[Named]) -> None:
        """Merge. Raises ConfigError where one is no mapping."""
        drop_ins = tuple(drop_ins)
        self.names = (main.name, *(one.name for one in drop_ins))
        self._main = main.name
        self._origins: dict[str, str] = {}
        self.void: list[str] = []
        base = _mapping_of(main)
        over: dict[Any, Any] = {}
        for one in drop_ins:
            over = self._merged(over, _mapping_of(one), one.name, "")
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
        is_given = any(_is_within(one, path) for one in _leaves(self.document, ""))
        return self.file_of(path) if is_given else None

    def _merged(self, target: Any, patch: Mapping[Any, Any], name: str | None, path: str) -> dict[Any, Any]:
        """Return a mapping with another merged over it; `name` is the latter's file, None: noted already."""
        result = dict(target) if isinstance(target, Mapping) else {}
        for key, value in patch.items():
            at = join(path, key)
            if value is None:
                if result.pop(key, None) is None:
                    self.void.append(f"{name}: {at}: null has no effect: no earlier drop-in has it")
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


def _mapping_of(named: Named) -> Mapping[Any, Any]:
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


def exposed_because(path: Path, found: os.stat_result) -> str | None:
    """Return how others than root and the running user could change the file, None where they can't.

    `found` is the file's own status, from the descriptor that it was read through. The directory counts as
    well, that of the name and that of the file where the name is a symbolic link. Raises OSError.
    """
    directories = dict.fromkeys((path.absolute().parent, Path(os.path.realpath(path)).parent))
    problems = [_exposure(path, found), *(directory_exposure(one) for one in directories)]
    return next((problem for problem in problems if problem is not None), None)


def directory_exposure(directory: Path, *, may_be_sticky: bool = True) -> str | None:
    """Return how others could change what a directory holds, None where they can't. Raises OSError.

    Where files are yet to be made, it had better not be sticky: others may take their names before.
    """
    # No user writes through a read-only mount: that is how a ConfigMap lies in a container, with mode 0777.
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return None
    found = directory.stat()
    # In a sticky directory (/tmp) only its owner can replace a file of another user's.
    return _exposure(directory, found, may_write=may_be_sticky and bool(found.st_mode & stat.S_ISVTX))


def _exposure(path: Path, found: os.stat_result, *, may_write: bool = False) -> str | None:
    if found.st_uid not in {0, os.geteuid()}:
        return f"{path} belongs to uid {found.st_uid}"
    if found.st_mode & _OTHERS_MAY_WRITE and not may_write:
        return f"{path} has mode {stat.S_IMODE(found.st_mode):04o}: others may write it"
    return None
