"""The agents that are built in: what of a conversation their models are shown, and what they cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.messages import text_of
from manyhands.io.files import folder_name
from manyhands.models.openai.embeddings import OpenAIEmbeddings
from manyhands.models.protocol import ChatRequest, ChatSettings
from manyhands.testing.agent_doubles import ScriptedModel
from manyhands.testing.context import MemoryContext
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.agents.model_agents import (
    OVERHEAD,
    SYSTEM,
    ChatAgent,
    ContextSize,
    EmbeddingIndex,
    RetrievalAgent,
    ScratchpadAgent,
    TextIndex,
    Window,
    age_in_words,
)
from manyhands.workloads.memory.agents.model_calls import EmbeddingCaller, ModelCaller
from manyhands.workloads.memory.agents.simulated import REPLY_TOKENS, CostEstimator
from manyhands.workloads.memory.conversation.driver import Incoming
from tests.support.embedding_server import EmbeddingServer


def words(text: str) -> int:
    return len(text.split())


def caller(model: ScriptedModel) -> ModelCaller:
    return ModelCaller(model, ChatSettings(model="scripted"))


def message(number: int, text: str, *, expected: str | None = None, now: float = 0.0) -> Incoming:
    return Incoming(number, text, now, expected)


def shown(request: ChatRequest) -> list[str]:
    return [text_of(each.get("content")) for each in request.messages]


# --- The window


@given(st.lists(st.integers(0, 60), max_size=30), st.integers(1, 200), st.integers(0, 50), st.integers(0, 50))
def test_a_window_keeps_the_newest_that_fit(sizes: list[int], limit: int, reserve: int, fixed: int) -> None:
    window = Window(words, ContextSize(limit, reserve).free)
    for number, size in enumerate(sizes):
        window.add("a " * size, "b", float(number))
    kept = window.kept(fixed)
    assert kept == window.pairs[len(window.pairs) - len(kept) :]
    room = limit - reserve - fixed
    assert not kept or sum(pair.tokens for pair in kept) <= room
    if len(kept) < len(window.pairs):  # and the next older one would not have fitted
        assert sum(pair.tokens for pair in kept) + window.pairs[-len(kept) - 1].tokens > room


async def test_a_long_conversation_is_trimmed_to_what_fits_and_no_more() -> None:
    """The GoodAI LTM Benchmark's own agent is left with nothing but the last message once the history is as long as the context."""
    model = ScriptedModel(default="ok")
    agent = ChatAgent("a", caller(model), words, size=ContextSize(200, 20))
    context = MemoryContext()
    for number in range(1, 101):
        await agent.reply(context, message(number, f"message {number}"))
    pair = 2 + 1 + 2 * OVERHEAD
    fixed = words(SYSTEM) + OVERHEAD + 2 + OVERHEAD
    expected = (200 - 20 - fixed) // pair
    assert expected > 10
    last = shown(model.requests[-1])
    assert last[0] == SYSTEM
    assert last[1:] == [text for number in range(100 - expected, 100) for text in (f"message {number}", "ok")] + [
        "message 100"
    ]


async def test_filler_is_remembered_and_not_asked_about() -> None:
    model = ScriptedModel(default="ok")
    agent = ChatAgent("a", caller(model), words, size=ContextSize(None, 0))
    context = MemoryContext()
    assert (await agent.reply(context, message(1, "filler", expected='["x"]'))).text == '["x"]'
    assert not model.requests
    await agent.reply(context, message(2, "and?"))
    assert shown(model.requests[0])[1:] == ["filler", '["x"]', "and?"]
    await agent.reset(context)
    await agent.reply(context, message(3, "again?"))
    assert shown(model.requests[1])[1:] == ["again?"]
    await agent.close()
    assert model.closed


async def test_a_model_that_finds_it_too_long_is_sent_less() -> None:
    def answer(request: ChatRequest) -> Any:
        return ItemError(Cause.CONTEXT_OVERFLOW, "too long") if len(request.messages) > 12 else "ok"

    model = ScriptedModel(answer)
    agent = ChatAgent("a", caller(model), words, size=ContextSize(None, 0))
    for number in range(1, 16):
        assert (await agent.reply(MemoryContext(), message(number, f"m{number}"))).text == "ok"
    last = shown(model.requests[-1])
    assert (last[0], last[-1]) == (SYSTEM, "m15")


