"""Fakes of providers' endpoints: each refuses and wants what the provider does, in its words, and answers as the simulated model does.

A fake is reached under the provider's own host name, as a proxy (``http_proxy``), so that what is known of the host applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from manyhands.core.jsonio import Json
from manyhands.models.simulated.model import simulate
from manyhands.testing.scripted_server import RecordedRequest, ScriptedResponse, ScriptedServer

KEY = "sk-fake-0123456789abcdef"
REASONING = ("reasoning", "reasoning_content", "reasoning_details")
Refusal = tuple[int, Json]


def openai_error(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    return 400, {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


@dataclass(frozen=True)
class HostRules:
    """How a provider's endpoint behaves."""

    path: str = "/v1/chat/completions"
    query: Mapping[str, str] | None = None
    key_header: str = "Authorization"
    """Where it looks for its key; empty: it needs none."""
    forces_tools: bool = True
    """Whether it heeds ``tool_choice``."""
    reasoning_field: str = "reasoning"
    """Where its answers have reasoning; empty: nowhere."""
    refuse: Callable[[dict[str, Any]], Refusal | None] = lambda body: None
    """What is wrong with a request; None if nothing is."""


def _openai(body: dict[str, Any]) -> Refusal | None:
    if "max_tokens" in body:
        return openai_error(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            "max_tokens",
            "unsupported_parameter",
        )
    if body.get("temperature", 1) != 1:
        text = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
        return openai_error(text, "temperature", "unsupported_value")
    found = next(_in_messages(body, REASONING), None)
    if found is not None:
        name = f"messages[{found[0]}].{found[1]}"
        return openai_error(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    return None


def _mistral(body: dict[str, Any]) -> Refusal | None:
    extra: list[list[Any]] = [["body", name] for name in ("max_completion_tokens", "seed") if name in body]
    extra += [["body", "messages", index, "assistant", name] for index, name in _in_messages(body, REASONING)]
    details = [{"type": "extra_forbidden", "loc": loc, "msg": "Extra inputs are not permitted"} for loc in extra]
    return (
        (422, {"object": "error", "message": {"detail": details}, "type": "invalid_request_error"}) if extra else None
    )


def _groq(body: dict[str, Any]) -> Refusal | None:
    for index, name in _in_messages(body, REASONING):
        text = f"'messages.{index}' : for 'role:assistant' the following must be satisfied"
        return openai_error(f"{text}[('messages.{index}' : property '{name}' is unsupported)]")
    return None


def _cerebras(body: dict[str, Any]) -> Refusal | None:
    for index, name in _in_messages(body, ("reasoning_content", "reasoning_details")):
        field = f"messages.{index}.assistant.{name}"
        text = f"{field}: property '{field}' is unsupported"
        return 400, {"message": text, "type": "invalid_request_error", "param": "validation_error"}
    return None


def _gemini(body: dict[str, Any]) -> Refusal | None:
    for index, name in _in_messages(body, REASONING):
        text = f"Invalid JSON payload received. Unknown name \"{name}\" at 'messages[{index}]': Cannot find field."
        return 400, [{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}]
    return None


def _deepseek(body: dict[str, Any]) -> Refusal | None:
    if any("tool_calls" in each and not each.get("reasoning_content") for each in body["messages"]):
        return openai_error("The `reasoning_content` in the thinking mode must be passed back to the API.")
    return None


def _moonshot(body: dict[str, Any]) -> Refusal | None:
    for index, each in enumerate(body["messages"]):
        if "tool_calls" in each and not each.get("reasoning_content"):
            text = "thinking is enabled but reasoning_content is missing in assistant tool call message at index"
            return openai_error(f"{text} {index}")
    return None


def _vllm(body: dict[str, Any]) -> Refusal | None:
    """It ignores what it doesn't know, which is checked by whoever looks at the requests."""
    return None


def _in_messages(body: dict[str, Any], names: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for index, message in enumerate(body["messages"]):
        yield from ((index, name) for name in names if name in message)


HOSTS = {
    "api.openai.com": HostRules(reasoning_field="", refuse=_openai),
    "eu.api.openai.com": HostRules(reasoning_field="", refuse=_openai),
    "mine.openai.azure.com": HostRules(
        "/openai/v1/chat/completions", key_header="api-key", reasoning_field="", refuse=_openai
    ),
    "old.openai.azure.com": HostRules(
        "/openai/deployments/prod/chat/completions",
        {"api-version": "2024-10-21"},
        key_header="api-key",
        reasoning_field="",
        refuse=_openai,
    ),
    "api.mistral.ai": HostRules(refuse=_mistral),
    "api.groq.com": HostRules("/openai/v1/chat/completions", refuse=_groq),
    "api.cerebras.ai": HostRules(refuse=_cerebras),
    "generativelanguage.googleapis.com": HostRules("/v1beta/openai/chat/completions", refuse=_gemini),
    "api.deepseek.com": HostRules(reasoning_field="reasoning_content", refuse=_deepseek),
    "api.moonshot.ai": HostRules(reasoning_field="reasoning_content", refuse=_moonshot),
    "openrouter.ai": HostRules("/api/v1/chat/completions"),
}
"""By host name."""
SERVERS = {
    "localhost:8000": HostRules(key_header=""),
    "localhost:30000": HostRules(key_header="", reasoning_field="reasoning_content"),
    "localhost:11434": HostRules(key_header="", forces_tools=False),
    "localhost:4000": HostRules(reasoning_field="reasoning_content"),
}
"""Servers of one's own, by their usual address: vLLM, SGLang, Ollama, LiteLLM."""
GATEWAYS = {
    "strict": HostRules(refuse=_groq),
    "pydantic": HostRules(refuse=_mistral),
    "thinking": HostRules(reasoning_field="reasoning_content", refuse=_moonshot),
    "openai behind": HostRules(refuse=_openai),
    "vllm": HostRules(),
}
"""Endpoints of which nothing is known."""


def host_server(rules: HostRules) -> ScriptedServer:
    """A server with these rules, and one model. The model calls a tool until it has a result."""
    return ScriptedServer(lambda request: reply_of(request, rules))


def reached_at(monkeypatch: pytest.MonkeyPatch, base_url: str) -> None:
    """From now on, every host is that server, for a client that asks over plain HTTP."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, base_url.removesuffix("/v1"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def reply_of(request: RecordedRequest, rules: HostRules) -> ScriptedResponse | dict[str, Any]:
    if request.method == "GET" and request.path.endswith("/models"):
        return {"object": "list", "data": [{"id": "m", "object": "model"}]}
    if request.path != rules.path or request.query != (rules.query or {}):
        return ScriptedResponse({"error": {"message": f"Resource not found: {request.path}"}}, status=404)
    sent = {name.lower(): value for name, value in request.headers.items()}.get(rules.key_header.lower(), "")
    if rules.key_header and sent.removeprefix("Bearer ") != KEY:
        return ScriptedResponse({"error": {"message": "Incorrect API key provided"}}, status=401)
    refused = rules.refuse(request.body)
    if refused is not None:
        return ScriptedResponse(refused[1], status=refused[0])
    return _answer(request.body, rules)


def _answer(body: dict[str, Any], rules: HostRules) -> dict[str, Any]:
    forced = body.get("tool_choice") == "required"
    tools = () if forced and not rules.forces_tools else body.get("tools") or ()
    answer = simulate(body["messages"], tools, seed=1, request_seed=None, model=body["model"])
    message, usage = answer["choices"][0]["message"], answer["usage"]
    bound = body.get("max_completion_tokens") or body.get("max_tokens")
    if bound is not None and usage["completion_tokens"] > bound:
        usage["completion_tokens"], answer["choices"][0]["finish_reason"] = bound, "length"
        usage["total_tokens"] = usage["prompt_tokens"] + bound
    reasoning = message.pop("reasoning", None)
    if reasoning and rules.reasoning_field:
        message[rules.reasoning_field] = reasoning
    return answer


def fields_of_requests(requests: Iterable[RecordedRequest]) -> set[str]:
    """All fields of reasoning in the messages of requests, also of those that were refused."""
    bodies = [each.body for each in requests if isinstance(each.body, dict)]
    return {name for body in bodies for _, name in _in_messages(body, REASONING)}
