"""Quantities and durations held against their grammars."""

from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from reactor.config.duration import parse_duration
from reactor.model.quantity import parse_quantity

SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    "M": Fraction(10**6),
    "Ki": Fraction(1024),
    "Mi": Fraction(1024**2),
    "Gi": Fraction(1024**3),
    "e3": Fraction(1000),
    "E-2": Fraction(1, 100),
}
UNITS = {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": Fraction(1)} | {
    "m": Fraction(60),
    "h": Fraction(3600),
}
NUMBERS = st.from_regex(r"([0-9]{1,6}(\.[0-9]{0,3})?|\.[0-9]{1,3})", fullmatch=True, alphabet="0123456789.")


@given(NUMBERS, st.sampled_from(sorted(SUFFIXES)), st.sampled_from(["", "+", "-"]))
def test_a_quantity_means_number_times_suffix_to_the_billionth(number: str, suffix: str, sign: str) -> None:
    exact = Fraction(number) * SUFFIXES[suffix]
    billionths = -(-exact * 10**9 // 1)
    expected = Fraction(billionths, 10**9) * (-1 if sign == "-" else 1)
    assert expected == parse_quantity(f"{sign}{number}{suffix}").amount


@given(st.integers(0, 2**63 - 1), st.sampled_from(["", "Ki", "Mi", "Gi"]))
def test_a_quantity_is_printed_as_one_that_means_the_same(number: int, suffix: str) -> None:
    quantity = parse_quantity(f"{number}{suffix}")
    assert quantity == parse_quantity(str(quantity))


@given(st.text())
@example("9" * 5000)
@example("0." + "1" * 5000)
@example("1e999")
@example("1e-999")
def test_any_text_is_a_quantity_within_64_bits_or_refused(text: str) -> None:
    try:
        quantity = parse_quantity(text)
    except ValueError:
        return
    assert abs(quantity.amount) < 2**63
    assert isinstance(quantity.value, int)
    assert isinstance(str(quantity + quantity), str)


@given(st.lists(st.tuples(NUMBERS, st.sampled_from(sorted(UNITS))), min_size=1, max_size=4), st.booleans())
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[str, str]], is_negative: bool) -> None:  # noqa: FBT001 - hypothesis gives it by position
    text = "".join(number + unit for number, unit in parts)
    expected = sum(Fraction(number) * UNITS[unit] for number, unit in parts)
    assume(expected < 290 * 365 * 24 * 3600)  # what is longer is refused
    assert float(-expected if is_negative else expected) == parse_duration("-" * is_negative + text)


@pytest.mark.parametrize("text", ["0", "+0", "-0"])
def test_zero_needs_no_unit(text: str) -> None:
    assert 0 == parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "5", "1d", "s", "1 s", "1s ", "--1s", "1s-1s", "٣s", "1e3s", "9" * 5000 + "s"]
)
def test_a_duration_refuses_what_go_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["2562048h", "9223372037s", "-2562048h"])
def test_a_duration_has_64_bits_of_nanoseconds(text: str) -> None:
    with pytest.raises(ValueError, match="less than 292 years"):
        parse_duration(text)


@given(st.text())
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert isinstance(seconds, float)
