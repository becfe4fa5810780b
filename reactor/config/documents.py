"""YAML and JSON text to plain values. A key given twice is an error, never a silent choice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from reactor.config.refused import join
from reactor.errors import ConfigError, Problem

_ACCEPTED = "YAML 1.2 or JSON"
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


class _KeyGivenTwice(Exception):  # noqa: N818 - it reads as what it is
    """A JSON object names a key more than once."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as written, repeated keys included."""


def load_document(text: str, name: str) -> Any:
    """Return the one document in `text`; `name` says where it came from. Raises ConfigError."""
    documents = load_documents(text, name)
    if len(documents) != 1:
        raise ConfigError([Problem(path=name, got=f"{len(documents)} documents", accepted="one document")])
    return documents[0]


def load_documents(text: str, name: str) -> list[Any]:
    """Return every document in `text`. Raises ConfigError.

    Text that can't be read is reported with line and column, keys that are given twice with their paths.
    """
    if text.lstrip()[:1] in {"{", "["}:
        # Recordings are large and often JSON: the standard parser reads them a hundred times faster.
        # What it can't read may still be YAML in flow style.
        try:
            return [json.loads(text, object_pairs_hook=_mapping)]
        except _KeyGivenTwice:
            problems = _repeated_json_keys(text)
            if problems:
                raise ConfigError(problems) from None
        except (ValueError, RecursionError):
            pass
    try:
        return list(YAML(typ="safe", pure=True).load_all(text))
    except DuplicateKeyError as error:
        problems = _repeated_yaml_keys(text)
        raise ConfigError(problems or [_problem(error, name, "each key once")]) from error
    except MarkedYAMLError as error:
        raise ConfigError([_problem(error, name, _ACCEPTED)]) from error
    except _UNREADABLE as error:
        got = [*f"{type(error).__name__}: {error}".splitlines(), ""][0]
        raise ConfigError([Problem(path=name, got=got, accepted=_ACCEPTED)]) from error


def _problem(error: MarkedYAMLError, name: str, accepted: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    where = name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"
    got = str(error.problem or error.context or "unreadable text").splitlines()[0]
    return Problem(path=where, got=got, accepted=accepted)


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
        documents = list(YAML(typ="safe", pure=True).compose_all(text))
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
