"""Two conversations side by side: nothing is lost, order stays, what is alike stands together, and it ends whatever is compared."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.messages import Message
from manyhands.view.conversation import MAX_VALUE, ShownText, digest_of
from manyhands.view.difference import (
    MAX_LINES,
    MAX_MESSAGES,
    Difference,
    Pair,
    Part,
    Spans,
    _common,
    _compared,
    _shown,
    _unmarked,
    _Work,
    difference,
    message_parts,
)
from manyhands.view.pages.difference import MAX_STEPS, _kind_of_cut, difference_page
from manyhands.view.pages.page import Page
from tests.support.hostile_texts import HOSTILE_TEXTS
from tests.support.made_journals import MadeStep, Pages, answered_together, asked, made_journal

_short = [text for text in HOSTILE_TEXTS.values() if len(text) < 2000]
words = st.lists(
    st.sampled_from(["the", "a", "dog", "cat", "ran.", "sat,", "漢字", "x=1", "!", "{}", "\n", " ", "\r\n"]),
    max_size=25,
).map(" ".join)
contents = words | st.integers(0, len(_short) - 1).map(_short.__getitem__) | st.text(max_size=20)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "function": st.fixed_dictionaries(
                {"name": st.sampled_from(["run", "read"]), "arguments": contents | st.just('{"a":1}')}
            )
        }
    ),
    max_size=2,
)
messages: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={
        "content": contents | st.none() | st.lists(st.builds(dict, text=contents)),
        "reasoning": contents,
        "tool_calls": calls,
    },
)
conversations = st.lists(messages, max_size=8)


def compared_here(left: Sequence[Message], right: Sequence[Message]) -> Difference:
    """What the process finds that ``difference`` starts."""
    return _compared(_shown(left), _shown(right))


def text_of_spans(spans: Spans) -> str:
    return "".join(text for _, text in spans)


def check(found: Difference, left: list[Message], right: list[Message]) -> None:
    """Every message is in one pair, in order; spans are the texts; what both sides have is the same."""
    assert [pair.left for pair in found.pairs if pair.left is not None] == list(range(len(left)))
    assert [pair.right for pair in found.pairs if pair.right is not None] == list(range(len(right)))
    for pair in found.pairs:
        assert (pair.left is None, pair.right is None) == (pair.kind == "only-right", pair.kind == "only-left")
        if pair.left is None or pair.right is None:
            continue
        one, other = left[pair.left], right[pair.right]
        assert one.get("role") == other.get("role")
        assert (pair.kind == "equal") == (message_parts(one) == message_parts(other))
        if pair.parts:
            check_parts(pair, message_parts(one), message_parts(other))


def check_parts(pair: Pair, one: dict[str, str], other: dict[str, str]) -> None:
    assert pair.kind == "changed"
    assert {part.name for part in pair.parts} == one.keys() | other.keys()
    for part in pair.parts:
        assert text_of_spans(part.left) == one.get(part.name, "")
        assert text_of_spans(part.right) == other.get(part.name, "")
        assert {op for op, _ in part.left} <= {"equal", "removed"}
        assert {op for op, _ in part.right} <= {"equal", "added"}
        assert all(text for _, text in (*part.left, *part.right))
        assert text_of_spans(tuple(span for span in part.left if span[0] == "equal")) == text_of_spans(
            tuple(span for span in part.right if span[0] == "equal")
        )


@given(conversations, conversations)
def test_nothing_is_lost_and_order_stays(left: list[Message], right: list[Message]) -> None:
    found = compared_here(left, right)
    check(found, left, right)
    assert not found.note
    assert all(pair.parts for pair in found.pairs if pair.kind == "changed")
    assert compared_here(left, right) == found


@given(conversations, st.data())
def test_what_is_taken_out_is_found(left: list[Message], data: st.DataObject) -> None:
    kept = [message for message in left if data.draw(st.booleans())]
    found = compared_here(left, kept)
    check(found, left, kept)
    assert "only-right" not in {pair.kind for pair in found.pairs}


@given(conversations)
def test_the_same_is_equal(left: list[Message]) -> None:
    assert {pair.kind for pair in compared_here(left, [*left]).pairs} <= {"equal"}


@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.integers(0, 5), max_size=40))
def test_as_much_as_can_be_is_common(one: list[int], other: list[int]) -> None:
    blocks = _common(one, other, _Work(100_000))
    position = (0, 0)
    for here, there, length in blocks:
        assert here >= position[0]
        assert there >= position[1]
        assert one[here : here + length] == other[there : there + length]
        position = (here + length, there + length)
    assert sum(length for _, _, length in blocks) == longest_common(one, other)


def longest_common(one: list[int], other: list[int]) -> int:
    row = [0] * (len(other) + 1)
    for each in one:
        before = row
        row = [0]
        for index, theirs in enumerate(other):
            row.append(before[index] + 1 if each == theirs else max(row[-1], before[index + 1]))
    return row[-1]


def said(role: str, content: str, **more: object) -> Message:
    return {"role": role, "content": content, **more}  # type: ignore[typeddict-item]


def test_words_are_marked() -> None:
    left = [said("assistant", "The quick brown fox jumps.\nThe end.")]
    right = [said("assistant", "The quick red fox jumps.\nThe end.\nReally.")]
    part = Part(
        "content",
        (("equal", "The quick "), ("removed", "brown"), ("equal", " fox jumps.\nThe end.")),
        (("equal", "The quick "), ("added", "red"), ("equal", " fox jumps.\nThe end."), ("added", "\nReally.")),
    )
    assert compared_here(left, right) == Difference((Pair(0, 0, "changed", (part,)),))


def test_texts_that_share_hardly_a_word_are_marked_as_a_whole() -> None:
    left, right = (
        "I think that it is the answer of the question",
        "No, because a bird can not be made to swim at the pole",
    )
    (pair,) = compared_here([said("user", left)], [said("user", right)]).pairs
    assert pair.parts == (Part("content", (("removed", left),), (("added", right),)),)


def test_messages_that_are_alike_stand_together() -> None:
    left = [
        said("user", "Sort the list of names"),
        said("assistant", "I will sort them by the last name first"),
        said("assistant", "Here they are: Ada, Bob, Cleo"),
    ]
    right = [said("user", "Sort the list of names"), said("assistant", "Here they are: Ada, Cleo, Bob")]
    kinds = [(pair.left, pair.right, pair.kind) for pair in compared_here(left, right).pairs]
    assert kinds == [(0, 0, "equal"), (1, None, "only-left"), (2, 1, "changed")]


def test_answers_that_are_not_alike_stand_together_by_their_role() -> None:
    left = [said("user", "x"), said("assistant", "apples"), said("tool", "1"), said("assistant", "done")]
    right = [said("user", "x"), said("assistant", "pears"), said("assistant", "done")]
    assert [(pair.left, pair.right) for pair in compared_here(left, right).pairs] == [
        (0, 0),
        (1, 1),
        (2, None),
        (3, 2),
    ]


def test_calls_and_reasoning_are_parts() -> None:
    call = {"function": {"name": "run", "arguments": '{"command":"ls"}'}}
    other = {"function": {"name": "run", "arguments": '{"command":"pwd"}'}}
    left = [said("assistant", "", reasoning="Look first", tool_calls=[call])]
    right = [said("assistant", "", reasoning="Look around", tool_calls=[other, other])]
    (pair,) = compared_here(left, right).pairs
    assert [part.name for part in pair.parts] == ["reasoning", "call 1", "call 2"]
    assert pair.parts[1].left == (("equal", 'run\n{\n  "command": "'), ("removed", "ls"), ("equal", '"\n}'))
    assert pair.parts[2].left == ()


HEAVY = {
    "equal lines": ("x\n" * 4_900, "x\n" * 4_000 + "y\n"),
    "lines by turns": ("x\ny\n" * 2_000, "y\nx\nx\n" * 1_500),
    "other lines": ("".join(f"{n}\n" for n in range(4_900)), "".join(f"{n * 7 % 4_999}\n" for n in range(4_900))),
    "one long line": ("a b " * 200_000, "b a a " * 150_000),
    "one long word": ("a" * 900_000, "b" * 900_000),
    "words at random": (
        " ".join(str(n * n % 97) for n in range(90_000)),
        " ".join(str(n * n % 89) for n in range(90_000)),
    ),
    "blanks": (" " * 900_000, "\t" * 900_000),
    "signs": ("()" * 400_000, ")(" * 400_000),
    "Chinese": ("漢字" * 400_000, "字漢漢" * 300_000),
}


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HEAVY)
def test_heavy_texts_end(name: str) -> None:
    left, right = ([said("user", text)] for text in HEAVY[name])
    found = compared_here(left, right)
    check(found, left, right)


@pytest.mark.parametrize("length", [190, 1_900])
def test_many_messages_end(length: int) -> None:
    roles = ("user", "assistant", "tool")
    left = [said(roles[n % 3], f"{n * 7 % 31} of the {n % 5}") for n in range(length)]
    right = [said(roles[n % 3 if n % 50 else 0], f"{n * 11 % 37} of the {n % 7}") for n in range(length)]
    start = perf_counter()
    found = compared_here(left, right)
    assert perf_counter() - start < 8
    check(found, left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([said("user", "x\n" * 100_000)], [said("user", "x\n" * 100_000 + "y")]),
        ([said("user", "word " * 1_000_000)], [said("user", "x")]),
        ([said("user", "x")] * (MAX_MESSAGES + 1), [said("user", "y")] * 10),
        ([said("user", "x"), said("tool", "z" + "\n" * MAX_LINES)], [said("tool", "y"), said("user", "x")]),
    ],
)
async def test_what_is_too_large_stands_side_by_side(left: list[Message], right: list[Message]) -> None:
    start = perf_counter()
    found = await difference(left, right)
    assert perf_counter() - start < 3
    check(found, left, right)
    assert found.note.startswith("Words are not compared")
    assert not any(pair.parts for pair in found.pairs)


@given(conversations, conversations)
def test_in_order_keeps_all(left: list[Message], right: list[Message]) -> None:
    check(_unmarked(_shown(left), _shown(right), "why"), left, right)


def test_what_is_too_different_keeps_no_other_message_from_its_marks() -> None:
    texts = [" ".join(str(n * factor % 997) for n in range(5_000)) for factor in (1, 7)]
    left, right = ([said("user", text), said("assistant", f"the end {text[-8:]}")] for text in texts)
    found = compared_here(left, right)
    check(found, left, right)
    assert found.note == "Not all words are compared: there are too many differences."
    assert found.pairs[1].parts[0].left[0] == ("equal", "the end ")


async def test_a_process_compares() -> None:
    left, right = [said("user", "one two"), said("tool", "\ud800")], [said("user", "one three")]
    assert await difference(left, right) == compared_here(left, right)


async def test_what_is_killed_at_its_deadline_stands_side_by_side_and_the_next_is_compared() -> None:
    left, right = ([said("user", text)] for text in HEAVY["words at random"])
    found = await difference(left, right, seconds=0.05)
    check(found, left, right)
    assert found.note == "Words are not compared: that would take more than 0.05 s."
    assert not found.pairs[0].parts
    assert (await difference([said("user", "a b")], [said("user", "a c")])).pairs[0].parts


async def test_a_process_that_is_killed_is_started_again() -> None:
    left, right = [said("user", "one two")], [said("user", "one three")]
    expected = await difference(left, right)
    helpers = own_helpers()
    assert helpers
    for helper in helpers:
        os.kill(helper, signal.SIGKILL)
    assert await difference(left, right) == expected


def own_helpers() -> list[int]:
    """The children of this process that are helpers of ``manyhands.processes.killable``."""
    return [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdecimal()
        and (path / "stat").exists()
        and (path / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid())
        and b"killable" in (path / "cmdline").read_bytes()
    ]


async def test_the_loop_is_free_meanwhile() -> None:
    left, right = ([said("user", text)] for text in HEAVY["words at random"])
    await difference(left[:0], right[:0])
    comparing = asyncio.ensure_future(difference(left, right))
    longest, before = 0.0, perf_counter()
    while not comparing.done():
        await asyncio.sleep(0.005)
        longest, before = max(longest, perf_counter() - before), perf_counter()
    assert longest < 0.5
    check(comparing.result(), left, right)


# --- The page of two items


LONG = "word " * 13_200
"""More than what is read of a text."""


async def compared(
    tmp_path: Path, left: Sequence[MadeStep], right: Sequence[MadeStep], **query: str
) -> tuple[Page, str]:
    """The page of two items with these steps, and what a browser gets."""
    steps = [replace(step, item=item) for item, some in ((1, left), (2, right)) for step in some]
    pages = Pages(made_journal(tmp_path / "run", steps, items=("a", "b")))
    found = await difference_page(pages.site, {"a": f"{pages.id}:1", "b": f"{pages.id}:2", **query})
    html = pages.html(found)
    pages.close()
    return found, html


def counts(page: Page) -> dict[str, int]:
    return {kind: count for kind, count in page.data["counts"].items() if count}


async def test_texts_that_differ_where_they_are_cut_are_not_called_equal(tmp_path: Path) -> None:
    left, right = [asked(text=f"{LONG}the answer is 42")], [asked(text=f"{LONG}the answer is 41")]
    page, html = await compared(tmp_path, left, right, only="changed")
    assert counts(page) == {"changed": 1}
    assert "2,016 more characters: different" in html
    assert "is the same on both sides" not in html


async def test_texts_that_are_equal_where_they_are_cut_are_called_equal(tmp_path: Path) -> None:
    calls = [asked("t", text=LONG), answered_together("/0", LONG * 2)]
    page, html = await compared(tmp_path, calls, calls)
    assert counts(page) == {"equal": 2}
    assert "2,000 more characters: equal" in html
    assert page.data["note"] == ""


@given(
    cuts=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    texts=st.tuples(st.text("ab", max_size=40), st.text("ab", max_size=40)),
)
def test_what_is_known_of_cut_texts_is_true(cuts: tuple[int, int], texts: tuple[str, str]) -> None:
    """Whether both were read to their ends, one of them, or none."""
    shown = [
        ShownText(text[:cut], len(text[cut:]), "", digest_of(text) if text[cut:] else "")
        for text, cut in zip(texts, cuts, strict=True)
    ]
    assert _kind_of_cut(*shown) == ("equal" if texts[0] == texts[1] else "changed")
    unread = [replace(text, left_out=-1 if text.left_out else 0, digest="") for text in shown]
    assert _kind_of_cut(*unread) in ("unknown", "equal" if texts[0] == texts[1] else "changed")


async def test_what_is_too_large_to_be_read_is_not_compared_whole(tmp_path: Path) -> None:
    large = {"message": {"role": "assistant", "content": "x" * MAX_VALUE}}
    left, right = (replace(asked(), output=each) for each in (large, {**large, "finish_reason": "stop"}))
    page, html = await compared(tmp_path, [left], [right], only="changed")
    assert counts(page) == {"unknown": 1}
    assert "1 pair of turns is not compared whole" in page.data["note"]
    assert page.data["note"] in html
    assert '<span class="label">not compared whole</span>' in html


async def test_steps_that_are_left_out_are_counted_with_those_of_tools(tmp_path: Path) -> None:
    turns = [step for n in range(MAX_STEPS + 50) for step in (asked("t"), answered_together(f"/{2 * n}", f"r{n}"))]
    page, html = await compared(tmp_path, turns, turns[:10])
    side = page.data["left"]
    told = len(page.values["left"].messages)
    assert (side["steps"], side["steps_left_out"]) == (len(turns), len(turns) - told)
    assert f"The first {told} of 700 steps are compared; {len(turns) - told} are left out." in html
    assert page.data["right"]["steps_left_out"] == 0
