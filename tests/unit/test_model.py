from fractions import Fraction

import pytest

from reactor.model.quantity import Quantity, format_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("100Mi", 100 << 20),
        ("1.5Gi", 3 << 29),
        ("2G", 2_000_000_000),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
    ],
)
def test_quantity_has_kubernetes_meaning(text: str, amount: int | Fraction) -> None:
    assert amount == parse_quantity(text).amount


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "1gi", "1Gib", "1e3Ki", "--1", "٣", "1_000"])
def test_quantity_refuses_what_kubernetes_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="a quantity such as"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("1024Mi", "1Gi"), ("0.5Gi", "512Mi"), ("1500", "1500"), ("1000", "1k"), ("1500m", "1500m"), ("0", "0")],
)
def test_quantity_prints_its_canonical_form(text: str, canonical: str) -> None:
    assert canonical == str(parse_quantity(text))


def test_bytes_print_with_the_largest_suffix_that_divides_them() -> None:
    assert ("0", "1500", "1Ki", "512Mi") == tuple(format_bytes(n) for n in (0, 1500, 1024, 512 << 20))


def test_quantities_compare_by_amount() -> None:
    assert Quantity(Fraction(1024), "1Ki") == parse_quantity("1024")
