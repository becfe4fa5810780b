from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.cri.messages import (
    Container,
    ContainerMetadata,
    Containers,
    ContainerState,
    Message,
    Sandboxes,
    WireError,
    choice,
    flag,
    message,
    messages,
    signed,
    text,
    text_map,
    texts,
    unsigned,
)


class _Colour(IntEnum):
    RED = 0
    BLUE = 1
    OTHER = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inner(Message):
    name: str = text(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Everything(Message):
    name: str = text(1)
    names: tuple[str, ...] = texts(2)
    count: int = unsigned(3)
    balance: int = signed(4)
    is_on: bool = flag(5)
    colour: _Colour = choice(6, _Colour.RED, unknown=_Colour.OTHER)
    inner: _Inner | None = message(7, _Inner)
    inners: tuple[_Inner, ...] = messages(8, _Inner)
    labels: dict[str, str] = text_map(2000)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_INNER = st.builds(_Inner, name=_TEXT)
_EVERYTHING = st.builds(
    _Everything,
    name=_TEXT,
    names=st.lists(_TEXT, max_size=3).map(tuple),
    count=st.integers(0, 2**64 - 1),
    balance=st.integers(-(2**63), 2**63 - 1),
    is_on=st.booleans(),
    colour=st.sampled_from(_Colour),
    inner=st.none() | _INNER,
    inners=st.lists(_INNER, max_size=3).map(tuple),
    labels=st.dictionaries(_TEXT, _TEXT, max_size=3),
)


@given(_EVERYTHING)
def test_what_is_written_is_read_back(whole: _Everything) -> None:
    assert whole == _Everything.decode(whole.encode())


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_message_or_a_wire_error(raw: bytes) -> None:
    with suppress(WireError):
        assert isinstance(_Everything.decode(raw), _Everything)


@given(_EVERYTHING, st.data())
def test_a_message_that_is_cut_off_is_an_error_or_a_shorter_message(
    whole: _Everything, data: st.DataObject
) -> None:
    raw = whole.encode()
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    with suppress(WireError):
        assert len(_Everything.decode(cut).encode()) <= len(raw)


def test_the_encoding_is_that_of_protobufs_own_documentation() -> None:
    """150 in field 1, "testing" in field 2, and the former within field 3, as the encoding guide has them."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Test(Message):
        a: int = signed(1)
        b: str = text(2)

    assert bytes.fromhex("08 96 01") == Test(a=150).encode()
    assert bytes.fromhex("12 07 74 65 73 74 69 6e 67") == Test(b="testing").encode()
    assert bytes.fromhex("08 ff ff ff ff ff ff ff ff ff 01") == Test(a=-1).encode()
    assert Test(a=-2) == Test.decode(bytes.fromhex("08 fe ff ff ff ff ff ff ff ff 01"))


def test_unknown_fields_of_every_wire_type_are_passed_over() -> None:
    unknown = bytes.fromhex("a0 06 01  a1 06 0102030405060708  a2 06 02 ffff  a5 06 01020304")
    assert _Inner(name="a") == _Inner.decode(unknown + _Inner(name="a").encode() + unknown)


def test_a_known_field_of_another_wire_type_counts_as_unknown() -> None:
    assert _Inner() == _Inner.decode(bytes.fromhex("08 01"))


def test_an_enumeration_value_that_is_not_known_is_the_one_that_stands_for_such() -> None:
    assert _Everything.decode(bytes.fromhex("30 63")).colour is _Colour.OTHER
    assert _Everything.decode(bytes.fromhex("30 01")).colour is _Colour.BLUE


def test_of_a_field_that_is_there_twice_the_last_counts() -> None:
    assert _Inner.decode(_Inner(name="a").encode() + _Inner(name="b").encode()).name == "b"


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ("0b", "wire type 3"),
        ("0e", "wire type 6"),
        ("00 01", "field number 0"),
        ("0a 05 61", "1 bytes of a field of 5"),
        ("09 01", "1 bytes of a field of 8"),
        ("08 ff ff ff ff ff ff ff ff ff ff 01", "without an end"),
        ("08 80", "without an end"),
    ],
)
def test_what_is_wrong_is_named(raw: str, what: str) -> None:
    with pytest.raises(WireError, match=what):
        _Inner.decode(bytes.fromhex(raw))


def test_a_container_of_the_runtime_is_read_by_the_interfaces_field_numbers() -> None:
    """The bytes are containerd 1.6's for a container of the name `load`, its image's hash shortened."""
    raw = bytes.fromhex(
        "0a 03 636964  12 03 736964  1a 06 0a 04 6c6f6164  22 08 0a 06 7368613a31 32"
        " 2a 08 7368613a31323334  30 01  38 80 e8 eb 9c d2 dd a4 bd 18"
    )
    expected = Container(
        id="cid",
        sandbox_id="sid",
        metadata=ContainerMetadata(name="load"),
        image=Container.decode(raw).image,
        image_ref="sha:1234",
        state=ContainerState.RUNNING,
        created_at_ns=Container.decode(raw).created_at_ns,
    )
    assert expected == Container.decode(raw)
    assert Container.decode(raw).created_at_ns > 10**18
    assert Containers(containers=(expected,)) == Containers.decode(
        Containers(containers=(expected,)).encode()
    )
    assert Sandboxes() == Sandboxes.decode(b"")
