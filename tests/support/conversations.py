"""Conversations of all kinds, made by hypothesis: what exports and imports must be able to hold."""

from __future__ import annotations

import json
from typing import Any, cast

from hypothesis import strategies as st

from manyhands.core.digests import content_key
from manyhands.core.messages import Message, ToolCall
from manyhands.core.usage import Usage
from manyhands.export.conversations import Conversation, ModelCall, Turn

BEGAN = 1_795_000_000.0
"""When the first message was there, in seconds since 1970 UTC."""
NAMES = ("terminal", "read_file", "search-web", "f" * 64)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f'Does what {name[:20]} does. <tools> & "quotes".',
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "enum": ["a", "b"]}, "depth": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
    for name in NAMES
]
TAGS = ("<think>", "</think>", "<tool_call>{}</tool_call>", "<|im_end|>", "2026-11-27", "12", "\u2028", "é漢🙂", "")
text = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40), st.sampled_from(TAGS)
)
said = st.one_of(text.filter(lambda each: bool(each.strip())), st.just("An answer."))
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), text
)
nested = st.recursive(
    plain, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)), max_leaves=6
)
arguments = st.dictionaries(st.one_of(text, st.just("k" * 300)), nested, max_size=3)
usages = st.builds(
    Usage,
    calls=st.just(1),
    input_tokens=st.integers(0, 10**6),
    output_tokens=st.integers(0, 10**5),
    cached_tokens=st.integers(0, 1000),
    reasoning_tokens=st.integers(0, 1000),
    cost=st.floats(0, 10, allow_nan=False).map(lambda cost: round(cost, 6)),
)


@st.composite
def conversations(draw: st.DrawFn, *, with_tools: bool | None = None) -> Conversation:
    """A conversation that ended with an answer."""
    has_tools = draw(st.booleans()) if with_tools is None else with_tools
    turns: list[Turn] = []
    if draw(st.booleans()):
        turns.append(Turn({"role": "system", "content": draw(said)}))
    turns.append(Turn({"role": "user", "content": draw(said)}, BEGAN))
    number, total = 0, Usage()
    for round_ in range(draw(st.integers(1, 3))):
        last = not draw(st.booleans()) or round_ == 2
        calls = [] if last or not has_tools else draw(st.lists(_call(), min_size=1, max_size=3))
        turns.append(_answer(draw, calls, len(turns), number))
        total = total + cast(ModelCall, turns[-1].call).usage
        for call in turns[-1].message.get("tool_calls") or ():
            turns.append(_result(draw, call, len(turns)))
            number += 1
        if last:
            break
        if not calls:
            turns.append(Turn({"role": "user", "content": draw(said)}, BEGAN + len(turns)))
    if turns[-1].role != "assistant":
        turns.append(_answer(draw, [], len(turns), number))
        total = total + cast(ModelCall, turns[-1].call).usage
    key = draw(st.one_of(said, st.just("k" * 500)))
    return Conversation(
        run="run-1",
        run_id="0123456789abcdef",
        workload="trajectories",
        item=draw(st.integers(1, 10**6)),
        key=key,
        label=key,
        prompt_key=content_key(turns[0].message),
        turns=turns,
        tools=TOOLS if has_tools else (),
        model="vendor/model-1",
        stop_reason="answered",
        score=draw(st.one_of(st.none(), st.sampled_from((0.0, 0.25, 1.0)))),
        usage=total,
        started_at=BEGAN,
        finished_at=BEGAN + len(turns),
        source=draw(st.dictionaries(text, nested, max_size=2)),
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Conversation, Conversation]:
    """Two conversations of one prompt with the same tools, the better first."""
    with_tools = draw(st.booleans())
    better, worse = draw(conversations(with_tools=with_tools)), draw(conversations(with_tools=with_tools))
    worse.turns = [*_head(better), *worse.turns[len(_head(worse)) :]]
    worse.prompt_key = better.prompt_key
    better.score, worse.score = 1.0, draw(st.sampled_from((0.0, 0.25)))
    return better, worse


def _head(conversation: Conversation) -> list[Turn]:
    return conversation.turns[: next(at for at, turn in enumerate(conversation.turns) if turn.train)]


@st.composite
def _call(draw: st.DrawFn) -> tuple[str, str]:
    return draw(st.sampled_from(NAMES)), json.dumps(draw(arguments), ensure_ascii=draw(st.booleans()))


def _answer(draw: st.DrawFn, calls: list[tuple[str, str]], at: int, number: int) -> Turn:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": draw(st.one_of(st.none(), text)) if calls else draw(said),
    }
    if draw(st.booleans()):
        message["reasoning"] = draw(said)
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{number + index}", "type": "function", "function": {"name": name, "arguments": given}}
            for index, (name, given) in enumerate(calls)
        ]
    call = ModelCall(f"/{at}", "vendor/model-1", draw(usages), BEGAN + at - 0.5, BEGAN + at, "stop")
    return Turn(cast(Message, message), BEGAN + at, call, train=True)


def _result(draw: st.DrawFn, call: ToolCall, at: int) -> Turn:
    message: Message = {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": call["function"]["name"],
        "content": draw(text),
        "_failed": draw(st.booleans()),
    }
    return Turn(message, BEGAN + at)
