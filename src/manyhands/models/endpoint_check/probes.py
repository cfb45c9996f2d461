"""What an endpoint can do: one small request, or a few, for each question."""

from __future__ import annotations

import asyncio
import base64
import statistics
import struct
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.jsonio import loads_outside
from manyhands.core.messages import Message
from manyhands.core.text import counted, one_line
from manyhands.models.endpoint_check.exchange import Prober, Reply
from manyhands.models.hosts import NOT_SENT
from manyhands.models.openai.errors import parse_rate_headers
from manyhands.models.openai.request import CONTENT_FIELD, DETAILS_FIELD, limit_field, reasoning_fields
from manyhands.models.openai.response import UNBEGUN, tells_usage
from manyhands.models.protocol import ChatRequest, ChatSettings

YES, NO, UNCLEAR = "yes", "no", "unclear"
_MAX_LISTED = 20
_MAX_NAME = 200
_FIELDS = (CONTENT_FIELD, "reasoning", "thinking", DETAILS_FIELD)
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The present weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_BOUND = 16
_SLACK = 8
"""Tokens by which servers may count differently."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one thing."""

    name: str
    result: str
    """``yes``, ``no``, or ``unclear``."""
    detail: str = ""


@dataclass(slots=True)
class EndpointReport:
    """All that was found out."""

    url: str
    model: str | None
    findings: list[Finding] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    """Settings to give, as on a command line, besides the address and the model."""
    advice: list[str] = field(default_factory=list)
    """What else to know, a sentence each."""
    models: list[str] = field(default_factory=list)
    """Names of models, the first ones that are listed."""
    usable: bool = True
    """Whether it answers."""

    def add(self, name: str, result: str, detail: str = "") -> None:
        self.findings.append(Finding(name, result, detail))


async def check_endpoint(prober: Prober, report: EndpointReport) -> None:
    """Ask all questions, and enter the answers. Without a model only those that cost nothing are asked."""
    await _listing(prober, report)
    if not report.usable or not prober.model:
        return
    plain = await _chat(prober, report)
    if plain is None:
        return
    called = await prober.ask(
        "What is the weather in Paris and in Rome? Look up both at once.", [_TOOL], parallel_tool_calls=None
    )
    probes: tuple[Callable[[Prober], Awaitable[Sequence[Finding]]], ...] = (
        _bound,
        _forced_tool,
        _stop,
        _parameters,
        _schema,
        _parts,
    )
    results = await asyncio.gather(_sent_back(prober, report, called), *(probe(prober) for probe in probes))
    report.findings += _tool_calls(called)
    _reasoning(report, [plain, called])
    report.findings += [each for result in results for each in result]
    _figures(prober, report, plain)
    _advise(report, plain)


async def _listing(prober: Prober, report: EndpointReport) -> None:
    reply = await prober.models()
    if reply.status is None:
        report.add("reachable", NO, reply.said)
        report.usable = False
        return
    report.add("reachable", YES, f"{1000 * reply.seconds:.0f} ms")
    if reply.status in (401, 403) and not prober.model:  # a key may be for answers alone
        report.add("key accepted", NO, reply.said)
        report.usable = False
        return
    listed = reply.payload.get("data") if isinstance(reply.payload, dict) and reply.problem is None else None
    entries = listed if isinstance(listed, list) else []
    names = [each["id"] for each in entries if isinstance(each, dict) and isinstance(each.get("id"), str)]
    report.models = [one_line(name, 100) for name in names[:_MAX_LISTED]]
    report.add("models listed", YES if names else NO, f"{len(names):,}" if names else reply.said)
    if not prober.model and len(names) == 1 and one_line(names[0], _MAX_NAME) == names[0]:
        prober.model = report.model = names[0]
    if prober.model and names and prober.model not in names:
        report.advice.append(f"{prober.model} is not among the models that are listed")


async def _chat(prober: Prober, report: EndpointReport) -> Reply | None:
    """A plain answer; None if there is none, which ends the check."""
    system: Message = {"role": "system", "content": "Answer with one word."}
    user: Message = {"role": "user", "content": "Say hello."}
    reply = await prober.ask([system, user], learn=True)
    system_refused = ""
    if reply.refused and reply.status in (400, 422):
        second = await prober.ask([user], learn=True)
        if second.completion is not None:
            system_refused, reply = reply.said, second
    if reply.status in (401, 403):
        report.add("key accepted", NO, reply.said)
    elif reply.completion is not None:
        report.add("key accepted", YES)
    report.add("chat", YES if reply.completion is not None else NO, reply.said)
    if reply.completion is None:
        report.usable = False
        return None
    report.add("system messages", NO if system_refused else YES, system_refused)
    return reply


