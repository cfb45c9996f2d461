"""Answers as OpenAI chat completions, and the like from servers that take liberties with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from manyhands.core.jsonio import Json, dumps
from manyhands.core.messages import Message, ToolCall
from manyhands.core.usage import Usage
from manyhands.models.pricing import PriceTable
from manyhands.models.protocol import Completion
from manyhands.models.reasoning import flatten, gather

SIMULATED_FINGERPRINT = "manyhands-simulated"
"""The ``system_fingerprint`` of answers that the simulated model made, by which the client knows them."""
_FINISH_REASONS = {"end_turn": "stop", "eos": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_CHARACTERS_PER_TOKEN = 4
_SIMULATED = Usage(simulated_calls=1)


class Unreadable(ValueError):
    """An answer that is not a chat completion; the message says why."""


def parse_completion(payload: Json, *, model: str, prices: PriceTable, request_size: int) -> Completion:
    """The completion in a response body.

    ``request_size``: bytes of the request, from which tokens are estimated where the server reports none. Raises Unreadable.
    """
    choice = _first_choice(payload)
    sent = choice.get("message")
    if not isinstance(sent, dict):
        raise Unreadable("the answer's first choice has no message")
    message = _message(sent)
    extra = _extra(payload, choice)
    usage = _usage(payload, model, prices, request_size, message, extra)
    return Completion(message, _finish_reason(choice, message), usage, extra)


def _first_choice(payload: Json) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise Unreadable("the answer is not a JSON object")
    choices = payload.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unreadable("the answer has no choices")
    return choices[0]


def _message(sent: dict[str, Any]) -> Message:
    gathered = gather(sent)
    content = gathered.content
    if not content and isinstance(sent.get("refusal"), str):
        content = sent["refusal"]
    message: Message = {"role": "assistant", "content": content}
    calls = tool_calls(sent)
    if calls:
        message["tool_calls"] = calls
    if gathered.reasoning:
        message["reasoning"] = gathered.reasoning
    details = sent.get("reasoning_details")
    if isinstance(details, list) and details:
        message["reasoning_details"] = details
    return message


def tool_calls(sent: Mapping[str, Any]) -> list[ToolCall]:
    """The tool calls of a message in their standard shape: arguments as text, every id present and distinct."""
    raw = sent.get("tool_calls")
    if not raw and isinstance(sent.get("function_call"), dict):
        raw = [{"function": sent["function_call"]}]
    if not isinstance(raw, list):
        return []
    calls: list[ToolCall] = []
    taken: set[str] = set()
    for index, call in enumerate(raw):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        name = function.get("name")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else "" if arguments is None else dumps(arguments).decode()
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id or call_id in taken:
            call_id = _made_up_id(index, str(name), text)
        taken.add(call_id)
        ready: ToolCall = {
            "id": call_id,
            "type": "function",
            "function": {"name": name if isinstance(name, str) else "", "arguments": text},
        }
        if call.get("extra_content") is not None:
            ready["extra_content"] = call["extra_content"]
        calls.append(ready)
    return calls


def _made_up_id(index: int, name: str, arguments: str) -> str:
    text = f"{index}\x1f{name}\x1f{arguments}".encode("utf-8", "surrogatepass")
    return "call_" + hashlib.blake2b(text, digest_size=6).hexdigest()


def _finish_reason(choice: Mapping[str, Any], message: Message) -> str:
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or not reason:
        return "tool_calls" if message.get("tool_calls") else "stop"
    reason = _FINISH_REASONS.get(reason, reason)
    if message.get("tool_calls") and reason in ("stop", "function_call"):
        return "tool_calls"
    return reason


def _extra(payload: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    for name in ("id", "model", "provider"):
        if isinstance(payload.get(name), str):
            extra[name] = payload[name]
    native = choice.get("native_finish_reason")
    if isinstance(native, str) and native != choice.get("finish_reason"):
        extra["native_finish_reason"] = native
    if payload.get("system_fingerprint") == SIMULATED_FINGERPRINT:
        extra["simulated"] = True
    return extra


def _usage(
    payload: Mapping[str, Any],
    model: str,
    prices: PriceTable,
    request_size: int,
    message: Message,
    extra: dict[str, Any],
) -> Usage:
    reported = payload.get("usage")
    usage, cost = parse_usage(reported if isinstance(reported, dict) else {})
    if not usage.total_tokens:
        usage = _estimate(request_size, message)
        extra["usage_estimated"] = True
    if "simulated" in extra:
        return usage + _SIMULATED
    return prices.priced(usage, model, cost)


def parse_usage(reported: Mapping[str, Any]) -> tuple[Usage, float | None]:
    """One call's usage, and the server's own cost in US dollars if it sent one.

    Knows the figures of OpenAI and OpenRouter (``prompt_tokens`` with the cached ones in it), DeepSeek
    (``prompt_cache_hit_tokens``) and Anthropic (``input_tokens`` without the cached ones).
    """
    prompt_details = _object(reported, "prompt_tokens_details") or _object(reported, "input_tokens_details")
    output_details = _object(reported, "completion_tokens_details") or _object(reported, "output_tokens_details")
    cached = _count(prompt_details, "cached_tokens") or _count(reported, "prompt_cache_hit_tokens")
    written = _count(prompt_details, "cache_write_tokens")
    read_apart = _count(reported, "cache_read_input_tokens")
    written_apart = _count(reported, "cache_creation_input_tokens")
    input_tokens = _count(reported, "prompt_tokens")
    if not input_tokens:
        input_tokens = _count(reported, "input_tokens") + read_apart + written_apart
    usage = Usage(
        calls=1,
        input_tokens=input_tokens,
        output_tokens=_count(reported, "completion_tokens") or _count(reported, "output_tokens"),
        cached_tokens=cached or read_apart,
        cache_write_tokens=written or written_apart,
        reasoning_tokens=_count(output_details, "reasoning_tokens"),
    )
    cost = reported.get("cost")
    valid = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < float("inf")
    return usage, float(cost) if valid and cost is not None else None


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _count(value: Mapping[str, Any], name: str) -> int:
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e15:
        return 0
    return int(found)


def _estimate(request_size: int, message: Message) -> Usage:
    size = len(flatten(message.get("content"))) + len(message.get("reasoning", ""))
    size += sum(len(call["function"]["arguments"]) for call in message.get("tool_calls", ()))
    return Usage(
        calls=1,
        input_tokens=-(-request_size // _CHARACTERS_PER_TOKEN),
        output_tokens=-(-size // _CHARACTERS_PER_TOKEN),
    )
