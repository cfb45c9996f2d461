"""Tools that ask models: steps of their own, replayed one by one after a crash, and billed to the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.core.usage import Usage
from manyhands.engine.contract import Limits
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.factory import is_simulated
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.pricing import Price, PriceTable
from manyhands.models.protocol import ChatRequest, Completion
from manyhands.testing.agent_doubles import ScriptedModel, assistant, hold, tool_call
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal, When
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedServer, chat_response
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.mixture import Mixture, mixture_of_agents
from manyhands.tools.services.registry import ModelChoice, ToolServices, choose_services, lacking
from manyhands.workloads.trajectories.spec import BatchSpec

QUESTION = "How many primes are below 100?"


class CountingModel:
    """Answers with its name, and counts its calls."""

    simulated = False

    def __init__(self, name: str, *, fails: ItemError | None = None) -> None:
        self.name, self.fails, self.requests = name, fails, list[ChatRequest]()

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        self.requests.append(request)
        if self.fails is not None:
            raise self.fails
        message: Message = {"role": "assistant", "content": f"{self.name} says 25"}
        return Completion(message, "stop", Usage(calls=1, input_tokens=10, output_tokens=5, cost=0.01))

    async def close(self) -> None:
        return


def mixture(models: Sequence[CountingModel]) -> ToolServices:
    choices = [ModelChoice(model.name, "http://localhost/v1") for model in models]
    return ToolServices(ArtifactStore(Path("unused")), [Mixture(choices, models)])


def asking() -> ScriptedModel:
    def answer(request: ChatRequest) -> Message:
        if request.messages[-1]["role"] == "tool":
            return assistant("25")
        return assistant(None, tool_call("mixture_of_agents", {"user_prompt": QUESTION}, "c1"))

    return ScriptedModel(answer)


async def test_the_answers_of_all_are_joined_and_billed() -> None:
    models = [CountingModel(name) for name in ("a", "b", "c", "joins")]
    result = await hold(asking(), [mixture_of_agents], services=mixture(models))
    content = result.messages[2]["content"]
    assert '"response": "joins says 25"' in content
    assert '"reference_models": ["a", "b", "c"]' in content
    joined = models[3].requests[0].messages[0]["content"]
    assert all(f"{number}. {name} says 25" in joined for number, name in enumerate("abc", 1))
    assert '"usage": {"calls": 4, "input_tokens": 40, "output_tokens": 20, "cost": 0.04}' in content
    assert result.tool_usage == Usage(calls=4, input_tokens=40, output_tokens=20, cost=0.04)
    assert result.usage.cost == 0


async def test_one_that_fails_is_named_and_none_is_an_error() -> None:
    refusing = ItemError(Cause.MODEL_REFUSED, "HTTP 404: no such model")
    models = [CountingModel("a"), CountingModel("b", fails=refusing), CountingModel("joins")]
    result = await hold(asking(), [mixture_of_agents], services=mixture(models))
    assert '"models_failed": {"b": "b gave no answer (model_refused): HTTP 404' in result.messages[2]["content"]
    models = [CountingModel("a", fails=refusing), CountingModel("joins")]
    result = await hold(asking(), [mixture_of_agents], services=mixture(models))
    assert "none of the models answered" in result.messages[2]["content"]
    assert result.tool_uses[0].failed
    assert models[1].requests == []


async def test_what_the_budget_forbids_ends_the_attempt() -> None:
    over = ItemError(Cause.OVER_BUDGET, "nothing is left")
    with pytest.raises(ItemError, match="nothing is left"):
        await hold(
            asking(), [mixture_of_agents], services=mixture([CountingModel("a", fails=over), CountingModel("b")])
        )


async def test_a_budget_that_is_too_small_for_all_of_them_stops_the_first() -> None:
    prices = PriceTable({name: Price(1, 10) for name in ("a", "b", "joins")})
    async with ScriptedServer([chat_response("25")]) as server:
        models = [OpenAIChatModel(server.base_url, prices=prices, max_tokens=1000) for _ in range(3)]
        choices = [ModelChoice(name, server.base_url) for name in ("a", "b", "joins")]
        services = ToolServices(ArtifactStore(Path("unused")), [Mixture(choices, models)])
        # Two answers of 1,000 tokens fit, a third one does not.
        limits = SharedLimits(budget=Budget(0.025))
        with pytest.raises(ItemError, match="the next call may cost up to"):
            await hold(asking(), [mixture_of_agents], services=services, context=MemoryContext(limits=limits))
        assert server.requests == []
        limits = SharedLimits(budget=Budget(0.05))
        await hold(asking(), [mixture_of_agents], services=services, context=MemoryContext(limits=limits))
        assert len(server.requests) == 3
        for model in models:
            await model.close()


async def test_two_at_once_where_the_budget_has_room_for_one() -> None:
    names = ("a", "b", "joins")
    prices = PriceTable({name: Price(1, 10) for name in names})

    async def answer(request: RecordedRequest) -> Reply:
        await asyncio.sleep(0.01)
        return chat_response("25")

    async with ScriptedServer(answer) as server:
        models = [OpenAIChatModel(server.base_url, prices=prices, max_tokens=1000) for _ in names]
        services = ToolServices(
            ArtifactStore(Path("unused")), [Mixture([ModelChoice(name, server.base_url) for name in names], models)]
        )
        # Each of them may cost up to about 0.04. Unless that is held, all references begin, and no aggregator has room.
        limits = SharedLimits(budget=Budget(0.045))
        held = [
            hold(asking(), [mixture_of_agents], services=services, context=MemoryContext(limits=limits)) for _ in "12"
        ]
        await asyncio.gather(*held)
        asked = [request.body["model"] for request in server.requests]
        assert asked[2] == asked[5] == "joins"
        assert limits.budget.exposed == (limits.budget.spent.cost, limits.budget.spent.total_tokens)
        for model in models:
            await model.close()


@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
async def test_a_crash_repeats_at_most_the_call_in_flight(when: When) -> None:
    undisturbed = [CountingModel(name) for name in ("a", "b", "joins")]
    expected = await hold(asking(), [mixture_of_agents], services=mixture(undisturbed))
    for step in range(1, 8):
        journal: MemoryJournal = {}
        models = [CountingModel(name) for name in ("a", "b", "joins")]
        context = MemoryContext(journal, crash=CrashPoint(step, when))
        try:
            await hold(asking(), [mixture_of_agents], context=context, services=mixture(models))
        except* Crash:
            pass
        asked = sum(step.kind == "ask" for step in journal.values())
        ended = any(step.kind == "tool" for step in journal.values())
        fresh = [CountingModel(name) for name in ("a", "b", "joins")]
        again = MemoryContext(journal)
        assert await hold(asking(), [mixture_of_agents], context=again, services=mixture(fresh)) == expected
        assert again.state.unused() == []
        assert sum(len(model.requests) for model in fresh) == (0 if ended else 3 - asked)


def options(**given: Any) -> BatchSpec:
    return BatchSpec.make({"dataset_file": "d.jsonl", "run_name": "r", "batch_size": 2, **given})


def test_models_are_chosen_from_the_settings() -> None:
    assert "mixture" not in choose_services(options(), {})
    assert "mixture_of_agents" in lacking(())
    chosen = choose_services(options(moa_models="a,b", base_url="http://localhost:1/v1"), {})
    names = [model["model"] for model in chosen["mixture"]["models"]]
    assert names == ["a", "b", "a"]
    assert "mixture_of_agents" not in lacking(chosen)
    given = options(model="m", moa_models="simulated,b", vision_model="simulated", base_url="http://localhost:1/v1")
    mixed = choose_services(given, {})
    in_process = [is_simulated(each["model"], each["base_url"]) for each in mixed["mixture"]["models"]]
    assert in_process == [True, False, True], "the run's endpoint is not asked for a simulated model"
    assert is_simulated(mixed["vision"]["model"]["model"], mixed["vision"]["model"]["base_url"])
    with pytest.raises(UserError, match="twice"):
        choose_services(options(moa_models="a,a"), {})
    with pytest.raises(UserError, match="--moa_models, which are not given"):
        choose_services(options(moa_aggregator="a"), {})
