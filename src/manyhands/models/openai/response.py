"""Answers as OpenAI chat completions, and the like from servers that take liberties with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, TypeGuard

from manyhands.core.jsonio import Json, dumps
from manyhands.core.messages import Message, ToolCall
from manyhands.core.usage import MAX_COUNT, Usage, as_cost
from manyhands.models.pricing import FREE, PriceTable
from manyhands.models.protocol import Completion
from manyhands.models.reasoning import FIELDS, Gathered, flatten, gather

SIMULATED_FINGERPRINT = "manyhands-simulated"
"""The ``system_fingerprint`` of answers that the simulated model made, by which the client knows them."""
RAW = "raw"
"""In a completion's ``extra``: the fields of the message as the server sent them, where they were changed."""
UNBEGUN = "unbegun_reasoning"
"""In a completion's ``extra``: the content ends reasoning that it does not begin (see ``Gathered.unbegun``)."""
_KEPT_IN = {"content": "content", "reasoning_details": "reasoning_details", **dict.fromkeys(FIELDS, "reasoning")}
"""The members of a message as it is sent that texts and reasoning come from, and the members of ours that hold them."""
_USUAL_FIELD = "reasoning_content"
_FINISH_REASONS = {"end_turn": "stop", "eos": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_CUT_OFF = ("length", "max_tokens")
_CHARACTERS_PER_TOKEN = 4
_MAX_CALLS = 10_000
"""Tool calls of an answer. What has more of them is no answer: every one is recorded, and answered."""


class Unreadable(ValueError):
    """An answer that is not a chat completion; the message says why."""


def parse_completion(
    payload: Json, *, model: str, prices: PriceTable, request_size: int, implied_think: bool = False
) -> Completion:
    """The completion in a response body.

    ``request_size``: bytes of the request, from which tokens are estimated where the server reports none. ``implied_think``: see
    ``gather``. Raises Unreadable.
    """
    choice = _first_choice(payload)
    sent = choice.get("message")
    if not isinstance(sent, dict):
        raise Unreadable("the answer's first choice has no message")
    gathered = gather(sent, implied_think=implied_think, cut_off=choice.get("finish_reason") in _CUT_OFF)
    message = _message(sent, gathered)
    extra = _extra(payload, choice)
    if raw := _raw(sent, message):
        extra[RAW] = raw
    if gathered.unbegun:
        extra[UNBEGUN] = True
    usage = _usage(payload, model, prices, request_size, message, extra)
    return Completion(message, _finish_reason(choice, message), usage, extra)


def _first_choice(payload: Json) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise Unreadable("the answer is not a JSON object")
    choices = payload.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unreadable("the answer has no choices")
    return choices[0]


def _message(sent: dict[str, Any], gathered: Gathered) -> Message:
    content = gathered.content
    if not content and isinstance(sent.get("refusal"), str):
        content = sent["refusal"]
    message: Message = {"role": "assistant", "content": content}
    calls = tool_calls(sent)
    if calls:
        message["tool_calls"] = calls
    if gathered.reasoning:
        message["reasoning"] = gathered.reasoning
        field = next((name for name in FIELDS if sent.get(name)), _USUAL_FIELD)
        if field != _USUAL_FIELD and not sent.get(_USUAL_FIELD):
            message["_reasoning_field"] = field
    details = sent.get("reasoning_details")
    if isinstance(details, list) and details:
        message["reasoning_details"] = details
    return message


def _raw(sent: Mapping[str, Any], message: Message) -> dict[str, Any]:
    """What was sent and the message does not hold as it was."""
    raw = {
        name: sent[name]
        for name, kept in _KEPT_IN.items()
        if name in sent and sent[name] not in (None, "", [], message.get(kept))
    }
    if sent.get("refusal"):
        raw["refusal"] = sent["refusal"]
    name = "tool_calls" if sent.get("tool_calls") else "function_call"
    if sent.get(name) and _called(sent[name]) != _called(message.get("tool_calls")):
        raw[name] = sent[name]
    return raw


def _called(calls: Json) -> list[Any]:
    """What of tool calls must come through as it was written."""
    if not isinstance(calls, list):
        return [calls]
    functions = [(call.get("id"), call.get("function")) if isinstance(call, dict) else (None, call) for call in calls]
    return [
        (call_id, function.get("name"), function.get("arguments")) if isinstance(function, dict) else function
        for call_id, function in functions
    ]


def tool_calls(sent: Mapping[str, Any]) -> list[ToolCall]:
    """The tool calls of a message in their standard shape: arguments as text, every id present and distinct. Raises Unreadable."""
    raw = sent.get("tool_calls")
    if not raw and isinstance(sent.get("function_call"), dict):
        raw = [{"function": sent["function_call"]}]
    if not isinstance(raw, list):
        return []
    if len(raw) > _MAX_CALLS:
        raise Unreadable(f"the answer has {len(raw):,} tool calls, and may have {_MAX_CALLS:,}")
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
    usage, cost = parse_usage(object_in(payload, "usage"))
    if not usage.total_tokens:
        usage = _estimate(request_size, message)
        extra["usage_estimated"] = True
    if "simulated" in extra:
        return simulated_usage(usage, model, prices, cost)
    return prices.priced(usage, model, cost)


def simulated_usage(usage: Usage, model: str, prices: PriceTable, cost: float | None) -> Usage:
    """One call's usage of the simulated model, which costs nothing unless its server or a person's table says so."""
    price = prices.price(model) or FREE
    return usage + Usage(cost=cost or price.cost(usage), simulated_calls=usage.calls)


def parse_usage(reported: Mapping[str, Any]) -> tuple[Usage, float | None]:
    """One call's usage, and the server's own cost in US dollars if it sent one.

    Knows the figures of OpenAI and OpenRouter (``prompt_tokens`` with the cached ones in it), DeepSeek
    (``prompt_cache_hit_tokens``) and Anthropic (``input_tokens`` without the cached ones). With a person's own key at OpenRouter, what the
    provider bills counts too.
    """
    prompt_details = object_in(reported, "prompt_tokens_details") or object_in(reported, "input_tokens_details")
    output_details = object_in(reported, "completion_tokens_details") or object_in(reported, "output_tokens_details")
    cached = _count(prompt_details, "cached_tokens") or _count(reported, "prompt_cache_hit_tokens")
    written = _count(prompt_details, "cache_write_tokens")
    read_apart = _count(reported, "cache_read_input_tokens")
    written_apart = _count(reported, "cache_creation_input_tokens")
    input_tokens = _count(reported, "prompt_tokens")
    if not input_tokens:
        input_tokens = _count(reported, "input_tokens") + read_apart + written_apart
    output_tokens = _count(reported, "completion_tokens") or _count(reported, "output_tokens")
    if input_tokens:  # some count the reasoning in the total alone
        output_tokens = max(output_tokens, _count(reported, "total_tokens") - input_tokens)
    usage = Usage(
        calls=1,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached or read_apart,
        cache_write_tokens=written or written_apart,
        reasoning_tokens=_count(output_details, "reasoning_tokens"),
    )
    cost = as_cost(reported.get("cost"))
    if cost is not None and reported.get("is_byok") is True:
        cost += as_cost(object_in(reported, "cost_details").get("upstream_inference_cost")) or 0.0
    return usage, cost


def tells_usage(payload: Json) -> bool:
    """Whether an answer says what it used, of both its input and its output."""
    reported = payload.get("usage") if isinstance(payload, dict) else None
    if not isinstance(reported, dict):
        return False
    counts = [[count for name in names if _is_count(count := reported.get(name))] for names in _SIDES]
    return all(counts) and any(map(any, counts))


def reported_usage(payload: Json, *, model: str, prices: PriceTable) -> Usage | None:
    """What an answer says that it used, whatever else is wrong with it; None if it does not say it (see ``tells_usage``)."""
    if not tells_usage(payload):
        return None
    usage, cost = parse_usage(payload["usage"])
    if payload.get("system_fingerprint") == SIMULATED_FINGERPRINT:
        return simulated_usage(usage, model, prices, cost)
    return prices.priced(usage, model, cost)


_SIDES = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
"""The names of a call's input and of its output."""


def object_in(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _count(value: Mapping[str, Any], name: str) -> int:
    found = value.get(name)
    if found is None or (type(found) is int and 0 <= found <= MAX_COUNT):  # as nearly all are
        return found or 0
    return int(found) if _is_count(found) else 0


def _is_count(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def _estimate(request_size: int, message: Message) -> Usage:
    size = len(flatten(message.get("content"))) + len(message.get("reasoning", ""))
    size += sum(len(call["function"]["arguments"]) for call in message.get("tool_calls", ()))
    return Usage(
        calls=1,
        input_tokens=-(-request_size // _CHARACTERS_PER_TOKEN),
        output_tokens=-(-size // _CHARACTERS_PER_TOKEN),
    )
