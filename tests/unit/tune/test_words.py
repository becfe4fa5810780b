import pytest

from reactor.tune.words import amount, duration, milliseconds, quantity, rate

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size_mib", "text"),
    [
        (0, "0 MiB"),
        (0.4123, "0.41 MiB"),
        (0.0012, "0.0012 MiB"),
        (12.34, "12.3 MiB"),
        (100, "100 MiB"),
        (999, "999 MiB"),
        (1536, "1.5 GiB"),
    ],
)
def test_an_amount_has_three_digits(size_mib: float, text: str) -> None:
    assert text == amount(size_mib * MIB)
    assert f"{text}/s" == rate(size_mib * MIB)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00041, "0.41 ms"), (0.25, "250 ms"), (12, "12 s"), (210, "3.5 min")]
)
def test_a_time_is_in_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert text == duration(seconds)


def test_a_column_of_times_is_in_milliseconds() -> None:
    assert ["0.5", "1500"] == [milliseconds(0.0005), milliseconds(1.5)]


def test_a_threshold_is_written_in_whole_mi_rounded_up() -> None:
    assert ["0Mi", "1Mi", "2Mi"] == [quantity(0), quantity(1), quantity(MIB + 1)]
