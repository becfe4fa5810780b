"""Values as written, through upstream's parsers and the project's."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reactor.config.duration import parse_duration
from reactor.config.kubelet import minimum_reclaim, threshold_value
from reactor.errors import Refused
from reactor.model.quantity import parse_quantity
from tests.upstream.differential.compare import Difference
from tests.upstream.differential.oracle import EVICTION, ask
from tests.upstream.differential.words import Json

_QUANTITIES: Final = (
    "100Mi 1.5Gi .5Gi 5. 1e3 1E3 1E 1e 12E +1Gi -1 -0 0 00012 1Ki 1ki 1K 1m 500m 0.1 1n 0.1n 1u 100u "
    "1Pi 8Ei 7Ei 9223372036854775807 9223372036854775808 1e18 1e19 1e400 0x10 1_000 1,5Gi Mi . + 1GiB "
    "1gi NaN Inf 1e-3 1e+3 1E-9 1.5e3Mi 0% 100% 10% 10.5% .5% 5.% +5% -5% -0% 00% 0.0% 100.0% 1e1% "
    "1E1% 101% 100.5% 200% 10000% 10001% % 10%% 0x1p-2% NaN% Inf% 1_0% 0.0000001% 99.999999% 150% "
    "1e-50%"
)
_DURATIONS: Final = (
    "1m 1h30m 1.5h -5m 5 0 -0 +0 1d 1us 1µs 1μs 1ns 1.5ns .5s 5.s 1h-5m +5s 1s 1H 1h1h 1m1h "
    "9223372036854775807ns 9223372036854775808ns 2562047h47m16.854775807s 2562048h 1e3s 0x1s .s s "
    "1ms1us1ns 0.000000001s 0.1ns 100000000000000000000s 1..5s -.5s --5s \u0661s"
)
_WITH_BLANKS: Final = ("", " 1", "1 ", "1 Gi", " 10%", "10 %", " 1s", "1s ")
_PIECES: Final = (*"0159.+-eEkMGTmun% hs", "10", "100", "Ki", "Mi", "Gi", "Ti", "Ei", "ms", "us")
_LARGEST: Final = 2**63 - 1
_NO_DIGIT: Final = re.compile(r"[^0-9]*(?:[eE][+-]?[0-9]+)?")
_PLAIN_SHARE: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)%", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parser:
    """One kind of value: what the oracle is asked for a text, and what the project makes of it."""

    name: str
    asked: Callable[[str], Json]
    parse: Callable[[str], Any]
    is_same: Callable[[Json, Any], bool] = lambda _theirs, _mine: True


_PARSERS: Final = (
    _Parser(
        name="quantity",
        asked=lambda text: {"op": "quantity", "text": text},
        parse=parse_quantity,
        # Below zero the two round in different directions; above 63 bits upstream has 0, here the largest.
        is_same=lambda theirs, mine: (
            mine.amount < 0 or mine.value == _LARGEST or theirs.get("value", 0) == mine.value
        ),
    ),
    _Parser(
        name="duration",
        asked=lambda text: {"op": "duration", "text": text},
        parse=parse_duration,
        is_same=lambda theirs, mine: (
            abs(theirs.get("nanos", 0) / 1e9 - float(mine)) <= 1e-9 * max(1, abs(float(mine)))
        ),
    ),
    _Parser(
        name="threshold",
        asked=lambda text: {"op": "thresholds", "hard": {"memory.available": text}},
        parse=threshold_value,
    ),
    _Parser(
        name="minimum reclaim",
        asked=lambda text: {
            "op": "thresholds",
            "hard": {"memory.available": "1Gi"},
            "minima": {"memory.available": text},
        },
        parse=minimum_reclaim,
    ),
)


def written_differences(oracle: Path, count: int) -> tuple[int, list[Difference]]:
    """Return how many texts went through each parser, and the differences that are not known.

    Known, and stricter here: what has no digit (`Mi`, `+`) is no quantity, and a share is plain digits and no
    more than 100 % (upstream's limit is 10,000 %, and its shares may be `0x1p-2%`).
    """
    texts = _texts(count)
    found = []
    for parser in _PARSERS:
        lines = ask(oracle, EVICTION, [{"id": text, **parser.asked(text)} for text in texts])
        answers = {line["id"]: line for line in lines}
        found += [
            Difference(step=0, kind=f"written:{parser.name}", text=f"{text!r}: {problem}")
            for text in texts
            if (problem := _problem(parser, text, answers.get(text, {}))) is not None
        ]
    return len(texts), found


def _problem(parser: _Parser, text: str, theirs: Json) -> str | None:
    try:
        mine = parser.parse(text)
    except (ValueError, Refused) as error:
        return (
            None
            if theirs.get("error") or _is_stricter_here(text)
            else f"refused here, accepted upstream: {error}"
        )
    if theirs.get("error"):
        return f"accepted here, refused upstream: {theirs['error']}"
    return None if parser.is_same(theirs, mine) else f"{mine!r} here, {theirs} upstream"


def _is_stricter_here(text: str) -> bool:
    if text.endswith("%"):
        return _PLAIN_SHARE.fullmatch(text) is None or float(text[:-1]) > 100
    return _NO_DIGIT.fullmatch(text) is not None


def _texts(count: int) -> Sequence[str]:
    draw = random.Random(1)
    made = (
        "".join(draw.choice(_PIECES) for _ in range(draw.choice((1, 2, 2, 3, 3, 4, 5)))) for _ in range(count)
    )
    return tuple(dict.fromkeys((*_QUANTITIES.split(), *_DURATIONS.split(), *_WITH_BLANKS, *made)))
