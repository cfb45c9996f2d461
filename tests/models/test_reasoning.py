"""Reasoning from all the places where servers put it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.models.reasoning import Gathered, gather, join_distinct, split_inline

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
plain = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<>`"), max_size=30)
tagged = st.lists(
    st.sampled_from(["<think>", "</think>", "<thought>", "</thought>", "<thinking>", "`<think>`", "\n", "text", " "])
).map("".join)


@pytest.mark.parametrize(
    ("message", "reasoning", "content"),
    [
        ({"content": "yes"}, "", "yes"),
        ({"content": None, "reasoning": "why"}, "why", None),
        ({"content": "yes", "reasoning_content": "why"}, "why", "yes"),
        ({"content": "yes", "thinking": "why"}, "why", "yes"),
        ({"content": "yes", "reasoning": "why", "reasoning_content": " why\n"}, "why", "yes"),
        ({"content": "yes", "reasoning": "a", "reasoning_content": "b"}, "a\n\nb", "yes"),
        ({"content": "yes", "reasoning": "AB", "reasoning_details": [{"text": "A"}, {"text": "B"}]}, "AB", "yes"),
        ({"content": "y", "reasoning_details": [{"summary": "s", "text": "t"}, {"content": "c"}]}, "s\n\nc", "y"),
        ({"content": "y", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, "", "y"),
        ({"content": "y", "reasoning_details": [{"summary": [{"text": "one"}, {"text": " two"}]}]}, "one two", "y"),
        ({"content": "<think>\nplan\n</think>\n\nyes"}, "plan", "yes"),
        ({"content": "<thought>plan</thought>yes"}, "plan", "yes"),
        ({"content": "<Thinking>plan</Thinking>yes"}, "plan", "yes"),
        ({"content": '<think effort="low">plan</think >yes'}, "plan", "yes"),
        ({"content": "<thinker>plan</thinker>yes"}, "", "<thinker>plan</thinker>yes"),
        ({"content": "<think>plan</think>yes", "reasoning": "plan"}, "plan", "<think>plan</think>yes"),
        ({"content": " <think>a</think> yes ", "reasoning_content": "b"}, "b", " <think>a</think> yes "),
        ({"content": "a</think> yes", "thinking": "b"}, "b", "a</think> yes"),
        ({"content": "<think>a</think>", "reasoning_details": [{"data": "x"}]}, "", "<think>a</think>"),
        ({"content": "<think>a</think>b", "reasoning": "", "reasoning_details": []}, "a", "b"),
        ({"content": "<think>a</think>b", "reasoning_details": [{"type": "reasoning.text", "text": ""}]}, "a", "b"),
        ({"content": [{"text": "<think>a</think>b"}, {"type": "thinking", "thinking": " "}]}, "a", "b"),
        ({"content": "<think>a</think>b", "reasoning": None, "reasoning_content": " "}, "a", "b"),
        (
            {"content": [{"type": "thinking", "thinking": "p"}, {"text": "<think>a</think>y"}]},
            "p",
            "<think>a</think>y",
        ),
        ({"content": [{"text": "<think>a</think>"}, {"text": "y"}]}, "a", "y"),
        ({"content": "<think>a</think>one <think>b</think>two "}, "a", "one <think>b</think>two "),
        ({"content": " \n<think>a</think>\n\n<thought>b</thought>\n\n  yes"}, "a\n\nb", "yes"),
        ({"content": "<think></think>yes"}, "", "yes"),
        ({"content": "plan\n</think>\nyes"}, "", "plan\n</think>\nyes"),
        ({"content": "Close it with </think>."}, "", "Close it with </think>."),
        ({"content": "It is\n<think>x</think>\nyes"}, "", "It is\n<think>x</think>\nyes"),
        ({"content": "<think>a</think>b</think>c"}, "a", "b</think>c"),
        ({"content": "<think>say </thought> here</think>yes"}, "say </thought> here", "yes"),
        ({"content": "<think>a</thinking>yes"}, "a", "yes"),
        ({"content": "<think>write `</think>`</think>yes"}, "write `</think>`", "yes"),
        ({"content": "<think>run `ls`</think>\n`yes`"}, "run `ls`", "`yes`"),
        ({"content": "<think>cut off"}, "cut off", ""),
        ({"content": "so far\n<think>cut off"}, "", "so far\n<think>cut off"),
        ({"content": "the tag <think> opens a block"}, "", "the tag <think> opens a block"),
        ({"content": "1 > <think> 2"}, "", "1 > <think> 2"),
        ({"content": "<think>a</think><think>cut off"}, "a\n\ncut off", ""),
        ({"content": "write `<think>` and `</think>`"}, "", "write `<think>` and `</think>`"),
        ({"content": "a < b"}, "", "a < b"),
        ({"content": [{"type": "text", "text": "y"}, {"type": "text", "text": "es"}]}, "", "yes"),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "p"}]}, {"text": "yes"}]},
            "p",
            "yes",
        ),
        ({"content": {"text": "yes"}}, "", "yes"),
        ({"content": {"answer": 1}}, "", '{"answer":1}'),
        (
            {"content": "<REASONING_SCRATCHPAD>plan</REASONING_SCRATCHPAD>yes"},
            "",
            "<REASONING_SCRATCHPAD>plan</REASONING_SCRATCHPAD>yes",
        ),
    ],
)
def test_each_shape(message: dict[str, Any], reasoning: str, content: str | None) -> None:
    gathered = gather(message)
    assert (gathered.reasoning, gathered.content) == (reasoning, content)


@pytest.mark.parametrize(
    ("content", "reasoning", "visible"),
    [
        ("plan\n</think>\n\nyes", "plan", "yes"),
        ("</think>yes", "", "yes"),
        ("plan</thought>yes", "plan", "yes"),
        ("plan</think>It ends with </think>.", "plan", "It ends with </think>."),
        ("plan</think><think>more</think>yes", "plan\n\nmore", "yes"),
        ("I use <think>a</think> so</think>yes", "I use <think>a</think> so", "yes"),
        ("The tags are <think>x</think>.", "", "The tags are <think>x</think>."),
        ("<think>plan</think>yes</think>", "plan", "yes</think>"),
        ("write `</think>` here", "", "write `</think>` here"),
        ("yes", "", "yes"),
    ],
)
def test_a_lone_closing_tag_counts_where_it_is_said_to(content: str, reasoning: str, visible: str) -> None:
    gathered = gather({"content": content}, implied_think=True)
    assert (gathered.reasoning, gathered.content, gathered.unbegun) == (reasoning, visible, False)
    own = gather({"content": content, "reasoning_content": "own"}, implied_think=True)
    assert (own.reasoning, own.content) == ("own", content)


@pytest.mark.parametrize(
    ("message", "unbegun"),
    [
        ({"content": "plan</think>yes"}, True),
        ({"content": "plan\n</THOUGHT>\nyes"}, True),
        ({"content": "plan</think>yes", "reasoning": "r"}, False),
        ({"content": "the tags <think> and </think>"}, False),
        ({"content": "<think>a</think>b</think>c"}, False),
        ({"content": "write `</think>`"}, False),
        ({"content": None}, False),
    ],
)
def test_answers_that_end_reasoning_which_they_do_not_begin_are_known(message: dict[str, Any], unbegun: bool) -> None:
    assert gather(message).unbegun is unbegun


def test_a_longer_part_takes_the_place_of_what_it_holds() -> None:
    assert join_distinct(["a", "x", "a b c"]) == "a b c\n\nx"


@pytest.mark.parametrize(
    ("message", "reasoning", "content"),
    [
        ({"content": "Let me se"}, "Let me se", ""),
        ({"content": "So.</think>Let me se"}, "So.", "Let me se"),
        ({"content": "Let me se", "reasoning": "So."}, "So.", "Let me se"),
        ({"content": "Let me se", "reasoning_details": [{"data": "x"}]}, "", "Let me se"),
    ],
)
def test_what_is_cut_off_within_reasoning_that_the_template_opened(
    message: dict[str, Any], reasoning: str, content: str
) -> None:
    assert gather(message, implied_think=True, cut_off=True) == Gathered(reasoning, content)
    assert gather({"content": "Let me se"}, implied_think=True) == Gathered("", "Let me se")
    assert gather({"content": "Let me se"}, cut_off=True) == Gathered("", "Let me se")


@relaxed
@given(st.dictionaries(st.sampled_from(["content", "reasoning", "reasoning_details", "thinking", "x"]), json_values))
def test_it_takes_whatever_comes(message: dict[str, Any]) -> None:
    gathered = gather(message)
    assert gathered.content is None or isinstance(gathered.content, str)
    assert gathered.reasoning == gathered.reasoning.strip()


@relaxed
@given(plain)
def test_text_without_tags_is_untouched(text: str) -> None:
    assert gather({"content": text}).content == text


@relaxed
@given(st.lists(st.tuples(plain, plain), min_size=1, max_size=4), plain)
def test_blocks_and_text_are_told_apart(pairs: list[tuple[str, str]], last: str) -> None:
    content = "".join(f"<think>{thought}</think>\n" for _, thought in pairs)
    texts = "".join(f"{text}<think>{thought}</think>" for text, thought in pairs)
    thoughts, visible = split_inline(f"{content}.{texts}{last}")
    assert thoughts == [thought.strip() for _, thought in pairs if thought.strip()]
    assert visible == f".{texts}{last}"
    assert split_inline(f".{texts}{last}") == ([], f".{texts}{last}")


@relaxed
@given(tagged, st.sampled_from(["reasoning", "reasoning_content", "thinking"]), plain.filter(str.strip), st.booleans())
def test_content_stays_as_it_is_beside_reasoning_of_the_server_s_own(
    content: str, field: str, own: str, implied: bool
) -> None:
    gathered = gather({"content": content, field: own}, implied_think=implied)
    assert (gathered.reasoning, gathered.content) == (own.strip(), content)


@relaxed
@given(plain.filter(str.strip), tagged)
def test_content_stays_as_it_is_behind_visible_text(text: str, content: str) -> None:
    assert gather({"content": text + content}) in (
        Gathered("", text + content),
        Gathered("", text + content, unbegun=True),
    )


@relaxed
@given(tagged, st.booleans())
def test_no_text_is_lost_and_none_is_invented(content: str, implied: bool) -> None:
    thoughts, visible = split_inline(content, implied=implied)
    assert content.count("text") == visible.count("text") + sum(thought.count("text") for thought in thoughts)


@relaxed
@given(st.lists(plain, max_size=5))
def test_nothing_is_said_twice(parts: list[str]) -> None:
    joined = join_distinct(parts)
    assert all(part.strip() in joined for part in parts)
    assert join_distinct([*parts, *parts]) == joined
    assert join_distinct([joined, *parts]) == joined