async def _bound(prober: Prober) -> Sequence[Finding]:
    name = limit_field(prober.adaptation, prober.endpoint)
    reply = await prober.ask("Count from 1 to 500, with spaces between the numbers.", max_tokens=_BOUND)
    if reply.completion is None:
        return [Finding(f"{name} heeded", UNCLEAR, reply.said)]
    used = reply.completion.usage.output_tokens
    heeded = used <= _BOUND + _SLACK
    return [
        Finding(
            f"{name} heeded", YES if heeded else NO, "" if heeded else f"{used:,} tokens where {_BOUND} were allowed"
        )
    ]


def _tool_calls(reply: Reply) -> Sequence[Finding]:
    if reply.completion is None:
        return [Finding("tool calls", NO if reply.refused else UNCLEAR, reply.said)]
    calls = reply.completion.message.get("tool_calls") or []
    right = [call for call in calls if call["function"]["name"] == "get_weather"]
    if not right:
        return [Finding("tool calls", NO, "it answered with text")]
    return [
        Finding("tool calls", YES),
        Finding(
            "parallel tool calls", YES if len(right) > 1 else UNCLEAR, f"{counted(len(right), 'call')} in one answer"
        ),
    ]


async def _forced_tool(prober: Prober) -> Sequence[Finding]:
    reply = await prober.ask("Say hello.", [_TOOL], tool_choice="required")
    if reply.completion is None:
        return [Finding("tool_choice", NO if reply.refused else UNCLEAR, reply.said)]
    called = bool(reply.completion.message.get("tool_calls"))
    return [Finding("tool_choice", YES if called else NO, "" if called else "required is ignored")]


def _reasoning(report: EndpointReport, replies: Sequence[Reply]) -> None:
    fields = dict.fromkeys(name for reply in replies for name in _FIELDS if reply.sent.get(name))
    found = [reply.completion for reply in replies if reply.completion is not None]
    if fields:
        report.add("reasoning returned", YES, ", ".join(fields))
    elif any(each.message.get("reasoning") for each in found):
        report.add("reasoning returned", YES, "in tags at the beginning of the text")
    elif any(UNBEGUN in each.extra for each in found):
        report.add("reasoning returned", YES, "in the text, up to a </think> that nothing begins")
        report.options.append("--implied_think")
    else:
        hidden = sum(each.usage.reasoning_tokens for each in found)
        report.add("reasoning returned", NO, f"but {hidden:,} tokens of it are counted" if hidden else "")


async def _sent_back(prober: Prober, report: EndpointReport, called: Reply) -> Sequence[Finding]:
    """Whether answers with reasoning are taken back, in which field, and without."""
    messages = _second_turn(called)
    variants = [NOT_SENT, CONTENT_FIELD, "reasoning"]
    if any(DETAILS_FIELD in message for message in messages):
        variants.append(DETAILS_FIELD)
    tools = [_TOOL] if called.completion is not None and called.completion.message.get("tool_calls") else []
    replies = await asyncio.gather(*(prober.ask(messages, tools, send_reasoning=variant) for variant in variants))
    by_variant = dict(zip(variants, replies, strict=True))
    if any(reply.completion is None and not reply.refused for reply in replies):
        said = next(reply.said for reply in replies if reply.completion is None and not reply.refused)
        return [Finding("takes reasoning back", UNCLEAR, said)]
    taken = [name for name, reply in by_variant.items() if reply.completion is not None and name != NOT_SENT]
    if not taken and by_variant[NOT_SENT].completion is None:
        return [Finding("takes reasoning back", UNCLEAR, f"no second turn is taken: {by_variant[NOT_SENT].said}")]
    refused = [name for name, reply in by_variant.items() if reply.completion is None and name != NOT_SENT]
    wanted = by_variant[NOT_SENT].completion is None
    parts = [f"as {', '.join(taken)}" if taken else "", f"refuses {', '.join(refused)}" if refused else ""]
    parts.append("and wants it" if wanted and taken else "")
    request = ChatRequest(ChatSettings(prober.model), messages, tools)
    sent = set(reasoning_fields(request, prober.adaptation, prober.endpoint))
    if sent & set(refused) or (wanted and taken and not sent & set(taken)):
        report.options.append(f"--send_reasoning={taken[0] if taken and (wanted or sent) else NOT_SENT}")
    elif not sent and not wanted and not refused and any(called.sent.get(name) for name in _FIELDS):
        report.advice.append("reasoning is not sent back to this host; --send_reasoning=always does")
    return [Finding("takes reasoning back", YES if taken else NO, "; ".join(filter(None, parts)))]


