from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.parcel import pack, unpack


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_parts_come_back(parts: list[bytes]) -> None:
    assert unpack(pack(parts)) == parts


@given(st.binary(max_size=200))
def test_every_byte_string_is_a_parcel(data: bytes) -> None:
    assert sum(map(len, unpack(data))) <= len(data)


def test_a_part_that_is_cut_short_is_what_is_there() -> None:
    assert unpack(b"\x02\0\0\0abX") == [b"ab", b""]
    assert unpack(b"\xff\xff\xff\xffab") == [b"ab"]
