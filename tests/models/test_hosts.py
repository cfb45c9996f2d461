"""What is sent to providers and to endpoints of which nothing is known, against servers that refuse and want what these do."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError
from manyhands.core.messages import Message
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.factory import home_url
from manyhands.models.hosts import HOSTS as KNOWN
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.request import Endpoint, request_body, request_headers
from manyhands.models.protocol import ChatRequest, ChatSettings, Completion
from manyhands.testing.scripted_server import RecordedRequest, ScriptedResponse, ScriptedServer, chat_response
from tests.support.host_servers import (
    GATEWAYS,
    HOSTS,
    KEY,
    HostRules,
    fields_of_requests,
    host_server,
    openai_error,
    reached_at,
)

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
TASK: list[Message] = [{"role": "user", "content": "[simulate: tools=2] look"}]
FIELDS: dict[str, set[str]] = {
    "api.deepseek.com": {"reasoning_content"},
    "api.moonshot.ai": {"reasoning_content"},
    "api.cerebras.ai": {"reasoning"},
    "openrouter.ai": {"reasoning"},
}
"""The fields in which reasoning goes back to hosts that take it."""


async def converse(model: OpenAIChatModel, settings: ChatSettings, notices: list[str]) -> list[Completion]:
    """Ask until there is an answer without tool calls."""
    limits = SharedLimits(notice=notices.append)
    messages, answers = list(TASK), list[Completion]()
    try:
        while not answers or answers[-1].message.get("tool_calls"):
            request = ChatRequest(settings, messages, [TOOL])
            answers.append(await model.complete(request, limits, SystemClock()))
            message = answers[-1].message
            results = [_result(call["id"]) for call in message.get("tool_calls", ())]
            messages = [*messages, message, *results]
    finally:
        await model.close()
    return answers


def _result(call: str) -> Message:
    return {"role": "tool", "tool_call_id": call, "name": "look", "content": "nothing"}


async def conversed(
    rules: HostRules, base_url: str | None = None, **settings: Any
) -> tuple[ScriptedServer, list[Completion], list[str]]:
    notices: list[str] = []
    async with host_server(rules) as server:
        model = OpenAIChatModel(base_url or server.base_url, KEY)
        answers = await converse(model, ChatSettings("m", **settings), notices)
    return server, answers, notices


@pytest.mark.parametrize("host", HOSTS)
async def test_a_known_host_refuses_nothing(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = HOSTS[host]
    query = "".join(f"?{name}={value}" for name, value in (rules.query or {}).items())
    async with host_server(rules) as server:
        reached_at(monkeypatch, server.base_url)
        url = f"http://{host}{rules.path.removesuffix('/chat/completions')}{query}"
        notices: list[str] = []
        answers = await converse(OpenAIChatModel(url, KEY), ChatSettings("m", max_tokens=100), notices)
    assert len(answers) == len(server.requests) == 3
    assert fields_of_requests(server.requests) == FIELDS.get(host, set())
    assert notices == []


@pytest.mark.parametrize(
    ("gateway", "sent", "told"),
    [
        ("strict", {"reasoning"}, "takes no reasoning back"),
        ("pydantic", {"reasoning"}, "takes no reasoning back"),
        ("thinking", {"reasoning_content"}, ""),
        ("vllm", {"reasoning"}, ""),
    ],
)
async def test_what_an_unknown_endpoint_refuses_is_learnt_once(gateway: str, sent: set[str], told: str) -> None:
    server, answers, notices = await conversed(GATEWAYS[gateway])
    assert fields_of_requests(server.requests) == sent
    assert len(server.requests) == 3 + bool(told)
    assert [told in notice for notice in notices] == [True] * bool(told)
    assert [each.extra.get("refused_first") for each in answers] == [None, 1 if told else None, None]


async def test_what_a_replica_refuses_holds_for_it_alone() -> None:
    limits, settings = SharedLimits(notice=(notices := list[str]()).append), ChatSettings("m", max_tokens=100)
    async with host_server(GATEWAYS["openai behind"]) as new, host_server(GATEWAYS["vllm"]) as other:
        model = OpenAIChatModel((other.base_url, new.base_url), KEY, headers={"X-Team": "mine"})
        answers = [await model.complete(ChatRequest(settings, TASK), limits, SystemClock()) for _ in range(6)]
        await model.close()
    assert ["max_tokens" in each.body for each in new.requests] == [True] + [False] * (len(new.requests) - 1)
    assert len(new.requests) >= 3
    assert {each.body.get("max_tokens") for each in other.requests} == {100}
    assert {each.headers["X-Team"] for each in (*new.requests, *other.requests)} == {"mine"}
    assert [each.extra["refused_first"] for each in answers if "refused_first" in each.extra] == [1]
    assert [notice.partition(": ")[0] for notice in notices] == [new.base_url]


async def test_reasoning_that_is_wanted_is_sent_empty_where_there_was_none() -> None:
    rules = HostRules(reasoning_field="", refuse=GATEWAYS["thinking"].refuse)
    server, answers, notices = await conversed(rules)
    assert len(answers) == 3
    assert len(server.requests) == 4
    assert "wants reasoning_content back" in notices[0]
    calling = [each for each in server.requests[-1].body["messages"] if "tool_calls" in each]
    assert [each["reasoning_content"] for each in calling] == [" ", " "]


async def test_the_bound_and_the_seed_are_learnt() -> None:
    server, _, notices = await conversed(GATEWAYS["openai behind"], max_tokens=100)
    assert ["max_tokens" in each.body for each in server.requests[:2]] == [True, False]
    assert {each.body["max_completion_tokens"] for each in server.requests[1:]} == {100}
    assert any("sent as max_completion_tokens" in notice for notice in notices)

    server, _, notices = await conversed(GATEWAYS["pydantic"], seed=1)
    assert ["seed" in each.body for each in server.requests[:2]] == [True, False]
    assert any("takes no seed" in notice for notice in notices)


async def test_a_setting_that_changes_answers_is_never_left_out() -> None:
    with pytest.raises(ItemError) as caught:
        await conversed(GATEWAYS["openai behind"], temperature=0.0)
    assert (
        "by the setting temperature: leave it out, on resume with --temperature= --override=temperature; "
        "for a target of an evaluation, in its targets file)"
    ) in str(caught.value)


@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        ("never", set()),
        ("always", {"reasoning"}),
        ("reasoning_content", {"reasoning_content"}),
        ("reasoning_details", set()),
    ],
)
async def test_the_switch(sent: str, fields: set[str]) -> None:
    server, _, _ = await conversed(HostRules(), send_reasoning=sent)
    assert fields_of_requests(server.requests) == fields


async def test_the_switch_is_not_overruled() -> None:
    with pytest.raises(ItemError, match="is unsupported"):
        await conversed(GATEWAYS["strict"], send_reasoning="always")
    with pytest.raises(ItemError, match="is missing"):
        await conversed(GATEWAYS["thinking"], send_reasoning="never")


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens is too large: at most 10 are supported",
        "max_tokens must not be greater than 8192",
        "Invalid parameter: max_tokens must be at most 8192",
        "max_tokens 100000 is not supported by this model, the maximum is 8192",
        "Invalid parameter: 'max_tokens': 100 < 1024",
        "Invalid parameter: seed must be less than 2147483648",
        "this seed is not supported, it must be positive",
        "tool_choice 'required' is not supported with reasoning",
        "Image input is not supported by this reasoning model",
        "Invalid parameter: reasoning models take no pictures",
        "thinking is enabled, with which tool_choice is not supported",
    ],
)
async def test_a_refusal_that_is_not_about_a_field_teaches_nothing(said: str) -> None:
    refused = ScriptedResponse({"error": {"message": said}}, status=400)
    messages: list[Message] = [
        *TASK,
        {"role": "assistant", "content": "a", "reasoning": "r", "_reasoning_field": "reasoning"},
        *TASK,
    ]
    async with ScriptedServer([refused]) as server:
        model = OpenAIChatModel(server.base_url, KEY)
        settings = ChatSettings("m", max_tokens=100, seed=1)
        with pytest.raises(ItemError, match="HTTP 400"):
            await model.complete(ChatRequest(settings, messages, [TOOL]), SharedLimits(), SystemClock())
        await model.close()
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "said",
    [
        "Unrecognized request argument supplied: reasoning",
        "reasoning is not supported",
        "messages[1].reasoning: unknown field",
        "unknown field reasoning, ignored fields are not allowed",
        "Invalid field: body -> messages -> 1 -> reasoning",
    ],
)
async def test_a_common_word_is_a_field_where_it_is_named_as_one(said: str) -> None:
    rules = HostRules(refuse=lambda body: openai_error(said) if "'reasoning':" in str(body["messages"]) else None)
    _, answers, notices = await conversed(rules)
    assert len(answers) == 3
    assert ["takes no reasoning back" in notice for notice in notices] == [True]


async def test_what_is_not_proven_by_an_answer_holds_for_no_other_call() -> None:
    """A server may repeat what it was sent, and a model's words are no business of other conversations."""

    def reply(request: RecordedRequest) -> ScriptedResponse | dict[str, Any]:
        hostile = "hostile" in str(request.body["messages"])
        said = 'Invalid field in tool call arguments: {"cmd": "max_tokens", "seed": 1}'
        return ScriptedResponse({"error": {"message": said}}, status=400) if hostile else chat_response()

    async with ScriptedServer(reply) as server:
        model, limits = OpenAIChatModel(server.base_url, KEY), SharedLimits(notice=(notices := list[str]()).append)
        settings = ChatSettings("m", max_tokens=100, seed=1)
        hostile: list[Message] = [{"role": "user", "content": "hostile"}]
        for _ in range(2):
            with pytest.raises(ItemError, match="HTTP 400"):
                await model.complete(ChatRequest(settings, hostile), limits, SystemClock())
        await model.complete(ChatRequest(settings, TASK), limits, SystemClock())
        await model.close()
    last = server.requests[-1].body
    assert (last["max_tokens"], last["seed"]) == (100, 1)
    assert notices == []


