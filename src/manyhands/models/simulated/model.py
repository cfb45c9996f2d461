"""A model that is made up: quick, free, and the same every time.

What it says follows from the conversation and a seed alone. It reasons, calls the tools that it gets for as many
turns as the prompt's hash says, and answers from their results. Tests steer it by lines in a prompt: ``[simulate: tools=3]``
(how many turns with tools), ``[simulate: no_reasoning]``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from manyhands.core.clock import Clock
from manyhands.core.digests import Draws
from manyhands.core.jsonio import Json, dumps, line, loads, without_surrogates
from manyhands.core.text import cut
from manyhands.core.usage import Reserve
from manyhands.engine.contract import CallReport, Limits
from manyhands.io.picture_headers import read_header
from manyhands.models.openai.response import SIMULATED_FINGERPRINT, parse_completion
from manyhands.models.pricing import PriceTable
from manyhands.models.protocol import ChatRequest, Completion
from manyhands.models.reasoning import flatten
from manyhands.models.simulated.browsing import PREFIX, any_browsing, browsing_call
from manyhands.models.simulated.calls import NEVER, Known, any_call, arguments_for, example, known_from, with_facts

REPORT_TOOL = "report_agent_job_result"
"""The tool that a job's worker must call once with its result."""
_DIRECTIVE = re.compile(r"\[simulate:\s*+([^\[\]\n]*+)\]")
_WORD = re.compile(r"[A-Za-z]{3,15}")
_IDENTIFIER = re.compile(r"\b(job_id|item_id)\b[\"'`]?\s*(?:[:=]|is)\s*[\"'`]?([\w.:-]+)")
_LABELLED = re.compile(r"^(Job|Item) ID: (.+)$", re.MULTILINE)
"""How a job's worker learns what it works on: the first such lines count, as a table's cells may hold others."""
_ITEM = re.compile(r"^Item ID: .*$", re.MULTILINE)
"""What a job's worker is given before this line is the same for all."""
_COMMON_WORDS = """
the and for with that this from you your are was into out use using please write file files how what which when then
than them they has have its can not all any each one two should must will would simulate tools
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_TURNS = (0, 1, 1, 1, 2, 2, 2, 3, 3, 1)
_MAX_TURNS = 100
_MAX_QUOTE = 160
_NO_PRICES = PriceTable()


class SimulatedModel:
    """The simulated model in this process. ``latency``: seconds that each call takes on the clock."""

    simulated = True

    def __init__(self, seed: int = 0, latency: float = 0.0) -> None:
        self._seed = seed
        self._latency = latency

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """Answer. Raises ItemError only for a budget that is used up."""
        settings = request.settings
        payload = simulate(
            request.messages,
            request.tools,
            seed=self._seed,
            request_seed=settings.seed,
            model=settings.model,
            response_format=settings.response_format,
        )
        completion = parse_completion(
            payload,
            model=settings.model,
            prices=_NO_PRICES,
            request_size=0,
            implied_think=settings.implied_think,
        )
        permit = await limits.acquire("simulated", Reserve(completion.usage.total_tokens))
        report = CallReport(failed=True)
        try:
            if self._latency > 0:
                await clock.sleep(self._latency)
            report = CallReport(completion.usage)
            return completion
        finally:
            limits.release(permit, report)

    async def close(self) -> None:
        """Nothing to close."""


@dataclass(slots=True)
class _Conversation:
    """What the model makes of the messages."""

    task: str
    """All that the user said."""
    words: list[str]
    turn: int
    """Assistant messages since the user last spoke."""
    results: list[str]
    """Tool results since the user last spoke."""
    reported: bool
    """Whether the report tool was called since."""
    characters: int
    directives: dict[str, str]
    picture: str | None
    """Names the pictures that were shown last, by their content."""


def simulate(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    seed: int = 0,
    request_seed: int | None = None,
    model: str = "simulated",
    response_format: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of a chat-completions response to these messages. The same arguments always give the same body."""
    seen = _read(messages)
    key = f"{seed}/{request_seed}" if request_seed is not None else str(seed)
    draws = Draws(key, seen.task, seen.turn)
    calls = _calls(seen, messages, tools, draws, key)
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if calls:
        message["tool_calls"] = calls
    else:
        message["content"] = _answer(seen, draws, response_format)
    if "no_reasoning" not in seen.directives:
        message["reasoning"] = _reasoning(seen, draws, calls)
    return _response(message, draws, model, seen.characters + (len(dumps(tools)) if tools else 0))


