from __future__ import annotations

import pytest

from reactor.terminal.top.sections import Rates


def test_a_rate_is_the_change_over_the_last_ten_seconds():
    rates = Rates()
    for second in range(20):
        rates.see("memory", 1000 if second < 10 else 1000 - 5 * (second - 10), float(second))

    assert rates.per_second("memory") == pytest.approx(-4.5, abs=0.5)


def test_one_look_gives_no_rate():
    rates = Rates()
    rates.see("memory", 1000, 1.0)

    assert rates.per_second("memory") is None
    assert rates.per_second("disk") is None


def test_the_same_look_told_twice_is_one():
    rates = Rates()
    rates.see("disk", 1000, 1.0)
    rates.see("disk", 1000, 1.0)

    assert rates.per_second("disk") is None


def test_what_is_observed_every_ten_seconds_has_a_rate_and_what_is_a_minute_old_has_none():
    rates = Rates()
    rates.see("disk", 1000, 0.0)
    rates.see("disk", 900, 10.0)
    assert rates.per_second("disk") == -10

    rates.see("disk", 900, 75.0)
    assert rates.per_second("disk") is None


def test_what_is_no_longer_shown_is_forgotten_and_what_is_stays():
    rates = Rates()
    for second in (0.0, 1.0):
        rates.see("gone", second, second)
        rates.see("stays", second, second)
    rates.forget_all_but(["stays"])

    assert (rates.per_second("gone"), rates.per_second("stays")) == (None, 1)
