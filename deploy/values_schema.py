"""The schema of the chart's values: the values themselves here, the configuration below them from reactor's settings.

What a value of the configuration may be is said by its type in reactor.config: each type has its form below. A new
type of text or number without one takes any text or number, any other type without one is an error: a new setting is
never left out. The forms accept all that the daemon accepts; it checks more (what belongs together, which numbers
make sense), as `reactor config check` does.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from reactor.config import kubelet, rules, scalars, section
from reactor.config.decode import key_of
from reactor.model.pod_lists import BUILT_IN_NEVER
from reactor.model.quantity import Quantity
from reactor.model.thresholds import ThresholdValue

Schema = dict[str, Any]

_NUMBER: Final = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
_QUANTITY: Final = rf"\+?{_NUMBER}([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
_SPAN: Final = rf"\+?({_NUMBER}(ns|us|µs|μs|ms|s|m|h))+|[+-]?0"
_DNS_LABEL: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


def _text(pattern: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"pattern": f"^({pattern})$"} if pattern else {}), **more}


def _whole(low: int | None = None, high: int | None = None) -> Schema:
    bounds = {"minimum": low, "maximum": high}
    return {"type": "integer", **{key: value for key, value in bounds.items() if value is not None}}


def _any_of(*forms: Schema) -> Schema:
    return {"anyOf": list(forms)}


def _off(form: Schema) -> Schema:
    return _any_of(form, {"const": False})  # what YAML 1.1 makes of off


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _object(properties: Mapping[str, Schema], *, required: tuple[str, ...] = (), **more: Any) -> Schema:
    made: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        made["required"] = list(required)
    return {**made, **more}


_SPAN_FORM: Final = _any_of(_text(_SPAN), {"const": 0})
_QUANTITY_FORM: Final = _any_of(_text(_QUANTITY), {"type": "number", "minimum": 0})
_SHARE_OR_QUANTITY: Final = _any_of(_text(rf"{_NUMBER}%|{_QUANTITY}"), {"type": "number", "minimum": 0})
_PATH_FORM: Final = _text("/.*")
_COMMAND: Final = {"type": "array", "minItems": 1, "items": {"type": "string"}}
_PODS: Final = _any_of(_text(".+"), {"type": "object"})
_NEEDED: Final = frozenset({"image", "dryRun", "config", "runtime"})  # no pool takes them away
_STRINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}

_FORMS: Final[dict[Any, Schema]] = {
    str: {"type": ["string", "integer"]},
    bool: {"type": "boolean"},
    int: _whole(),
    scalars.Count: _whole(0),
    scalars.Percent: _whole(0, 100),
    scalars.Int32: _whole(-(2**31), 2**31 - 1),
    scalars.Seconds: _SPAN_FORM,
    Quantity: _QUANTITY_FORM,
    ThresholdValue: _SHARE_OR_QUANTITY,
    kubelet.MinimumReclaim: _SHARE_OR_QUANTITY,
    section.ProtectingRule: _PODS,
    section.PreferringRule: _PODS,
    section.ProcessRule: _PODS,
    section.Name: {"type": "string"},
    section.BuiltIn: {"enum": sorted(BUILT_IN_NEVER)},
    section.PodPriority: _whole(-(2**31), 2**31 - 1),
    section.CgroupPath: _PATH_FORM,
    section.ParentPath: _PATH_FORM,
    section.AbsolutePath: _PATH_FORM,
    section.Address: _off(_text(r"(\[[0-9a-fA-F:.]+\]|[^:\s]+):[0-9]{1,5}|off")),
    section.Endpoint: _text("(unix://)?/.*"),
    section.HttpsUrl: _text(r"https://[^\s@?#]+"),
    section.WebUrl: _text("https?://.+"),
    section.NodeName: {"type": ["string", "integer"]},
    section.Namespace: _off(_text(_DNS_LABEL)),
    section.Commands: {"type": "array", "items": _any_of({"type": "string"}, _COMMAND)},
    section.Interval: _SPAN_FORM,
    section.SoftReclaimTime: _SPAN_FORM,
    section.HookTime: _SPAN_FORM,
    section.LeaseTime: _SPAN_FORM,
    section.Size: _QUANTITY_FORM,
    section.Positive: _whole(1, 1_000_000),
    section.FifoPriority: _whole(0, 99),
    section.OomScore: _whole(-1000, 1000),
    rules.RuleName: _text("[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?"),
    rules.PressureKind: {"type": "string"},
    rules.Share: _text(r"[0-9]{1,3}(\.[0-9]{1,2})?%"),
    rules.Window: _SPAN_FORM,
    rules.Amount: _whole(1, 10**12),
    rules.Bytes: _QUANTITY_FORM,
    rules.ReclaimAmount: _SHARE_OR_QUANTITY,
    rules.ReclaimTime: _SPAN_FORM,
}


def form_of(kind: Any) -> Schema:
    """Return the schema of a type. Raises TypeError for one that is not known."""
    if kind in _FORMS:
        return _FORMS[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        values = [str(one.value) for one in kind]
        return _off({"enum": values}) if "off" in values else {"enum": values}
    if dataclasses.is_dataclass(kind):
        return _object(_fields(kind))
    plain = getattr(kind, "__supertype__", None)
    if plain in {str, float, int}:
        return {"type": "string"} if plain is str else {"type": ["string", "number"]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        (inner,) = (one for one in arguments if one is not type(None))
        return form_of(inner)
    if origin is tuple:
        return _list(form_of(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        key, value = arguments
        if isinstance(key, type) and issubclass(key, Enum):
            return _object({str(one.value): _or_null(form_of(value)) for one in key})
        return {"type": "object", "additionalProperties": _or_null(form_of(value))}
    raise TypeError(f"{kind}: has no form in deploy/values_schema.py")


def _or_null(form: Schema) -> Schema:
    """A key with the value null is an absent one; in a pool it takes the common one away."""
    return _any_of(form, {"type": "null"})


def _fields(cls: Any) -> dict[str, Schema]:
    hints = typing.get_type_hints(cls)
    return {key_of(field): _or_null(form_of(hints[field.name])) for field in dataclasses.fields(cls)}


def configuration() -> Schema:
    """Return the schema of `config`: the keys that reactor reads, so that a typing error is one."""
    own = _object(_fields(section.Section))
    del own["properties"]["dryRun"]  # the value dryRun
    read = _fields(kubelet.KubeletConfiguration)
    about = {key: _or_null({"type": "string"}) for key in ("apiVersion", "kind")}
    return _object({**about, **read, "reactor": _or_null(own)})


def _chart() -> dict[str, Schema]:
    resources = _object(
        {
            name: _or_null({"type": "object", "additionalProperties": _or_null(_QUANTITY_FORM)})
            for name in ("limits", "requests")
        }
    )
    image = _object({name: _text(".+") for name in ("repository", "tag")} | {
        "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
        "pullSecrets": _list(_object({"name": _text(".+")}, required=("name",))),
    })
    at_once = _any_of(_whole(0), _text("[0-9]+%"))
    expression = _object(
        {
            "key": _text(".+"),
            "operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]},
            "values": _list({"type": "string"}),
        },
        required=("key", "operator"),
    )
    toleration = _object(
        {
            **{name: {"type": "string"} for name in ("key", "value")},
            "operator": {"enum": ["Exists", "Equal", "Lt", "Gt"]},
            "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            "tolerationSeconds": _whole(0),
        }
    )
    named = {"type": "object", "required": ["name"], "properties": {"name": _text(_DNS_LABEL)}}
    texts = {"type": "object", "additionalProperties": _or_null({"type": "string"})}
    of_group = {
        "image": image,
        "dryRun": {"type": "boolean"},
        "config": {"$ref": "#/definitions/configuration"},
        "runtime": {"enum": ["containerd", "crio"]},
        "resources": resources,
        "priorityClassName": {"type": "string"},
        "updateStrategy": _object(
            {
                "type": {"enum": ["RollingUpdate", "OnDelete"]},
                "rollingUpdate": _object({"maxSurge": at_once, "maxUnavailable": at_once}),
            }
        ),
        "minReadySeconds": _whole(0),
        "tolerations": _list(toleration),
        "podAnnotations": texts,
        "podLabels": texts,
        "seLinuxOptions": _object({name: {"type": "string"} for name in ("user", "role", "type", "level")}),
        "extraEnv": _list({"type": "object", "required": ["name"], "properties": {"name": _text(".+")}}),
        "extraVolumes": _list(named),
        "extraVolumeMounts": _list(
            {**named, "required": ["name", "mountPath"], "properties": {"mountPath": _PATH_FORM}}
        ),
    }
    pool = _object(
        {
            **{key: form if key in _NEEDED else _or_null(form) for key, form in of_group.items()},
            "name": _text("[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?"),
            "nodeSelector": {**_STRINGS, "minProperties": 1},
        },
        required=("name", "nodeSelector"),
    )
    subject = {"type": "object", "required": ["kind", "name"]}
    enabled = {"enabled": {"type": "boolean"}}
    metrics = _object(
        {
            "proxy": _object(
                {
                    **enabled,
                    "image": _object({key: form for key, form in image["properties"].items() if key != "pullSecrets"}),
                    "port": _whole(1, 65535),
                    "tlsSecret": {"type": "string"},
                    "scrapers": _list(subject),
                    "priorityClassName": {"type": "string"},
                    "resources": resources,
                }
            ),
            "podMonitor": _object(
                {
                    **enabled,
                    "labels": _STRINGS,
                    "interval": _text("([0-9]+(ms|s|m|h))+"),
                    "tlsConfig": {"type": "object"},
                    "credentials": _object({"name": {"type": "string"}, "key": _text(".+")}),
                }
            ),
            "rules": _object({**enabled, "labels": _STRINGS, "runbookBase": _text("|https?://.+")}),
            "dashboard": _object({**enabled, "labels": _STRINGS}),
        }
    )
    return {
        **of_group,
        "global": {},  # Helm's own
        "pools": _list(pool),
        "deleteEvictedPods": {"type": "boolean"},
        "ownNodeOnly": {"enum": ["auto", True, False, "true", "false"]},
        "cleanNodes": {"type": "boolean"},
        "nodeSelector": _STRINGS,
        "nodeExpressions": _list(expression),
        "resourceQuota": {"type": "boolean"},
        "openshift": {"type": "boolean"},
        "namespace": _object({"create": {"type": "boolean"}}),
        "metrics": metrics,
        "networkPolicy": _object({**enabled, "from": _list({"type": "object"})}),
    }


def text() -> str:
    """Return values.schema.json."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart reactor; generated by deploy/generate.py",
        "definitions": {"configuration": configuration()},
        **_object(_chart()),
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