def _second_turn(called: Reply) -> list[Message]:
    answer: Message = {"role": "assistant", "content": "Hello."}
    if called.completion is not None:
        answer = called.completion.message.copy()
    answer.setdefault("reasoning", "I look up both.")
    messages: list[Message] = [{"role": "user", "content": "What is the weather in Paris and in Rome?"}, answer]
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "name": "get_weather", "content": "sunny"}
        for call in answer.get("tool_calls") or ()
    ]
    return [*messages, *(results or [{"role": "user", "content": "Thank you."}])]


async def _stop(prober: Prober) -> Sequence[Finding]:
    reply = await prober.ask("Write exactly these words and nothing else: alpha beta gamma delta", stop=("gamma",))
    if reply.completion is None:
        return [Finding("stop", NO if reply.refused else UNCLEAR, reply.said)]
    if "gamma" in reply.text:
        return [Finding("stop", NO, "it is ignored")]
    return [Finding("stop", YES if "beta" in reply.text else UNCLEAR)]


async def _parameters(prober: Prober) -> Sequence[Finding]:
    """Parameters whose effect one answer can't show: only whether they are taken."""
    effort = {"enabled": True, "effort": "low"}
    settings: dict[str, dict[str, Any]] = {
        "seed": {"seed": 7},
        "temperature": {"temperature": 0.0},
        "reasoning_effort": {"reasoning": effort},
    }
    replies = await asyncio.gather(*(prober.ask("Say hello.", **each) for each in settings.values()))
    return [
        Finding(f"{name} taken", YES if reply.completion is not None else NO if reply.refused else UNCLEAR, reply.said)
        for name, reply in zip(settings, replies, strict=True)
    ]


async def _schema(prober: Prober) -> Sequence[Finding]:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": _SCHEMA}}
    reply = await prober.ask("Which city is the capital of France? Answer as JSON.", response_format=wanted)
    if reply.completion is None:
        return [Finding("JSON schema", NO if reply.refused else UNCLEAR, reply.said)]
    try:
        value = loads_outside(reply.text)
    except ValueError:
        value = None
    fits = isinstance(value, dict) and set(value) == {"city"} and isinstance(value["city"], str)
    return [Finding("JSON schema", YES if fits else NO, "" if fits else "the answer does not fit it")]


async def _parts(prober: Prober) -> Sequence[Finding]:
    text = {"type": "text", "text": "Say hello."}
    image = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(_picture()).decode()}"},
    }
    contents = {"content parts taken": [text], "images taken": [text, image]}
    asked: list[list[Message]] = [[{"role": "user", "content": content}] for content in contents.values()]
    replies = await asyncio.gather(*map(prober.ask, asked))
    return [
        Finding(name, YES if reply.completion is not None else NO if reply.refused else UNCLEAR, reply.said)
        for name, reply in zip(contents, replies, strict=True)
    ]


def _picture(side: int = 32) -> bytes:
    """A red square as PNG (ISO/IEC 15948)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _figures(prober: Prober, report: EndpointReport, plain: Reply) -> None:
    told = tells_usage(plain.payload)
    report.add(
        "usage reported", YES if told else NO, "with the cost" if prober.cost is not None else "without the cost"
    )
    remaining, _ = parse_rate_headers(plain.headers, 0.0)
    detail = "" if remaining is None else f"{remaining:,} left"
    report.add("rate limits in headers", NO if remaining is None else YES, detail)
    report.add("streaming", UNCLEAR, "not tried, as it is not needed")
    latencies = prober.latencies
    report.add("latency", YES, f"{statistics.median(latencies):.2f} s, {max(latencies):.2f} s at most")


def _advise(report: EndpointReport, plain: Reply) -> None:
    if plain.completion is not None and plain.completion.extra.get("simulated"):
        report.advice.append("its model is simulated: answers are made up")
    results = {each.name: each.result for each in report.findings}
    if results["tool calls"] == NO:
        report.advice.append(
            "agents with tools don't work here; vLLM needs --enable-auto-tool-choice, SGLang --tool-call-parser"
        )
    if results["reasoning returned"] == NO:
        report.advice.append(
            "manyhands batch discards conversations without reasoning, unless --keep_unreasoned is given"
        )
    if NO in [results.get("max_tokens heeded"), results.get("max_completion_tokens heeded")]:
        report.advice.append("budgets don't hold, as the bound of answers is ignored")
    if results["temperature taken"] == NO:
        report.advice.append("leave out --temperature")
    if results["usage reported"] == NO:
        report.advice.append("tokens are estimated, as none are reported")
