import pytest

from reactor.model.quantity import amount_text, bytes_text, duration_text
from reactor.model.signals import IN_BYTES, RESOURCE_IN, UNIT, Resource


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-3, "0s"),
        (0.9, "0s"),
        (59, "59s"),
        (60, "1m"),
        (80, "1m20s"),
        (3900, "1h05m"),
        (90000, "1d01h"),
    ],
)
def test_a_time_stands_in_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("amount_bytes", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (100 << 20, "100Mi"),
        ((1 << 30) + (1 << 29), "1.5Gi"),
        (-1_500_000, "-1.4Mi"),
    ],
)
def test_bytes_have_a_binary_suffix_and_a_decimal_where_there_is_a_rest(amount_bytes: int, text: str) -> None:
    assert bytes_text(amount_bytes) == text


def test_counts_are_written_as_they_are_and_what_is_not_known_is_unknown() -> None:
    assert "5000" == amount_text(5000, Resource.INODES)
    assert "4.9Ki" == amount_text(5000, Resource.MEMORY)
    assert "unknown" == amount_text(None, Resource.MEMORY)


@pytest.mark.parametrize("resource", Resource)
def test_each_resource_has_a_unit_that_leads_back_to_it(resource: Resource) -> None:
    found = RESOURCE_IN[UNIT[resource]]
    assert found is resource or {found, resource} <= IN_BYTES