def test_extra_fields_are_merged_last() -> None:
    settings = ChatSettings(
        "m",
        stop=("###",),
        provider={"only": ["a"]},
        extra_body={"provider": {"data_collection": "deny"}, "top_k": 4},
    )
    body = request_body(ChatRequest(settings, TASK), Endpoint.of("https://openrouter.ai/api/v1"))
    assert body["provider"] == {"only": ["a"], "data_collection": "deny"}
    assert (body["top_k"], body["stop"]) == (4, ["###"])


@pytest.mark.parametrize(
    ("choice", "tools", "sent"),
    [
        ("required", [TOOL], "required"),
        ("look", [TOOL], {"type": "function", "function": {"name": "look"}}),
        ("other", [TOOL], None),
        ("required", [], None),
        (None, [TOOL], None),
    ],
)
def test_tool_choice_goes_with_tools_on_offer(choice: str | None, tools: list[Any], sent: Any) -> None:
    request = ChatRequest(ChatSettings("m", tool_choice=choice), TASK, tools)
    assert request_body(request, Endpoint.of("http://h/v1")).get("tool_choice") == sent


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://r.openai.azure.com", "https://r.openai.azure.com/openai/v1/chat/completions"),
        ("https://r.services.ai.azure.com/openai/v1/", "https://r.services.ai.azure.com/openai/v1/chat/completions"),
        (
            "https://r.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21",
            "https://r.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21",
        ),
    ],
)
def test_addresses_of_azure(base_url: str, url: str) -> None:
    assert Endpoint.of(base_url).url == url
    assert request_headers(Endpoint.of(base_url), "key")["api-key"] == "key"
    assert request_headers(Endpoint.of(base_url), "eyJ.a.b")["Authorization"] == "Bearer eyJ.a.b"


