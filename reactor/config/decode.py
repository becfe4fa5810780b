"""Plain values to typed ones, by cattrs; every problem is found in one go and carries its path.

Documents come in two kinds. Ours (scenarios, reactor's section) refuse unknown keys, since those are typing
errors. Upstream's (KubeletConfiguration, v1.Pod, Summary) are larger than what is read of them here.
As in Kubernetes, a key with the value null is an absent key.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NewType, TypeVar

from cattrs import BaseValidationError, ClassValidationError, Converter
from cattrs.errors import ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, override

from reactor.config import duration
from reactor.errors import ConfigError, Problem
from reactor.model import quantity
from reactor.model.pods import QosClass
from reactor.model.quantity import Quantity, parse_quantity
from reactor.model.signals import Filesystem, Layout, Reclaim, Signal

T = TypeVar("T")

Count = NewType("Count", int)
"""A number of bytes, inodes or processes: whole, from 0 to 2^64-1."""
Seconds = NewType("Seconds", float)
"""A span that is not negative, written as a duration."""
Instant = NewType("Instant", float)
"""An instant relative to a start, written as a duration; may be negative."""
Timestamp = NewType("Timestamp", float)
"""A point in time as metav1.Time writes it, in seconds since 1970."""
Percent = NewType("Percent", int)
"""A whole number from 0 to 100."""


class Refused(ValueError):  # noqa: N818 - it reads as what it is
    """A value is not of the accepted form. `at` is where, relative to the value being read."""

    def __init__(self, got: object, accepted: str, *, at: str = "") -> None:
        super().__init__(accepted)
        self.got = got if isinstance(got, Missing) else shorten(got)
        self.accepted = accepted
        self.at = at


class Missing:
    """Stands for a value that is not there."""

    def __str__(self) -> str:
        """Return what an error says was got."""
        return "nothing"


class _Within(Exception):  # noqa: N818
    """What is wrong with one item of a list or a mapping."""

    def __init__(self, key: object, error: Exception) -> None:
        super().__init__(str(error))
        self.key = key
        self.error = error


def strict(cls: type[T]) -> type[T]:
    """Mark a document of our own: unknown keys are refused."""
    _STRICT.add(cls)
    return cls


_STRICT: set[type] = set()

# What aliases make of a few lines of YAML may be endless: its repr is not.
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxdict, _REPR.maxlist, _REPR.maxstring, _REPR.maxother = 3, 8, 8, 200, 200


def decode(raw: object, cls: type[T], *, root: str = "") -> T:
    """Return `raw` as a `cls`. Raises ConfigError with every problem; paths start with `root`."""
    try:
        return CONVERTER.structure(raw, cls)
    except RecursionError as error:
        problem = Problem(path=root or "document", got="endless nesting", accepted="a document with an end")
        raise ConfigError([problem]) from error
    except Exception as error:
        if not isinstance(error, (BaseExceptionGroup, BaseValidationError, Refused, ForbiddenExtraKeysError)):
            raise
        raise ConfigError(list(_problems(error, root))) from error


def key_of(field: dataclasses.Field[Any]) -> str:
    """Return a field's key in documents: its own metadata's, else its name in camel case."""
    named = field.metadata.get("key")
    if named is not None:
        return str(named)
    first, *rest = field.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def join(path: str, key: object) -> str:
    """Return the path of a key or an index below `path`; keys with dots go in brackets and quotes."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    text = str(key)
    if re.fullmatch(r"[\w/-]+", text):
        return f"{path}.{text}" if path else text
    return f'{path}["{text}"]'


def _problems(error: BaseException, path: str) -> Iterator[Problem]:
    match error:
        case ClassValidationError():
            yield from _in_class(error, path)
        case _Within():
            yield from _problems(error.error, join(path, error.key))
        case BaseExceptionGroup():
            for inner in error.exceptions:
                yield from _problems(inner, path)
        case ForbiddenExtraKeysError():
            known = ", ".join(key_of(field) for field in dataclasses.fields(error.cl))
            for key in sorted(error.extra_fields, key=str):
                yield Problem(path=join(path, key), got="an unknown key", accepted=f"one of {known}")
        case Refused():
            where = path + error.at if error.at.startswith("[") or not path else f"{path}.{error.at}"
            yield Problem(
                path=(where if error.at else path) or "document", got=str(error.got), accepted=error.accepted
            )
        case _:
            yield Problem(
                path=path or "document", got=str(error), accepted="a document of the documented form"
            )