async def test_timestamps_tell_ages_once() -> None:
    model = ScriptedModel(default="ok")
    agent = ChatAgent("a", caller(model), words, size=ContextSize(None, 0), timestamps=True)
    context = MemoryContext()
    await agent.reply(context, message(1, "one", now=1000.0))
    await agent.reply(context, message(2, "two", now=1000.0 + 3600 * 2.5))
    assert shown(model.requests[1])[1:] == ["[2.5 hours ago] one", "ok", "[just now] two"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (1, "1 second ago"),
        (59.2, "59 seconds ago"),
        (60, "1 minute ago"),
        (3600, "1.0 hour ago"),
        (5400, "1.5 hours ago"),
        (86400 * 3, "3.0 days ago"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert age_in_words(seconds) == text


# --- Retrieval


def retrieving(model: ScriptedModel, index: Any, limit: int = 160) -> RetrievalAgent:
    return RetrievalAgent("r", caller(model), index, words, size=ContextSize(limit, 20))


async def fed(agent: Any, context: MemoryContext, count: int, first: str) -> None:
    await agent.reply(context, message(1, first))
    for number in range(2, count):
        await agent.reply(context, message(number, f"something else {number}"))


async def test_retrieval_finds_what_has_left_the_window() -> None:
    model = ScriptedModel(default="ok")
    agent, context = retrieving(model, TextIndex()), MemoryContext()
    await fed(agent, context, 40, "My cat's name is Kunigunde.")
    await agent.reply(context, message(40, 'What is my cat called? "OR) AND NEAR(*'))
    head = shown(model.requests[-1])[0]
    assert "User: My cat's name is Kunigunde.\nYou: ok" in head
    assert all("Kunigunde" not in text for text in shown(model.requests[-1])[1:])
    assert sum(words(text) + OVERHEAD for text in shown(model.requests[-1])) <= 160 - 20 + OVERHEAD * 10
    await agent.reset(context)
    await agent.reply(context, message(41, "What is my cat called?"))
    assert all("Kunigunde" not in text for text in shown(model.requests[-1]))
    await agent.close()


async def test_embeddings_are_asked_of_the_endpoint_and_never_paid_twice() -> None:
    async with EmbeddingServer().serving() as server:
        model = ScriptedModel(default="ok")
        context = MemoryContext()
        index = EmbeddingIndex(EmbeddingCaller(OpenAIEmbeddings(server.url, "small", "sk-secret")))
        agent = retrieving(model, index)
        await fed(agent, context, 25, "The cat is asleep.")
        answer = await agent.reply(context, message(25, "Where is the cat?"))
        assert "User: The cat is asleep." in shown(model.requests[-1])[0]
        assert answer.usage.input_tokens >= 14
        assert set(server.keys) == {"Bearer sk-secret"}
        assert {each["model"] for each in server.asked} == {"small"}
        await agent.close()

        asked, calls = len(server.asked), len(model.requests)
        again = retrieving(model, EmbeddingIndex(EmbeddingCaller(OpenAIEmbeddings(server.url, "small", "sk-secret"))))
        later = MemoryContext(context.journal)
        await fed(again, later, 25, "The cat is asleep.")
        repeated = await again.reply(later, message(25, "Where is the cat?"))
        assert (len(server.asked), len(model.requests), repeated) == (asked, calls, answer)
        assert "sk-secret" not in str(context.journal)
        await again.close()


# --- Notes


def tool_call(name: str, arguments: str, number: int = 1) -> Any:
    function = {"name": name, "arguments": arguments}
    call = {"id": f"c{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def test_notes_survive_the_window() -> None:
    model = ScriptedModel([tool_call("add_note", '{"text": "cat: Kunigunde"}'), "Noted."], default="ok")
    agent, context = ScratchpadAgent("s", caller(model), words, size=ContextSize(300, 20)), MemoryContext()
    assert (await agent.reply(context, message(1, "My cat is called Kunigunde."))).text == "Noted."
    for number in range(2, 40):
        await agent.reply(context, message(number, f"something else {number}"))
    last = shown(model.requests[-1])
    assert "cat: Kunigunde" in last[0]
    assert "My cat is called Kunigunde." not in last
    again = ScratchpadAgent("s", caller(ScriptedModel()), words, size=ContextSize(300, 20))
    replayed = MemoryContext(context.journal)
    await again.reply(replayed, message(1, "My cat is called Kunigunde."))
    assert again.notes == agent.notes
    await agent.reset(context)
    assert agent.notes == ""


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("add_note", "not json", "error: the arguments"),
        ("add_note", '{"text": 3}', "error: text"),
        ("forget", '{"text": "x"}', "error: there is no tool forget"),
        ("add_note", json.dumps({"text": "word " * 500}), "error: that would make 500 tokens"),
        ("replace_notes", '{"text": "new"}', "noted (1 of"),
    ],
)
async def test_what_a_model_gets_for_its_tool_calls(name: str, arguments: str, answer: str) -> None:
    model = ScriptedModel([tool_call(name, arguments), "done"])
    agent = ScratchpadAgent("s", caller(model), words, size=ContextSize(300, 20))
    assert (await agent.reply(MemoryContext(), message(1, "Note this."))).text == "done"
    assert shown(model.requests[1])[-1].startswith(answer)


async def test_a_model_that_only_takes_notes_is_made_to_answer() -> None:
    def answer(request: ChatRequest) -> Any:
        return tool_call("add_note", '{"text": "x"}', len(request.messages)) if request.tools else "at last"

    agent = ScratchpadAgent("s", caller(ScriptedModel(answer)), words, size=ContextSize(300, 20))
    found = await agent.reply(MemoryContext(), message(1, "Hello."))
    assert (found.text, found.usage.calls) == ("at last", 5)


# --- What it would cost


async def test_the_estimate_is_what_the_trimmed_context_costs() -> None:
    limit, reserve = 400, 50
    estimator = CostEstimator("c", words, input_price=10.0, output_price=30.0, size=ContextSize(limit, reserve))
    context = MemoryContext()
    history: list[int] = []
    tokens_in, calls, dollars = 0, 0, 0.0
    for number in range(1, 60):
        text = "word " * (number % 7 + 1)
        filler = number % 4 == 0
        answer = await estimator.reply(context, message(number, text, expected="an answer" if filler else None))
        if not filler:
            asked = words(SYSTEM) + OVERHEAD + words(text) + OVERHEAD
            room = limit - reserve - asked
            for size in reversed(history):
                if size > room:
                    break
                room -= size
                asked += size
            tokens_in, calls = tokens_in + asked, calls + 1
            dollars += answer.usage.cost
        history.append(words(text) + (2 if filler else REPLY_TOKENS) + 2 * OVERHEAD)
    assert (estimator.spent.calls, estimator.spent.input_tokens) == (calls, tokens_in)
    assert estimator.spent.output_tokens == calls * REPLY_TOKENS
    assert dollars == pytest.approx(tokens_in * 0.01 + calls * REPLY_TOKENS * 0.03)
    assert not context.journal  # nothing was asked


# --- Names


@pytest.mark.parametrize(
    ("text", "limit", "name"),
    [
        ("gpt-4o", 128000, "LLMChatSession - gpt-4o - 128000"),
        ("together_ai/meta/Llama", None, "LLMChatSession - together_ai-meta-Llama - 0"),
        ("ts-gpt-4-turbo", 16384, "TimestampLLMChatSession - gpt-4-turbo - 16384"),
        ("cost(0.01, 0.03)", 8000, "CostEstimationChatSession - 8000 - 1.00e-02 - 3.00e-02"),
        ("human", None, "HumanChatSession"),
        ("python:my.module:MyAgent", None, "MyAgent"),
        ("retrieval(gpt-4o)", 4000, "RetrievalAgent - gpt-4o - 4000"),
    ],
)
def test_names_of_agents(text: str, limit: int | None, name: str) -> None:
    assert choose_agent(text).name(limit) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "command:",
        "python:module",
        "python:a:..",
        "python:a:b/c",
        "http://",
        "https://name:password@host/",
        "huggingface/x",
        "gemini",
        "ltm_agent_1(gpt-4)",
        "cost(-1,2)",
        "cost(1e9,2)",
    ],
)
def test_what_can_be_no_agent_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^--agent_name: [^\n]+$"):
        choose_agent(text)


@given(st.text(min_size=1, max_size=300))
def test_every_name_makes_a_folder(text: str) -> None:
    name = folder_name(text)
    assert len(name.encode("utf-8", "surrogatepass")) <= 80
    assert not set(name) & set('/\\*?[]<>|"\0\n')


def test_long_names_stay_apart() -> None:
    one, other = (choose_agent(f"command:python {'x' * 300} {end}").name(None) for end in "ab")
    assert one != other
    assert len(one.encode()) < 130