def _response(message: dict[str, Any], draws: Draws, model: str, characters: int) -> dict[str, Any]:
    calls = message.get("tool_calls", ())
    reasoning = _tokens(len(message.get("reasoning", "")))
    output = reasoning + _tokens(len(message["content"] or ""))
    output += sum(_tokens(len(call["function"]["arguments"]) + len(call["function"]["name"])) for call in calls)
    prompt = _tokens(characters)
    return {
        "id": f"chatcmpl-{draws.name[:12]}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "system_fingerprint": SIMULATED_FINGERPRINT,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
            "cost": 0.0,
        },
    }


def _tokens(characters: int) -> int:
    return -(-characters // 4)


def _read(messages: Sequence[Mapping[str, Any]]) -> _Conversation:
    user_texts: list[str] = []
    results: list[str] = []
    picture: str | None = None
    turn = characters = 0
    reported = False
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            pictures = [_picture(part) for part in content]
            content = [name or part for part, name in zip(content, pictures, strict=True)]
            picture = " and".join(filter(None, pictures)) or picture
        text = content if isinstance(content, str) else flatten(content)
        characters += len(text)
        role = message.get("role")
        if role == "user":
            user_texts.append(text)
            turn, results, reported = 0, [], False
        elif role == "assistant":
            turn += 1
            names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
            characters += sum(len(call["function"]["arguments"]) for call in message.get("tool_calls") or ())
            reported = reported or REPORT_TOOL in names
        elif role == "tool":
            results.append(text)
    task = "\n".join(user_texts)
    directives = _directives(task) if "[simulate:" in task else {}
    words = _words(user_texts[-1] if user_texts else "")
    return _Conversation(task, words, turn, results, reported, characters, directives, picture)


def _picture(part: Any) -> str | None:
    """What stands for a picture: the beginning of its digest, its type and size. None for any other part."""
    image = part.get("image_url") if isinstance(part, Mapping) else None
    url = image.get("url") if isinstance(image, Mapping) else None
    if not isinstance(url, str):
        return None
    head, _, coded = url.partition(";base64,")
    try:
        data = base64.b64decode(coded, validate=True) if head.startswith("data:") else b""
        found = read_header(data)
    except ValueError:  # an address of the web, or what a server was sent by anybody
        return f" [picture {_digest(url.encode(errors='replace'))}]"
    return f" [picture {_digest(data)}: {found.media_type}, {found.width} × {found.height} pixels]"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _directives(task: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in _DIRECTIVE.findall(task):
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            found[name.strip()] = value.strip()
    return found


def _words(text: str) -> list[str]:
    """A few plain words that the text is about: they go into shell commands and file names."""
    label = _ITEM.search(text)
    start = 0 if label is None else label.end()
    found = dict.fromkeys(word.lower() for word in _WORD.findall(text[start : start + 400]))
    words = [word for word in found if word not in _COMMON][:5]
    return words or ["notes"]


def _turns_with_tools(seen: _Conversation, key: str) -> int:
    turns = seen.directives.get("tools", "")
    if turns.isdecimal():
        return min(int(turns), _MAX_TURNS)
    return Draws(key, seen.task, "plan").pick(_TURNS)


def _calls(
    seen: _Conversation,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    draws: Draws,
    key: str,
) -> list[dict[str, Any]]:
    if not tools:
        return []
    report = next((tool for tool in tools if _name(tool) == REPORT_TOOL), None)
    useful = [tool for tool in tools if tool is not report and _name(tool) not in NEVER]
    if useful and seen.turn < _turns_with_tools(seen, key):
        calls = _useful_calls(seen, messages, useful, draws)
        if calls:
            return calls
        if "tools" in seen.directives:  # somebody wants to see calls
            return [_any_call(seen, messages, useful, draws)]
    if report is not None and not seen.reported:
        arguments = {**(arguments_for(report, draws, seen.words, Known()) or {}), **_identifiers(messages)}
        schema = ((report.get("function") or {}).get("parameters") or {}).get("properties", {}).get("result")
        if isinstance(arguments.get("result"), dict) and (facts := known_from(messages).facts):
            arguments["result"] = with_facts(arguments["result"], schema, facts)
        arguments.pop("stop", None)  # it would end the whole job
        return [_call(draws, 0, REPORT_TOOL, arguments)]
    return []


def _useful_calls(
    seen: _Conversation, messages: Sequence[Mapping[str, Any]], tools: list[Mapping[str, Any]], draws: Draws
) -> list[dict[str, Any]]:
    browsers = {name for tool in tools if (name := _name(tool)).startswith(PREFIX)}
    reads = any(_name(tool).startswith("web_") for tool in tools)  # then it reads and browses by turns
    browses = bool(browsers) and not (reads and seen.turn % 2)
    browsing = browsing_call(messages, seen.task, browsers, draws, seen.words) if browses else None
    if browsing is not None:
        return [_call(draws, 0, *browsing)]
    tools = [tool for tool in tools if _name(tool) not in browsers]
    if not tools:
        return []
    known = known_from(messages)
    if known.found and (reader := next((tool for tool in tools if _name(tool) == "web_extract"), None)) is not None:
        return [_call(draws, 0, "web_extract", arguments_for(reader, draws, seen.words, known) or {})]
    wanted = 2 if len(tools) > 1 and draws.chance(25) else 1
    start = draws.below(len(tools))
    calls: list[dict[str, Any]] = []
    for tool in tools[start:] + tools[:start]:
        # Calls of one turn run at the same time: all but the first stay clear of files that exist, and of the tool that
        # makes them, so that no result depends on which was first.
        if calls and _name(tool) == "write_file":
            continue
        arguments = arguments_for(tool, draws, seen.words, replace(known, files={}) if calls else known)
        if arguments is not None:
            calls.append(_call(draws, len(calls), _name(tool), arguments))
        if len(calls) == wanted:
            break
    return calls


def _any_call(
    seen: _Conversation, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], draws: Draws
) -> dict[str, Any]:
    browsers = {name for tool in tools if (name := _name(tool)).startswith(PREFIX)}
    others = [tool for tool in tools if _name(tool) not in browsers]
    if "browser_navigate" in browsers and draws.below(len(others) + 1) == 0:
        return _call(draws, 0, *any_browsing(messages, browsers))
    return _call(draws, 0, *any_call(others or tools, draws, seen.words))


def _call(draws: Draws, index: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    call_id = Draws(draws.name, index, name).name[:12]
    return {"id": f"call_{call_id}", "type": "function", "function": {"name": name, "arguments": line(arguments)}}


def _name(tool: Mapping[str, Any]) -> str:
    return str((tool.get("function") or {}).get("name"))


def _identifiers(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The job and the item that the prompt names."""
    found: dict[str, str] = {}
    labelled: dict[str, str] = {}
    for message in messages:
        if message.get("role") in ("system", "user"):
            text = flatten(message.get("content"))
            found.update(_IDENTIFIER.findall(text))
            for word, value in _LABELLED.findall(text):
                labelled.setdefault(f"{word.lower()}_id", _unquoted(value))
    return {**found, **labelled}


def _unquoted(text: str) -> str:
    """What a JSON string says; other text as it is."""
    try:
        value = loads(text) if text.startswith('"') else text
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _reasoning(seen: _Conversation, draws: Draws, calls: Sequence[Mapping[str, Any]]) -> str:
    topic = " ".join(seen.words[:3])
    opening = draws.pick(("The task is about", "This is a question of", "What matters here is"))
    if calls:
        names = " and ".join(call["function"]["name"] for call in calls)
        return f"{opening} {topic}. Step {seen.turn + 1}: {names} will show more."
    if seen.results:
        return f"{opening} {topic}. The {len(seen.results)} results suffice for an answer."
    return f"{opening} {topic}. I can answer at once."


def _answer(seen: _Conversation, draws: Draws, response_format: Mapping[str, Any] | None) -> str:
    if response_format is not None:
        shaped = _shaped_answer(seen, draws, response_format)
        if shaped is not None:
            return shaped
    topic = " ".join(seen.words[:3])
    closing = draws.pick(("That settles it.", "Nothing else is needed.", "This is the whole answer."))
    if not seen.results:
        shown = "" if seen.picture is None else f"of{seen.picture}, "
        return f"On {topic}: {shown}the answer is {draws.below(1000)}. {closing}"
    return (
        f'On {topic}: after {len(seen.results)} tool results, the last one says "{_quote(seen.results[-1])}". {closing}'
    )


def _shaped_answer(seen: _Conversation, draws: Draws, response_format: Mapping[str, Any]) -> str | None:
    kind = response_format.get("type")
    if kind == "json_object":
        return line({"answer": " ".join(seen.words)})
    wrapped = response_format.get("json_schema")
    if kind != "json_schema" or not isinstance(wrapped, Mapping):
        return None
    return line(example(wrapped.get("schema", {}), draws, seen.words))


def _quote(result: str) -> str:
    text = _essence(result) if result[:1] == "{" else result
    return cut(" ".join(without_surrogates(text).split()), _MAX_QUOTE)


def _essence(result: str) -> str:
    """What a JSON tool result says, without its frame."""
    try:
        value: Json = loads(result)
    except ValueError:
        return result
    for name in ("output", "content", "stdout", "result", "error"):
        if isinstance(value.get(name), str) and value[name].strip():
            return str(value[name])
    return result