def _in_class(error: ClassValidationError, path: str) -> Iterator[Problem]:
    fields = {field.name: field for field in dataclasses.fields(error.cl)}
    noted, others = error.group_exceptions()
    for inner, note in noted:
        where = join(path, key_of(fields[note.name]))
        if isinstance(inner, KeyError):
            yield Problem(path=where, got="nothing", accepted="a value; the key is required")
        else:
            yield from _problems(inner, where)
    for inner in others:
        yield from _problems(inner, path)


def shorten(value: object) -> str:
    """Return a value's repr, cut where it would flood an error line."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # Python prints no number of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _class_hook(cls: type[Any], converter: Converter) -> Callable[[Any, type[Any]], Any]:
    renamed: dict[str, Any] = {
        field.name: override(rename=key_of(field)) for field in dataclasses.fields(cls)
    }
    structure = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=cls in _STRICT, **renamed)

    def hook(raw: Any, target: type[Any]) -> Any:
        # A recording holds millions of these: the common case, a dict without nulls, is taken first.
        if type(raw) is not dict and not isinstance(raw, Mapping):
            raise Refused(raw, "a mapping")
        if None in raw.values():
            raw = {key: value for key, value in raw.items() if value is not None}
        return structure(raw, target)

    return hook


def _string(raw: Any, _: type) -> str:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return str(raw)  # a uid of digits that nobody quoted
    if not isinstance(raw, str):
        raise Refused(raw, "a string")
    return raw


def _boolean(raw: Any, _: type) -> bool:
    if not isinstance(raw, bool):
        raise Refused(raw, "true or false")
    return raw


def _integer(raw: Any, _: type) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not -(2**63) <= raw < 2**63:
        raise Refused(raw, "a whole number")
    return raw


def _count(raw: Any, _: type) -> Count:
    whole = int(raw) if isinstance(raw, float) and raw.is_integer() else raw
    if isinstance(whole, bool) or not isinstance(whole, int) or not 0 <= whole < 2**64:
        raise Refused(raw, "a whole number from 0 to 2^64-1")
    return Count(whole)


def _percent(raw: Any, _: type) -> Percent:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw <= 100:
        raise Refused(raw, "a whole number from 0 to 100")
    return Percent(raw)


def _instant(raw: Any, _: type) -> Instant:
    text = str(raw) if raw == 0 and isinstance(raw, int) and not isinstance(raw, bool) else raw
    if not isinstance(text, str):
        raise Refused(raw, duration.ACCEPTED)
    try:
        return Instant(duration.parse_duration(text))
    except ValueError as error:
        raise Refused(raw, str(error)) from None


def _seconds(raw: Any, cls: type) -> Seconds:
    seconds = _instant(raw, cls)
    if seconds < 0:
        raise Refused(raw, f"{duration.ACCEPTED}, not negative")
    return Seconds(seconds)


def _timestamp(raw: Any, _: type) -> Timestamp:
    moment = raw
    if isinstance(raw, str):
        try:
            moment = datetime.fromisoformat(raw)
        except ValueError:
            raise Refused(raw, "a time such as 2026-01-31T12:00:00Z") from None
    if not isinstance(moment, datetime):
        raise Refused(raw, "a time such as 2026-01-31T12:00:00Z")
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return Timestamp(aware.timestamp())


def as_quantity(raw: object) -> Quantity:
    """Return a quantity from a string or a number, not negative. Raises Refused."""
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise Refused(raw, quantity.ACCEPTED)
    try:
        found = parse_quantity(str(raw))
    except ValueError:
        raise Refused(raw, quantity.ACCEPTED) from None
    if found.amount < 0:
        raise Refused(raw, f"{quantity.ACCEPTED}, not negative")
    return found


def _enumeration(raw: Any, cls: type[StrEnum]) -> StrEnum:
    try:
        return cls(raw)
    except ValueError:
        raise Refused(raw, f"one of {', '.join(cls)}") from None


def _optional_hook(cls: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """Return the hook of `X | None`; a null never comes here, since it is an absent key."""
    (inner,) = (argument for argument in cls.__args__ if argument is not type(None))
    structure = converter.get_structure_hook(inner)

    def hook(raw: Any, _: Any) -> Any:
        return structure(raw, inner)

    return hook


def _sequence_hook(cls: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    (item_type, _) = cls.__args__
    structure = converter.get_structure_hook(item_type)

    def hook(raw: Any, _: Any) -> Any:
        if not isinstance(raw, list):
            raise Refused(raw, "a list")
        return tuple(_each((index, item, item_type, structure) for index, item in enumerate(raw)))

    return hook


def _mapping_hook(cls: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    key_type, value_type = cls.__args__
    read_key, read_value = converter.get_structure_hook(key_type), converter.get_structure_hook(value_type)

    def hook(raw: Any, _: Any) -> Any:
        if not isinstance(raw, Mapping):
            raise Refused(raw, "a mapping")
        given = {key: value for key, value in raw.items() if value is not None}
        # Keys and values in one go: a wrong key must not hide a wrong value.
        keys = ((key, key, key_type, read_key) for key in given)
        values = ((key, value, value_type, read_value) for key, value in given.items())
        found = _each((*keys, *values))
        return dict(zip(found[: len(given)], found[len(given) :], strict=True))

    return hook


def _each(items: Iterable[tuple[object, object, Any, Callable[[Any, Any], Any]]]) -> list[Any]:
    """Return each item (its key, its value, its type, its hook) structured; raise all that is wrong."""
    found, errors = [], []
    for key, value, item_type, structure in items:
        try:
            found.append(structure(value, item_type))
        except (BaseValidationError, ExceptionGroup, Refused) as error:
            errors.append(_Within(key, error))
    if errors:
        raise ExceptionGroup("items", errors)
    return found


def _is_mapping(cls: Any) -> bool:
    return typing.get_origin(cls) is collections.abc.Mapping


def _is_sequence(cls: Any) -> bool:
    return typing.get_origin(cls) is tuple


def _is_optional(cls: Any) -> bool:
    # A NewType makes it a typing.Union, a class a types.UnionType.
    return typing.get_origin(cls) in {types.UnionType, typing.Union} and type(None) in cls.__args__


def _converter() -> Converter:
    converter = Converter(detailed_validation=True)
    # The last one registered is asked first.
    converter.register_structure_hook_factory(dataclasses.is_dataclass, _class_hook)
    converter.register_structure_hook_factory(_is_mapping, _mapping_hook)
    converter.register_structure_hook_factory(_is_sequence, _sequence_hook)
    converter.register_structure_hook_factory(_is_optional, _optional_hook)
    for enumeration in (Signal, Filesystem, Layout, Reclaim, QosClass):
        converter.register_structure_hook(enumeration, _enumeration)
    converter.register_structure_hook(Quantity, lambda raw, _: as_quantity(raw))
    for scalar, hook in (
        (str, _string),
        (bool, _boolean),
        (int, _integer),
        (Count, _count),
        (Percent, _percent),
        (Seconds, _seconds),
        (Instant, _instant),
        (Timestamp, _timestamp),
    ):
        register_scalar(converter, scalar, hook)
    return converter


def register_scalar(converter: Converter, scalar: Any, hook: Callable[[Any, type], Any]) -> None:
    """Make the converter read `scalar`, a type or a NewType, by `hook`."""
    # By class, not by a predicate: for str, bool and int cattrs has hooks by class that it asks first, and
    # they take anything (`bool("false")`).
    converter.register_structure_hook(scalar, hook)


CONVERTER = _converter()


def check_document(cls: type[Any], checks: Callable[[Mapping[str, Any]], Iterable[Refused]]) -> None:
    """Have a document checked as a whole, too, and be told of all that is wrong with it in one go.

    `checks` looks at the document as written, so that its findings don't wait for single keys to be mended.
    """
    read_fields = CONVERTER.get_structure_hook(cls)

    def read(raw: Any, target: Any) -> Any:
        errors: list[Exception] = []
        found = None
        try:
            found = read_fields(raw, target)
        except (BaseValidationError, Refused) as error:
            errors.append(error)
        errors.extend(checks(raw) if isinstance(raw, Mapping) else ())
        if errors:
            raise ExceptionGroup(cls.__name__, errors)
        return found

    CONVERTER.register_structure_hook(cls, read)
