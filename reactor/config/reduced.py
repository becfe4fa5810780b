"""Documents with what decoding them reads, and nothing else: what a recording keeps of them.

What is kept follows from the dataclass that a document is decoded as, so that a key that is read is kept too.
What a document of that kind must not lose, or must not keep, beyond its fields stands beside its class
(`register_reduction`).
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from reactor.config.decode import key_of
from reactor.config.scalars import HOOKS

_Reduce = Callable[[Any], Any]
_Change = Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]]
_SCALARS: Final = frozenset(scalar for scalar, _ in HOOKS)
_CHANGES: Final[dict[type, _Change]] = {}


def reduced(raw: Any, cls: type) -> Any:
    """Return what `cls`, a dataclass, reads of `raw`: `decode` makes the same of both.

    What has no accepted form is kept as an empty mapping where a mapping is read, and as it is elsewhere.
    """
    return _reduction(cls)(raw)


def register_reduction(cls: type, change: _Change) -> None:
    """Have `change` return what is kept of a `cls`, given what was written and what its fields keep of it."""
    _CHANGES[cls] = change


@functools.cache
def _reduction(cls: Any) -> _Reduce:
    if cls in _SCALARS:
        return _as_it_is
    if dataclasses.is_dataclass(cls):
        return _class_reduction(typing.cast("type[Any]", cls))
    origin, arguments = typing.get_origin(cls), typing.get_args(cls)
    if origin in {types.UnionType, typing.Union}:
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _reduction(inner)
    if origin is tuple:
        return _sequence_reduction(_reduction(arguments[0]))
    if origin is collections.abc.Mapping:
        return _mapping_reduction(_reduction(arguments[1]))
    return _as_it_is


def _class_reduction(cls: type[Any]) -> _Reduce:
    hints = typing.get_type_hints(cls)
    fields = [
        (key_of(field), _reduction(hints[field.name]), _is_empty_by_default(field))
        for field in dataclasses.fields(cls)
    ]

    change = _CHANGES.get(cls)

    def reduce(raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return {}
        found: dict[str, Any] = {}
        for key, reduce_field, may_go in fields:
            value = raw.get(key)
            if value is not None:
                kept = reduce_field(value)
                if kept not in ({}, []) or not may_go:
                    found[key] = kept
        return found if change is None else change(raw, found)

    return reduce


def _sequence_reduction(reduce_item: _Reduce) -> _Reduce:
    def reduce(raw: Any) -> Any:
        return [reduce_item(item) for item in raw] if isinstance(raw, list) else []

    return reduce


def _mapping_reduction(reduce_value: _Reduce) -> _Reduce:
    def reduce(raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return {}
        return {key: reduce_value(value) for key, value in raw.items() if value is not None}

    return reduce


def _as_it_is(raw: Any) -> Any:
    return raw


def _is_empty_by_default(field: dataclasses.Field[Any]) -> bool:
    """Return whether an empty value says no more than an absent one: not where None is the absent one."""
    return field.default is not None
