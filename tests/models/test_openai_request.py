"""Request bodies and headers for each kind of endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.core.messages import Message
from manyhands.models.openai.request import Endpoint, request_body, request_headers
from manyhands.models.protocol import ChatRequest, ChatSettings

OPENROUTER = "https://openrouter.ai/api/v1"
NOUS = "https://inference-api.nousresearch.com/v1"
OPENAI = "https://api.openai.com/v1"
LOCAL = "http://localhost:8000/v1"
HELLO: list[Message] = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "t", "description": "", "parameters": {"type": "object"}}}
MEDIUM = {"enabled": True, "effort": "medium"}


def body(base_url: str, settings: ChatSettings, messages: list[Message] = HELLO, tools: Any = ()) -> dict[str, Any]:
    return request_body(ChatRequest(settings, messages, tools), Endpoint.of(base_url))


def test_the_least_request() -> None:
    assert body(LOCAL, ChatSettings("m")) == {"model": "m", "messages": HELLO}


@pytest.mark.parametrize("base_url", ["http://h/v1", "http://h/v1/", "http://h/v1//", "http://h/v1/chat/completions"])
def test_base_urls_are_taken_with_or_without_a_slash(base_url: str) -> None:
    assert Endpoint.of(base_url).url == "http://h/v1/chat/completions"


def test_a_password_in_the_url_is_not_shown() -> None:
    assert Endpoint.of("http://me:secret@h:1/v1").shown == "http://h:1/v1"


def test_everything_that_is_set_is_sent() -> None:
    settings = ChatSettings(
        "m",
        max_tokens=5,
        temperature=0.0,
        top_p=0.5,
        seed=0,
        parallel_tool_calls=False,
        response_format={"type": "json_object"},
    )
    assert body(LOCAL, settings, tools=[TOOL]) == {
        "model": "m",
        "messages": HELLO,
        "tools": [TOOL],
        "max_tokens": 5,
        "temperature": 0.0,
        "top_p": 0.5,
        "seed": 0,
        "parallel_tool_calls": False,
        "response_format": {"type": "json_object"},
    }
    assert body(OPENAI, settings)["max_completion_tokens"] == 5
    assert "max_tokens" not in body(OPENAI, settings)


def test_routing_goes_to_openrouter_only() -> None:
    settings = ChatSettings("x/y", provider={"only": ["anthropic"], "sort": "price"})
    assert body(OPENROUTER, settings)["provider"] == {"only": ["anthropic"], "sort": "price"}
    assert body(OPENROUTER, settings)["usage"] == {"include": True}
    assert "provider" not in body(LOCAL, settings)
    assert "usage" not in body(LOCAL, settings)


@pytest.mark.parametrize(
    ("base_url", "model", "asked", "sent"),
    [
        (OPENROUTER, "anthropic/claude-sonnet-4.6", None, {"reasoning": MEDIUM}),
        (OPENROUTER, "qwen/qwen3-8b", None, {"reasoning": MEDIUM}),
        (OPENROUTER, "meta/llama", None, {}),
        (OPENROUTER, "meta/llama", {"effort": "none"}, {"reasoning": {"effort": "none"}}),
        (OPENROUTER, "openai/gpt-5", {"effort": "none"}, {"reasoning": {"effort": "none"}}),
        (NOUS, "hermes", None, {"reasoning": MEDIUM, "tags": ["product=manyhands"]}),
        (NOUS, "hermes", {"enabled": False}, {"tags": ["product=manyhands"]}),
        (LOCAL, "anthropic/claude", None, {}),
        (LOCAL, "m", {"enabled": True, "effort": "high"}, {"reasoning_effort": "high"}),
        (OPENAI, "gpt-5", {"effort": "none"}, {"reasoning_effort": "none"}),
    ],
)
def test_reasoning(base_url: str, model: str, asked: dict[str, Any] | None, sent: dict[str, Any]) -> None:
    made = body(base_url, ChatSettings(model, reasoning=asked))
    assert {key: made[key] for key in ("reasoning", "reasoning_effort", "tags") if key in made} == sent


def test_our_own_keys_stay_here_and_reasoning_goes_back_by_its_wire_name() -> None:
    messages: list[Message] = [
        {"role": "user", "content": "go on", "_synthetic": "continue"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "why",
            "reasoning_details": [{"type": "x"}],
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "t", "arguments": "{}"}, "extra_content": {"g": 1}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "r", "_failed": True},
        {"role": "assistant", "content": "done", "tool_calls": []},
    ]
    messages[1]["tool_calls"][0]["call_id"] = "x"  # type: ignore[typeddict-unknown-key]
    assert body(LOCAL, ChatSettings("m"), messages)["messages"] == [
        {"role": "user", "content": "go on"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_details": [{"type": "x"}],
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "t", "arguments": "{}"}, "extra_content": {"g": 1}}
            ],
            "reasoning_content": "why",
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
        {"role": "assistant", "content": "done"},
    ]
    assert messages[0]["_synthetic"] == "continue"
    assert "reasoning_content" not in body(OPENAI, ChatSettings("m"), messages)["messages"][1]


def test_claude_through_openrouter_is_marked_for_caching() -> None:
    messages: list[Message] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "1"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    mark = {"cache_control": {"type": "ephemeral"}}
    made = body(OPENROUTER, ChatSettings("anthropic/claude-sonnet-4.6"), messages)["messages"]
    assert made == [
        {"role": "system", "content": [{"type": "text", "text": "s", **mark}]},
        {"role": "user", "content": "1"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", **mark}]},
        {"role": "assistant", "content": None, **mark},
        {"role": "tool", "tool_call_id": "1", "content": "r", **mark},
    ]
    assert messages[0]["content"] == "s"
    assert messages[2]["content"][1] == {"type": "text", "text": "b"}
    assert body(LOCAL, ChatSettings("anthropic/claude-sonnet-4.6"), messages)["messages"] == messages
    assert body(OPENROUTER, ChatSettings("openai/gpt-5"), messages)["messages"] == messages


def test_headers() -> None:
    assert "Authorization" not in request_headers(Endpoint.of(LOCAL), None)
    assert request_headers(Endpoint.of(LOCAL), "k")["Authorization"] == "Bearer k"
    assert request_headers(Endpoint.of(OPENROUTER), "k")["X-OpenRouter-Title"] == "manyhands"
    assert "X-OpenRouter-Title" not in request_headers(Endpoint.of(LOCAL), "k")
