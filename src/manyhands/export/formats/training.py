"""What the formats for training have in common: what can be trained on, prompts and what follows them, cards of datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from manyhands.core.jsonio import Json, dumps, loads, loads_outside, spaced, type_error
from manyhands.core.messages import Message, text_of
from manyhands.export.chat import chat_messages, check_answered, images_in, tool_definitions, until_last_answer
from manyhands.export.conversations import Conversation, Turn
from manyhands.export.format import Losses, Unfit

UNTRAINED = "train flags"
"""What is lost where a format trains on an answer that was not to be trained on."""
IMAGES = "images"
CARD = "README.md"
JSON_LIST = "json"
"""The type of a column with a list of JSON values of any shape (``datasets`` from 4.7 on)."""


def trainable(conversation: Conversation) -> list[Turn]:
    """The turns of a conversation up to its last answer.

    Raises Unfit without an answer to train on, with an empty one at the end, and where calls and results do not belong together.
    """
    check_answered(conversation)
    turns = until_last_answer(conversation.turns)
    check_calls(turns)
    if not any(turn.train for turn in turns):
        raise Unfit("without an answer to train on")
    last = turns[-1].message
    if not last.get("tool_calls") and not text_of(last.get("content")).strip():
        raise Unfit("with an empty answer")
    return turns


def check_calls(turns: Sequence[Turn]) -> None:
    """Raises Unfit unless each tool call but those at the end has one result right behind its message, and each result a call."""
    waiting: set[str] = set()
    for turn in turns:
        if turn.role == "tool":
            if turn.message.get("tool_call_id", "") not in waiting:
                raise Unfit("with tool results that answer no call")
            waiting.remove(turn.message["tool_call_id"])
            continue
        if waiting:
            raise Unfit("with tool calls that have no result")
        calls = turn.message.get("tool_calls") or ()
        waiting = {call["id"] for call in calls}
        if len(waiting) < len(calls):
            raise Unfit("with several tool calls of one id")


def ordered_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with the results of each turn in the order of its calls, for formats that tell them apart by that alone."""
    found: list[Message] = []
    order: dict[str, int] = {}
    for message in messages:
        if message["role"] != "tool":
            order = {call["id"]: number for number, call in enumerate(message.get("tool_calls") or ())}
            found.append(message)
            continue
        at = len(found)
        while found[at - 1]["role"] == "tool" and _rank(order, found[at - 1]) > _rank(order, message):
            at -= 1
        found.insert(at, message)
    return found


def _rank(order: Mapping[str, int], result: Message) -> int:
    return order.get(result.get("tool_call_id", ""), len(order))


def text_messages(turns: Sequence[Turn], reasoning: str, losses: Losses) -> list[dict[str, Any]]:
    """As ``chat_messages``, with every content a text, because a column of a dataset has one type.

    Raises Unfit for images in prompts, since what is said of an image makes no sense without it; those in tool results are counted.
    """
    if images_in([turn for turn in turns if turn.role == "user"]):
        raise Unfit("with images")
    losses.add(IMAGES, images_in(turns))
    messages = chat_messages(turns, reasoning, losses)
    for message in messages:
        message["content"] = text_of(message["content"])
    return messages


def with_object_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with tool calls whose arguments are objects. Raises Unfit, also for whole numbers beyond 64 bits, for which loaders
    refuse a whole file."""
    for function in _functions(messages):
        found = argument_object(function["arguments"])
        if not _plainly_written(found):  # for numbers, or for half a character, which is replaced
            found = loads(spaced(found))
            if not _plainly_written(found):
                raise Unfit("with tool calls whose arguments have numbers beyond 64 bits")
        function["arguments"] = found
    return messages


def _plainly_written(value: Json) -> bool:
    try:
        orjson.dumps(value)
    except type_error:
        return False
    return True


def with_text_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with tool calls whose arguments are the JSON text of an object. Raises Unfit."""
    for function in _functions(messages):
        function["arguments"] = _argument_text(function["arguments"])
    return messages


def argument_object(text: Json) -> dict[str, Json]:
    """A call's arguments as an object. Raises Unfit."""
    try:
        found = loads_outside(text)
    except (ValueError, RecursionError, TypeError):
        found = None
    if not isinstance(found, dict):
        raise Unfit("with tool calls whose arguments are no JSON object")
    return found


def _functions(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [call["function"] for message in messages for call in message.get("tool_calls", ())]


def _argument_text(text: Json) -> str:
    """As the model wrote it, unless it has what only some readers take: half a character (a lone surrogate)."""
    try:
        if isinstance(text, str) and isinstance(orjson.loads(text), dict):
            return text
    except orjson.JSONDecodeError:
        pass
    return spaced(argument_object(text))


def tools_text(conversation: Conversation) -> str:
    """The tools as JSON text: a list, empty without tools, so that a column has the same type in every row."""
    return dumps(tool_definitions(conversation)).decode()


def count_untrained(turns: Sequence[Turn], losses: Losses) -> None:
    """Count the answers that are not to be trained on, for a format that trains on all."""
    losses.add(UNTRAINED, sum(turn.role == "assistant" and not turn.train for turn in turns))


def prompt_and_rest(turns: Sequence[Turn], at: int | None = None) -> tuple[Sequence[Turn], Sequence[Turn]]:
    """What comes before the first answer to be trained on (or before the turn ``at``), and what follows.

    Raises Unfit for a prompt that nobody need answer: one that is empty, or ends with an answer.
    """
    first = next(number for number, turn in enumerate(turns) if turn.train) if at is None else at
    prompt = turns[:first]
    if not prompt or prompt[-1].role not in ("user", "tool"):
        raise Unfit("whose prompt does not end with a request")
    return prompt, turns[first:]


def pair_of(chosen: Conversation, rejected: Conversation) -> tuple[Sequence[Turn], Sequence[Turn], Sequence[Turn]]:
    """The prompt that two conversations begin with, and what follows in each of them. Raises Unfit if they begin otherwise."""
    prompt, better = prompt_and_rest(trainable(chosen))
    other, worse = prompt_and_rest(trainable(rejected))
    if [_plain(turn) for turn in prompt] != [_plain(turn) for turn in other]:
        raise Unfit("with different prompts")
    if list(chosen.tools) != list(rejected.tools):
        raise Unfit("with different tools")
    return prompt, better, worse


def _plain(turn: Turn) -> dict[str, Json]:
    return {key: value for key, value in turn.message.items() if not key.startswith("_")}


def hub_card(files: Mapping[str, Sequence[str]], columns: Mapping[str, str], about: str, *, simulated: int) -> str:
    """The README.md of a folder of JSON Lines, by which ``datasets.load_dataset(FOLDER)`` knows splits and types.

    Without it types are guessed from the first rows of the first file, and rows of another shape that come later are refused.
    ``files``: as in ``Format.extra_files``; ``columns``: the type of each, as ``string``, or ``json`` for a list of JSON values;
    ``simulated``: how many of the conversations a simulated model took part in.
    """
    lines = [
        "---",
        *(["tags:", "- simulated"] if simulated else []),
        "configs:",
        "- config_name: default",
        "  data_files:",
    ]
    for split, names in files.items():
        lines += [f"  - split: {split or 'train'}", f"    path: {json.dumps(list(names))}"]
    lines += ["dataset_info:", "  features:"]
    for column, kind in columns.items():
        lines += [f"  - name: {column}", f"    {'list' if kind == JSON_LIST else 'dtype'}: {kind}"]
    said = f"**Made by simulation.** Conversations that a simulated model answered: {simulated:,}."
    return "\n".join([*lines, "---", "", about, "", *([said, ""] if simulated else [])])
