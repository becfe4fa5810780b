"""Values of the cluster's small files, as plain JSON and back: strings are strings, fractions are exact."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import cattrs


def _text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r:.80}; accepted: a string")
    return value


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook(str, _text)
    converter.register_unstructure_hook(Fraction, str)
    converter.register_structure_hook(Fraction, lambda text, _: Fraction(text))
    return converter


CONVERTER: Final = _converter()
