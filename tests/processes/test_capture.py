"""Bounded output."""

from hypothesis import given
from hypothesis import strategies as st

from manyhands.processes.output import Capture

PIECES = st.lists(st.binary(max_size=40), max_size=20)


@given(PIECES, st.integers(0, 100))
def test_head_and_tail_are_kept(pieces: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for piece in pieces:
        capture.feed(piece)
    whole = b"".join(pieces)
    kept = capture.joined()
    assert capture.total == len(whole)
    assert len(kept) == min(limit, len(whole))
    assert capture.omitted == len(whole) - len(kept)
    if capture.omitted:
        head = limit // 2
        assert kept == whole[:head] + whole[len(whole) - (limit - head) :]
    else:
        assert kept == whole


@given(PIECES, st.integers(0, 400), st.integers(0, 120), st.integers(0, 400))
def test_reading_from_a_place(pieces: list[bytes], kept: int, limit: int, start: int) -> None:
    capture = Capture(kept)
    for piece in pieces:
        capture.feed(piece)
    whole = b"".join(pieces)[start:]
    read = capture.read(start, limit)
    if capture.omitted == 0 and len(whole) <= limit:
        assert read == whole
    else:
        assert len(read) <= limit


def test_a_gap_is_named() -> None:
    capture = Capture(10)
    capture.feed(b"abcdefghijklmnopqrstuvwxyz")
    assert capture.read(0, 100) == b"abcde\n[16 bytes left out]\nvwxyz"
    assert capture.read(23, 100) == b"xyz"
    whole = Capture(1000)
    whole.feed(b"a" * 100 + b"b" * 100)
    text = whole.read(0, 60)
    assert text.startswith(b"aaaaa")
    assert text.endswith(b"bbbbb")
    assert b"bytes left out" in text
