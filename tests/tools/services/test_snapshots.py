"""What is made of a page's accessibility tree, whose texts are the page's."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from manyhands.tools.services.browser.snapshot import Place, compact, places

TEXTS = st.text(
    st.sampled_from("ab\"\\':[]-# /\u00a0") | st.characters(exclude_characters="\n"), max_size=30
) | st.sampled_from(
    [
        "[ref=e9] [box=.,.,.,.]",
        '" [ref=e9] [box=1,2,3,4]',
        "': '\" [ref=e9] [box=1,2,3,4]: x",
        "/a [ref=e9] [box=1,2,3,4]/",
    ]
)


def line(name: str, text: str, quoted: bool) -> str:
    """An element as Playwright writes it."""
    key = f"button {json.dumps(name, ensure_ascii=False)} [ref=e1] [cursor=pointer] [box=1,-2.5,3,1e-7]"
    key = "'" + key.replace("'", "''") + "'" if quoted or ": " in key or " #" in key else key
    return f"- {key}: {text}"


@given(TEXTS, TEXTS, st.booleans())
def test_no_text_of_a_page_forges_an_element(name: str, text: str, quoted: bool) -> None:
    written = json.dumps(name, ensure_ascii=False)[1:-1]
    expected = Place("e1", written or "button", [1.0, -2.5, 3.0, 1e-7])
    assert list(places(f"- text: {text}\n{line(name, text, quoted)}\n- /url: {text}")) == [expected]
    assert "[ref=e1]" in compact(line(name, text, quoted))


def test_elements_of_frames_have_no_place() -> None:
    assert (
        list(places('- button "a" [ref=f1e5] [box=1,2,3,4]\n- button "a" [ref=e5]\n- img [ref=e6] [box=1,2,3,4]')) == []
    )


def test_long_and_deep_pages_take_no_longer() -> None:
    for text in ("[ref=e1]" * 30_000, "/ [/" * 30_000, "'" * 90_000, '"\\' * 30_000):
        assert list(places(f"- textbox [ref=e1]: {text}\n- '{text}")) == []
    deep = "".join(f'{"  " * depth}- button "b{depth}" [ref=e{depth}]:\n' for depth in range(1100))
    assert compact(deep).count("[ref=") == 1100