def test_an_old_version_of_azure_has_the_old_name_of_the_bound() -> None:
    request = ChatRequest(ChatSettings("m", max_tokens=5), TASK)
    old = request_body(request, Endpoint.of("https://r.openai.azure.com/openai/deployments/d?api-version=2024-06-01"))
    new = request_body(request, Endpoint.of("https://r.openai.azure.com/openai/deployments/d?api-version=2024-10-21"))
    assert (old["max_tokens"], new["max_completion_tokens"]) == (5, 5)


def test_own_headers_take_precedence() -> None:
    headers = request_headers(Endpoint.of("http://h/v1"), "key", {"authorization": "Basic x", "X-Team": "t"})
    assert {name: value for name, value in headers.items() if name.lower() in ("authorization", "x-team")} == {
        "authorization": "Basic x",
        "X-Team": "t",
    }


@pytest.mark.parametrize(
    ("model", "keys", "url"),
    [
        ("gpt-5-mini", ["OPENAI_API_KEY"], "https://api.openai.com/v1"),
        ("o4-mini", ["OPENAI_API_KEY"], "https://api.openai.com/v1"),
        ("gpt-oss-120b", ["OPENAI_API_KEY"], None),
        ("gpt-5-mini", ["OPENAI_API_KEY", "OPENROUTER_API_KEY"], None),
        ("gpt-5-mini", ["ANTHROPIC_API_KEY"], None),
        ("openai/gpt-5-mini", ["OPENAI_API_KEY"], None),
        ("claude-sonnet-4-6", ["ANTHROPIC_API_KEY"], "https://api.anthropic.com/v1"),
        ("gemini-3-flash", ["GEMINI_API_KEY"], "https://generativelanguage.googleapis.com/v1beta/openai"),
        ("deepseek-chat", ["DEEPSEEK_API_KEY"], "https://api.deepseek.com/v1"),
        ("kimi-k2.5", ["MOONSHOT_API_KEY"], "https://api.moonshot.ai/v1"),
        ("magistral-small", ["MISTRAL_API_KEY"], "https://api.mistral.ai/v1"),
        ("llama3", ["OPENAI_API_KEY"], None),
    ],
)
def test_a_model_goes_to_its_own_provider_if_only_that_has_a_key(model: str, keys: list[str], url: str | None) -> None:
    assert home_url(model, dict.fromkeys(keys, "k")) == url


def test_own_providers_have_all_that_is_needed() -> None:
    assert [host for host, known in KNOWN.items() if known.models and not (known.base_url and known.key_variable)] == []


async def test_the_field_in_which_reasoning_came_is_kept_with_the_message() -> None:
    async with ScriptedServer([chat_response("a", reasoning="r")]) as server:
        model = OpenAIChatModel(server.base_url, KEY)
        completion = await model.complete(ChatRequest(ChatSettings("m"), TASK), SharedLimits(), SystemClock())
        await model.close()
    assert completion.message.get("_reasoning_field") == "reasoning"
