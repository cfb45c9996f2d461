"""Identities by content never change from one version to the next: recorded runs depend on them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.digests import content_key, derive_seed, derived_random, digest
from manyhands.core.jsonio import canonical
from manyhands.core.usage import ZERO, Usage

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_digests_are_what_they_always_were() -> None:
    request = {"prompt": "Grüße", "n": [1, 2.5, None, True, 2**70], "half": "\ud800"}
    assert digest("model", request).hex() == "6e17d6da6ac8eaf8b7b4bfa0389a6f48"
    assert content_key({"prompt": "x"}) == "2fe9181aaaa376e84f8256368d38f05c"
    assert derive_seed(0, "item", "turn") == 1114882852
    assert derived_random(0, "item").random() == 0.061076783271241664


@given(VALUES, VALUES)
def test_digests_tell_values_apart(left: Any, right: Any) -> None:
    assert (digest("k", left) == digest("k", right)) == (canonical(left) == canonical(right))
    assert digest("a", left) != digest("b", left)
    assert len(digest("k", left)) == 16


@given(st.lists(st.text() | st.integers()))
def test_seeds_are_in_range_and_depend_on_every_part(parts: list[str | int]) -> None:
    assert 0 <= derive_seed(*parts) < 2**31
    assert derive_seed(*parts) == derive_seed(*parts)
    assert derived_random(*parts).random() == derived_random(*parts).random()
    assert derived_random(*parts, "a").random() != derived_random(*parts, "b").random()


@given(st.lists(st.integers(0, 10**9), min_size=9, max_size=9), st.lists(st.integers(0, 10**9), min_size=9, max_size=9))
def test_usage_adds_up(left: list[int], right: list[int]) -> None:
    one, other = Usage(*left), Usage(*right)
    assert one + ZERO == one == ZERO + one
    assert (one + other).total_tokens == one.total_tokens + other.total_tokens
    assert Usage.from_json({**one.to_json(), "unknown": 1}) == one
