"""A mixture of agents: several models answer one question, and a further one joins their answers.

After Wang et al., "Mixture-of-Agents Enhances Large Language Model Capabilities" (2024): the answers of the references are given to the
aggregator, which is asked for one answer that is better than each of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from pydantic import Field

from manyhands.core.errors import ToolError, UserError
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message, text_of
from manyhands.core.usage import Reserve
from manyhands.models.protocol import ChatModel, ChatRequest, Completion
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import tool
from manyhands.tools.services.registry import ModelChoice, ServiceOpening, every
from manyhands.tools.services.steps import ToolSteps, together, within

REFERENCE_TEMPERATURE, AGGREGATOR_TEMPERATURE = 0.6, 0.4
"""As the founding system calls them."""
_BYTES_PER_TOKEN = 4
_AGGREGATE = (
    "Several models answered the user's question; their answers follow. Some may be wrong or biased. Judge them, and write one answer "
    "of your own that is more accurate and complete than each of them, without saying that there were several."
)


class Mixture:
    """The models, ready to be asked: the references, and last the aggregator."""

    def __init__(self, choices: Sequence[ModelChoice], models: Sequence[ChatModel]) -> None:
        *self.references, self.aggregator = zip(choices, models, strict=True)


class MixtureService:
    """What ``mixture_of_agents`` needs."""

    def chosen(self, options: Any, environ: Mapping[str, str]) -> Json:
        names = options.moa_models
        if not names:
            if options.moa_aggregator:
                raise UserError("--moa_aggregator joins the answers of --moa_models, which are not given")
            return None
        if len(set(names)) < len(names):
            raise UserError("--moa_models names a model twice")
        all_names = [*names, options.moa_aggregator or names[0]]
        return {"models": [ModelChoice.of(name, None, options, environ).to_json() for name in all_names]}

    def secrets(self, record: Json, options: Any, environ: Mapping[str, str]) -> Mapping[str, str]:
        return every(map(ModelChoice.from_json, record["models"]), options, environ)

    @asynccontextmanager
    async def opened(self, record: Json, opening: ServiceOpening) -> AsyncIterator[Mixture]:
        choices = [ModelChoice.from_json(each) for each in record["models"]]
        async with AsyncExitStack() as stack:
            models = [opening.model(choice) for choice in choices]
            for model in models:
                stack.push_async_callback(model.close)
            yield Mixture(choices, models)


SERVICE = MixtureService()


@tool(changes_world=False)
async def mixture_of_agents(
    environment: ToolEnvironment,
    user_prompt: Annotated[str, "The whole problem, with everything needed to solve it.", Field(min_length=1)],
) -> dict[str, Any]:
    """Have several models work on one hard problem, and get one answer that joins theirs.

    It costs several calls, so use it only for problems that are too hard to solve alone: difficult mathematics, algorithms, or reasoning
    in many steps.
    """
    mixture, steps = environment.service(Mixture), environment.own_steps
    question: list[Message] = [{"role": "user", "content": user_prompt}]
    branches = [steps.branch(f"ref-{number}") for number, _ in enumerate(mixture.references)]
    async with steps.holding(_worst_cases(mixture, branches, question)):
        return await _answered(mixture, steps, branches, question, environment)


async def _answered(
    mixture: Mixture,
    steps: ToolSteps,
    branches: Sequence[ToolSteps],
    question: list[Message],
    environment: ToolEnvironment,
) -> dict[str, Any]:
    found = await together(
        [
            _asked(branch, model, choice, question, environment)
            for branch, (choice, model) in zip(branches, mixture.references, strict=True)
        ]
    )
    answers = [text_of(each.message.get("content")) for each in found if isinstance(each, Completion)]
    failed = {
        choice.model: str(each)
        for (choice, _), each in zip(mixture.references, found, strict=True)
        if isinstance(each, ToolError)
    }
    if not answers:
        raise ToolError("none of the models answered: " + "; ".join(failed.values()))
    choice, model = mixture.aggregator
    settings = within(choice.chat(temperature=AGGREGATOR_TEMPERATURE), environment.timeout)
    final = await steps.ask(model, settings, _to_join(answers, question))
    references = [each.model for each, _ in mixture.references if each.model not in failed]
    used = steps.usage
    return {
        "success": True,
        "response": text_of(final.message.get("content")),
        "models_used": {"reference_models": references, "aggregator_model": choice.model},
        **({"models_failed": failed} if failed else {}),
        "usage": {
            "calls": used.calls,
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "cost": used.cost,
        },
    }


async def _asked(
    steps: ToolSteps, model: ChatModel, choice: ModelChoice, messages: list[Message], environment: ToolEnvironment
) -> Completion | ToolError:
    try:
        settings = within(choice.chat(temperature=REFERENCE_TEMPERATURE), environment.timeout)
        return await steps.ask(model, settings, messages)
    except ToolError as error:
        return error


def _worst_cases(mixture: Mixture, branches: Sequence[ToolSteps], question: list[Message]) -> list[Reserve]:
    """What the calls that are not recorded yet may use at most, where their models can say it. The aggregator's input has the references'
    answers in it, whatever those are."""
    if all(
        branch.replaying for branch in branches
    ):  # the aggregator, if it is not recorded either, reserves for itself
        return []
    references = [_worst_case(choice, model, question) for choice, model in mixture.references]
    answers = [_BYTES_PER_TOKEN * " " * each.output_tokens for each in references]
    ahead = [each for each, branch in zip(references, branches, strict=True) if not branch.replaying]
    return [*ahead, _worst_case(*mixture.aggregator, _to_join(answers, question))]


def _worst_case(choice: ModelChoice, model: ChatModel, messages: list[Message]) -> Reserve:
    bound = getattr(model, "worst_case", None)  # models of others, and simulated ones, may not know
    return Reserve() if bound is None else bound(ChatRequest(choice.chat(), messages))


def _to_join(answers: Sequence[str], question: list[Message]) -> list[Message]:
    numbered = (f"{number}. {answer}" for number, answer in enumerate(answers, 1))
    return [{"role": "system", "content": "\n\n".join((_AGGREGATE, *numbered))}, *question]
