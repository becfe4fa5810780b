"""Documents of others, read as far as they can be: what has no accepted form is left out, and nothing raises.

`decode` reports all that is wrong with a document to its operator. A pod is its tenant's, and an odd value in
it must neither hide the pod nor decide anything: a field, an item or a key that can't be read counts as not
given. Keys that are not asked for are not read.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from reactor.config.decode import key_of
from reactor.config.refused import Refused
from reactor.config.scalars import HOOKS

_T = TypeVar("_T")
_Read = Callable[[Any], Any]  # raises Refused where nothing of it can be read
_SCALARS: Final[Mapping[Any, Callable[[Any, Any], Any]]] = dict(HOOKS)
_PREPARATIONS: Final[dict[type, _Read]] = {}


def decode_leniently(raw: object, cls: type[_T]) -> _T:
    """Return what can be read of `raw` as a `cls`, a dataclass all of whose fields have defaults.

    An item that lacks what is required of it, as a container without a name, is left out.
    """
    try:
        kind: Any = cls
        found: _T = _reader(kind)(raw)
    except Refused:
        return cls()
    return found


def register_preparation(cls: type, prepare: Callable[[Any], Any]) -> None:
    """Have what a `cls` is read from changed by `prepare` first."""
    _PREPARATIONS[cls] = prepare


@functools.cache
def _reader(cls: Any) -> _Read:
    scalar = _SCALARS.get(cls)
    if scalar is not None:
        return lambda raw: scalar(raw, cls)
    if dataclasses.is_dataclass(cls):
        return _class_reader(typing.cast("type[Any]", cls))
    origin, arguments = typing.get_origin(cls), typing.get_args(cls)
    if origin in {types.UnionType, typing.Union}:
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _reader(inner)
    if origin is tuple:
        return _sequence_reader(_reader(arguments[0]))
    if origin is collections.abc.Mapping:
        return _mapping_reader(*map(_reader, arguments))
    raise TypeError(f"{cls!r}: no kind of field that documents have")


def _class_reader(cls: type[Any]) -> _Read:
    hints = typing.get_type_hints(cls)
    fields = [
        (field.name, key_of(field), _reader(hints[field.name]), _is_required(field))
        for field in dataclasses.fields(cls)
    ]

    def read(raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            raise Refused(raw, "a mapping")
        prepare = _PREPARATIONS.get(cls)
        raw = raw if prepare is None else prepare(raw)
        found: dict[str, Any] = {}
        for name, key, read_field, is_required in fields:
            value = raw.get(key)
            if value is not None:
                with suppress(Refused):
                    found[name] = read_field(value)
            if is_required and name not in found:
                raise Refused(raw, f"a mapping with {key}")
        return cls(**found)

    return read


def _sequence_reader(read_item: _Read) -> _Read:
    def read(raw: Any) -> Any:
        if not isinstance(raw, list):
            raise Refused(raw, "a list")
        found = []
        for item in raw:
            with suppress(Refused):
                found.append(read_item(item))
        return tuple(found)

    return read


def _mapping_reader(read_key: _Read, read_value: _Read) -> _Read:
    def read(raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            raise Refused(raw, "a mapping")
        found = {}
        for key, value in raw.items():
            if value is not None:
                with suppress(Refused):
                    found[read_key(key)] = read_value(value)
        return found

    return read


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
