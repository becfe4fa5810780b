import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.forms import FormError
from reactor.link.shutdown import (
    GO_ON,
    LONGEST_BYTES,
    MOST_SECONDS,
    ShutdownNews,
    ShutdownNewsKind,
    read_news,
    write_news,
)


@pytest.mark.parametrize(
    "news",
    [
        ShutdownNews(kind=ShutdownNewsKind.INHIBITED, seconds=30),
        ShutdownNews(kind=ShutdownNewsKind.INHIBITED, seconds=MOST_SECONDS),
        ShutdownNews(kind=ShutdownNewsKind.PREPARING),
        ShutdownNews(kind=ShutdownNewsKind.CANCELLED),
        ShutdownNews(kind=ShutdownNewsKind.PROBLEM, text="system bus: is not there"),
        ShutdownNews(kind=ShutdownNewsKind.PROBLEM),
    ],
)
def test_what_is_written_is_read(news: ShutdownNews) -> None:
    assert news == read_news(write_news(news))


def test_a_long_text_is_cut() -> None:
    raw = write_news(ShutdownNews(kind=ShutdownNewsKind.PROBLEM, text="ä" * 1000))
    assert len(raw) <= LONGEST_BYTES
    assert read_news(raw).text.startswith("ää")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\1\3",
        GO_ON,
        write_news(ShutdownNews(kind=ShutdownNewsKind.PREPARING))[:-1],
        write_news(ShutdownNews(kind=ShutdownNewsKind.PREPARING)) + b"why",
        write_news(ShutdownNews(kind=ShutdownNewsKind.PREPARING, seconds=1)),
        write_news(ShutdownNews(kind=ShutdownNewsKind.INHIBITED, seconds=MOST_SECONDS + 1)),
        b"\1" + write_news(ShutdownNews(kind=ShutdownNewsKind.PREPARING))[1:],
        write_news(ShutdownNews(kind=ShutdownNewsKind.PROBLEM)) + b"x" * LONGEST_BYTES,
    ],
)
def test_what_is_of_no_fixed_form_is_refused(raw: bytes) -> None:
    with pytest.raises(FormError):
        read_news(raw)


@given(st.binary(max_size=LONGEST_BYTES + 8))
def test_no_bytes_bring_anything_but_a_message_or_a_refusal(raw: bytes) -> None:
    try:
        news = read_news(raw)
    except FormError:
        return
    assert news.kind in ShutdownNewsKind
    assert 0 <= news.seconds <= MOST_SECONDS
