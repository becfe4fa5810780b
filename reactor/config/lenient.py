"""Documents of others, read as far as they can be, or reduced to what is read of them; nothing raises.

`decode` reports all that is wrong with a document to its operator. A pod is its tenant's, and an odd value in
it must neither hide the pod nor decide anything: a field, an item or a key that can't be read counts as not
given. Keys that are not asked for are not read.

A recording keeps what reading needs. That follows from the dataclass that a document is decoded as, so that a
key that is read is kept, too. What a document of that kind must not lose, or must not keep, beyond its fields
stands beside its class (`register_reduction`).
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from reactor.config.decode import key_of
from reactor.config.scalars import HOOKS
from reactor.errors import Refused

_T = TypeVar("_T")
_Read = Callable[[Any], Any]  # raises Refused where nothing of it can be read
_Change = Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]]
_SCALARS: Final[Mapping[Any, Callable[[Any, Any], Any]]] = dict(HOOKS)
_PREPARATIONS: Final[dict[type, _Read]] = {}
_CHANGES: Final[dict[type, _Change]] = {}


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


def reduced(raw: Any, cls: type) -> Any:
    """Return what `cls`, a dataclass, reads of `raw`: `decode` makes the same of both.

    What has no accepted form is kept as an empty mapping where a mapping is read, and as it is elsewhere.
    """
    return _reduction(cls)(raw)


def register_preparation(cls: type, prepare: Callable[[Any], Any]) -> None:
    _PREPARATIONS[cls] = prepare


def register_reduction(cls: type, change: _Change) -> None:
    """Have `change` return what is kept of a `cls`, given what was written and what its fields keep of it."""
    _CHANGES[cls] = change


_Fields = Sequence[tuple[dataclasses.Field[Any], str, _Read]]  # with its key and what its value is read by


class _Purpose(Protocol):
    """What is made of each kind of value that documents have."""

    def scalar(self, cls: Any) -> _Read: ...
    def record(self, cls: type[Any], fields: _Fields) -> _Read: ...
    def sequence(self, item: _Read) -> _Read: ...
    def mapping(self, key: _Read, value: _Read) -> _Read: ...


def _walk(cls: Any, purpose: _Purpose) -> _Read:
    if cls in _SCALARS:
        return purpose.scalar(cls)
    if dataclasses.is_dataclass(cls):
        record = typing.cast("type[Any]", cls)
        hints = typing.get_type_hints(record)
        fields = dataclasses.fields(record)
        return purpose.record(record, [(one, key_of(one), _walk(hints[one.name], purpose)) for one in fields])
    origin, arguments = typing.get_origin(cls), typing.get_args(cls)
    if origin in {types.UnionType, typing.Union}:
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _walk(inner, purpose)
    if origin is tuple:
        return purpose.sequence(_walk(arguments[0], purpose))
    if origin is collections.abc.Mapping:
        key, value = arguments
        return purpose.mapping(_walk(key, purpose), _walk(value, purpose))
    raise TypeError(f"{cls!r}: no kind of field that documents have")


class _Reading:
    """To values, what is refused left out."""

    def scalar(self, cls: Any) -> _Read:
        hook = _SCALARS[cls]
        return lambda raw: hook(raw, cls)

    def record(self, cls: type[Any], fields: _Fields) -> _Read:
        known = [(field.name, key, read, _is_required(field)) for field, key, read in fields]

        def read(raw: Any) -> Any:
            if not isinstance(raw, Mapping):
                raise Refused(raw, "a mapping")
            prepare = _PREPARATIONS.get(cls)
            raw = raw if prepare is None else prepare(raw)
            found: dict[str, Any] = {}
            for name, key, read_field, is_required in known:
                value = raw.get(key)
                if value is not None:
                    with suppress(Refused):
                        found[name] = read_field(value)
                if is_required and name not in found:
                    raise Refused(raw, f"a mapping with {key}")
            return cls(**found)

        return read

    def sequence(self, item: _Read) -> _Read:
        def read(raw: Any) -> Any:
            if not isinstance(raw, list):
                raise Refused(raw, "a list")
            found = []
            for one in raw:
                with suppress(Refused):
                    found.append(item(one))
            return tuple(found)

        return read

    def mapping(self, key: _Read, value: _Read) -> _Read:
        def read(raw: Any) -> Any:
            if not isinstance(raw, Mapping):
                raise Refused(raw, "a mapping")
            found = {}
            for named, given in raw.items():
                if given is not None:
                    with suppress(Refused):
                        found[key(named)] = value(given)
            return found

        return read


class _Reducing:
    """To the same document with what is read of it, and nothing else."""

    def scalar(self, _: Any) -> _Read:
        return lambda raw: raw

    def record(self, cls: type[Any], fields: _Fields) -> _Read:
        # An empty value says no more than an absent one: not where None is the absent one.
        known = [(key, reduce, field.default is not None) for field, key, reduce in fields]
        change = _CHANGES.get(cls)

        def reduce(raw: Any) -> Any:
            if not isinstance(raw, Mapping):
                return {}
            found: dict[str, Any] = {}
            for key, reduce_field, may_go in known:
                value = raw.get(key)
                if value is not None:
                    kept = reduce_field(value)
                    if kept not in ({}, []) or not may_go:
                        found[key] = kept
            return found if change is None else change(raw, found)

        return reduce

    def sequence(self, item: _Read) -> _Read:
        return lambda raw: [item(one) for one in raw] if isinstance(raw, list) else []

    def mapping(self, _: _Read, value: _Read) -> _Read:
        def reduce(raw: Any) -> Any:
            if not isinstance(raw, Mapping):
                return {}
            return {key: value(given) for key, given in raw.items() if given is not None}

        return reduce


@functools.cache
def _reader(cls: Any) -> _Read:
    return _walk(cls, _Reading())


@functools.cache
def _reduction(cls: Any) -> _Read:
    return _walk(cls, _Reducing())


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
