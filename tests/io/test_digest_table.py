"""The table of numbers by digest."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from manyhands.io.digest_table import DigestTable

DIGESTS = st.sampled_from([b"", b"\0", b"0" * 16, b"0" * 64]) | st.binary(max_size=3)


@given(st.lists(st.tuples(DIGESTS, st.integers(1, 1 << 40))))
def test_digest_table_counts_and_remembers(entries: list[tuple[bytes, int]]) -> None:
    counts: Counter[bytes] = Counter()
    firsts: dict[bytes, int] = {}
    with closing(DigestTable()) as counter, closing(DigestTable()) as places:
        for digest, number in entries:
            assert counter.count(digest) == counts[digest]
            counts[digest] += 1
            assert places.first(digest, number) == firsts.setdefault(digest, number)


@given(st.lists(st.tuples(DIGESTS, st.booleans())))
def test_adding_counts_only_what_is_new(entries: list[tuple[bytes, bool]]) -> None:
    counts: Counter[bytes] = Counter()
    with closing(DigestTable(cache_kib=64)) as table:
        for digest, adding in entries:
            if adding:
                assert table.add(digest) == (digest not in counts)
                counts[digest] = max(counts[digest], 1)
            else:
                assert table.count(digest) == counts[digest]
                counts[digest] += 1
