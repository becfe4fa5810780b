"""Plain values to typed ones, by cattrs; every problem is found in one go and carries its path.

Documents come in two kinds. Ours (scenarios, reactor's section) refuse unknown keys, since those are typing
errors. Upstream's (KubeletConfiguration, v1.Pod, Summary) are larger than what is read of them here.
As in Kubernetes, a key with the value null is an absent key.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from cattrs import BaseValidationError, ClassValidationError, Converter
from cattrs.errors import ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, override

from reactor.config.scalars import HOOKS
from reactor.errors import ConfigError, Problem, Refused, join
from reactor.text import did_you_mean

T = TypeVar("T")
UNKNOWN_KEY: Final = "an unknown key"
_MOST_HINTS: Final = 100  # a mapping with more unknown keys is of another kind, and difflib is slow


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Why a key of a document of our own is gone, and what is accepted in its place."""

    because: str
    accepted: str


_STRICT: set[type] = set()
REMOVED: Final[dict[tuple[type, str], Removed]] = {}  # by class and key

# What aliases make of a few lines of YAML may be endless: its repr is not.


def decode(raw: object, cls: type[T], *, root: str = "") -> T:
    """Return `raw` as a `cls`. Raises ConfigError with every problem; paths start with `root`."""
    try:
        return CONVERTER.structure(raw, cls)
    except RecursionError as error:
        problem = Problem(
            path=root or "document", got="endless nesting", accepted="a document of finite depth"
        )
        raise ConfigError([problem]) from error
    except Exception as error:
        if not isinstance(error, (BaseExceptionGroup, BaseValidationError, Refused, ForbiddenExtraKeysError)):
            raise
        problems = list(_problems(error, root))
        _untie(error)
        raise ConfigError(problems) from None


def _untie(error: BaseException) -> None:
    """Take the frames from an error and those inside it, and with them the cycles: a frame keeps its errors.

    Documents come by the thousand from peers, and the daemon keeps Python's collector off between its ticks.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    inner = error.error if isinstance(error, _Within) else None
    for one in error.exceptions if isinstance(error, BaseExceptionGroup) else (inner,):
        if one is not None:
            _untie(one)


def key_of(field: dataclasses.Field[Any]) -> str:
    """Return a field's key in documents: its own metadata's, else its name in camel case."""
    named = field.metadata.get("key")
    if named is not None:
        return str(named)
    first, *others = field.name.split("_")
    return first + "".join(word.capitalize() for word in others)


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
            known = [key_of(field) for field in dataclasses.fields(error.cl)]
            for key in sorted(error.extra_fields, key=str):
                hint = did_you_mean(key, known) if len(error.extra_fields) <= _MOST_HINTS else ""
                got, accepted = UNKNOWN_KEY + hint, f"one of {', '.join(known)}"
                if (removed := REMOVED.get((error.cl, key))) is not None:
                    got, accepted = f"a key that was removed: {removed.because}", removed.accepted
                yield Problem(path=join(path, key), got=got, accepted=accepted)
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


def _optional_hook(cls: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """Return the hook of `X | None`: that of X, since a null is an absent key and never comes here."""
    (inner,) = (argument for argument in cls.__args__ if argument is not type(None))
    return converter.get_structure_hook(inner)


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
    for scalar, hook in HOOKS:
        register_scalar(converter, scalar, hook)
    return converter


def register_scalar(converter: Converter, scalar: Any, hook: Callable[[Any, type], Any]) -> None:
    # By class, not by a predicate: for str, bool and int cattrs has hooks by class that it asks first, and
    # they take anything (`bool("false")`).
    converter.register_structure_hook(scalar, hook)


CONVERTER = _converter()


def check_document(cls: type[Any], checks: Callable[[Mapping[str, Any]], Iterable[Refused]]) -> None:
    """Have a document checked as a whole, too, and all that is wrong with it reported in one go.

    `checks` reads the document as written, so that its findings don't wait for single keys to be mended.
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
