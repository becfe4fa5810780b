"""YAML and JSON text to plain values. A key given twice is an error, never a silent choice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from reactor.errors import ConfigError, Problem

_ACCEPTED = "YAML 1.2 or JSON"


def load_document(text: str, name: str) -> Any:
    """Return the one document in `text`; `name` says where it came from. Raises ConfigError."""
    documents = load_documents(text, name)
    if len(documents) != 1:
        raise ConfigError([Problem(path=name, got=f"{len(documents)} documents", accepted="one document")])
    return documents[0]


def load_documents(text: str, name: str) -> list[Any]:
    """Return every document in `text`. Raises ConfigError with line and column."""
    if text.lstrip()[:1] in {"{", "["}:
        # Recordings are large and often JSON: the standard parser reads them a hundred times faster.
        # What it can't read may still be YAML in flow style.
        try:
            return [json.loads(text, object_pairs_hook=lambda pairs: _mapping(pairs, name))]
        except (json.JSONDecodeError, RecursionError):
            pass
    try:
        return list(YAML(typ="safe", pure=True).load_all(text))
    except DuplicateKeyError as error:
        raise _refused(error, name, "each key once") from error
    except MarkedYAMLError as error:
        raise _refused(error, name, _ACCEPTED) from error
    except (YAMLError, ValueError, RecursionError, TypeError, AttributeError, IndexError, KeyError) as error:
        # Arbitrary input makes the library raise more than its own errors.
        problem = Problem(
            path=name, got=f"{type(error).__name__}: {error}".splitlines()[0], accepted=_ACCEPTED
        )
        raise ConfigError([problem]) from error


def _refused(error: MarkedYAMLError, name: str, accepted: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    where = name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"
    got = str(error.problem or error.context or "unreadable text").splitlines()[0]
    return ConfigError([Problem(path=where, got=got, accepted=accepted)])


def _mapping(pairs: Sequence[tuple[str, Any]], name: str) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError([Problem(path=name, got=f'duplicate key "{twice}"', accepted="each key once")])
    return mapping
