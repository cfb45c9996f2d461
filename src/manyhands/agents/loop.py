"""The agent loop: ask the model, run the tools it calls, until it answers.

How a conversation ends is always named (``StopReason``), and a failed model call is never an ending: it fails the item,
which then goes on from its last recorded step. Against the original:

- An answer on the last allowed turn is an answer. A tool's result can stand for it (``ToolResult.ends``): then the turn's
  results are the conversation's last messages.
- Calls of unknown tools and unreadable arguments are answered to the model; other calls of the same turn are run as usual. The third
  turn in a row without a call that could be run ends the conversation and is left out of it.
- An empty answer, endless reasoning, or a tool call cut off at the token limit is requested again, with nothing added to the
  conversation; a text cut off there is continued after a user turn that is marked as this program's own.
- Tool results are never edited, so nothing about turns running out gets into them.
- The history is never shortened: what is kept is what happened. If it outgrows the model's context window, the conversation ends
  there (before any answer, the item fails).
- A time limit cuts off the model call or the tools in flight; their results say so, and no further call is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from manyhands.agents.reading import Progress, read_answer, read_summary
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask
from manyhands.agents.time_limit import ELAPSED, OVER, TimeLimit
from manyhands.agents.tool_running import ToolRunner
from manyhands.agents.toolbox import NO_TOOLS, Toolbox
from manyhands.agents.trajectory import MODEL, Transcript, refusals
from manyhands.agents.worlds.world import World
from manyhands.core.digests import derive_seed, digest
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.core.outcomes import StopReason
from manyhands.engine.contract import Context, Effect
from manyhands.models.protocol import ChatModel, ChatRequest, ChatSettings, Completion
from manyhands.tools.protocol import Tool, ToolEnvironment

CONTINUE = "Your answer was cut off. Go on exactly where it stopped, and repeat nothing."
SUMMARY_REQUEST = (
    "No more turns are left for tool calls. Without calling tools, say what you found and did, and what is still open."
)
FollowUp = Callable[[int], str | None]
"""What is said to an agent that answered in plain text, or None to let it end. Given how often that was said before. It must depend on
nothing else than that and what is recorded, as it is called again when the conversation is replayed."""


async def run_agent(
    context: Context,
    task: AgentTask,
    *,
    model: ChatModel,
    tools: Sequence[Tool] | Toolbox,
    environment: ToolEnvironment,
    settings: AgentSettings,
    world: World | None = None,
    follow_up: FollowUp | None = None,
) -> AgentResult:
    """The built-in agent: ask the model, run the tools that it calls, until it answers.

    ``follow_up``: may send an agent that ends with an answer on, as long as turns are left; its words become a user turn
    that is marked as this program's own.
    ``world``: whose sandbox the tools change; its ``sandbox`` is the one that ``environment`` should have. It is not closed
    here. Passing the same tool objects (or the same ``Toolbox``) for many tasks saves work.

    Raises ItemError: whatever the model client raises, a context overflow before any answer, SANDBOX_LOST, and
    TOOL_ERROR naming a tool that broke.
    """
    toolbox = Toolbox.of(tools)
    limit = None if settings.time_limit is None else TimeLimit(context.clock, settings.time_limit)
    runner = ToolRunner(context, toolbox, environment, world, settings, limit)
    return await _Conversation(context, task, model, toolbox, runner, settings, follow_up, limit).run()


def settings_digest(settings: ChatSettings) -> dict[str, Any]:
    """What of the settings makes a call another call: everything that is sent."""
    return {name: value for name in _SENT if (value := getattr(settings, name)) is not None}


_NOT_SENT = ("call_timeout", "implied_think", "send_reasoning")
_SENT = tuple(field.name for field in fields(ChatSettings) if field.name not in _NOT_SENT)


class _Conversation:
    """One conversation while it runs."""

    __slots__ = (
        "_context",
        "_follow_up",
        "_followed_up",
        "_head",
        "_limit",
        "_model",
        "_progress",
        "_runner",
        "_settings",
        "_task",
        "_toolbox",
        "_transcript",
    )

    def __init__(
        self,
        context: Context,
        task: AgentTask,
        model: ChatModel,
        toolbox: Toolbox,
        runner: ToolRunner,
        settings: AgentSettings,
        follow_up: FollowUp | None,
        limit: TimeLimit | None,
    ) -> None:
        self._context = context
        self._limit = limit
        self._follow_up = follow_up
        self._followed_up = 0
        self._task = task
        self._model = model
        self._toolbox = toolbox
        self._runner = runner
        self._settings = settings
        self._head = task.head(with_tools=bool(toolbox.names))
        self._transcript = Transcript()
        self._progress = Progress(settings.max_turns)

    async def run(self) -> AgentResult:
        added = self._task.opening()
        stop: StopReason | None = None
        while stop is None:
            stop, added = await self._turn(added)
        transcript = self._transcript
        return AgentResult(
            transcript.messages,
            stop,
            self._progress.api_calls,
            transcript.usage,
            transcript.tool_uses,
            transcript.unknown_tools,
            transcript.tool_usage,
        )

    async def _turn(self, added: list[Message]) -> tuple[StopReason | None, list[Message]]:
        """One model call and what follows from it: why to stop, or else what to add to the next request."""
        turn = self._context.address
        output = await self._ask(added, self._toolbox)
        if "overflow" in output:
            return StopReason.CONTEXT_OVERFLOW, []
        if OVER in output:
            return StopReason.TIME_LIMIT, []
        self._progress.take(output)
        calls = self._transcript.answer(output)
        following = output.get("next")
        if following == "stop":
            return StopReason(output["stop"]), []
        if following == "resend":
            return None, []
        if following == "continue":
            return None, [_synthetic(CONTINUE, "continue")]
        if not calls:
            return self._answered()
        results = await self._runner.run(turn, calls, refusals(output))
        for index, call in enumerate(calls):
            self._transcript.result(call, results[index])
        if any(result.ends and not result.failed for result in results.values()):
            return StopReason.ANSWERED, []
        if self._turns_left:
            return None, []
        if self._settings.summary:
            output = await self._ask([_synthetic(SUMMARY_REQUEST, "summary_request")], NO_TOOLS, summary=True)
            if OVER not in output:
                self._transcript.answer(output)
        return StopReason.MAX_TURNS, []

    def _answered(self) -> tuple[StopReason | None, list[Message]]:
        """The same after an answer in plain text."""
        said = self._follow_up(self._followed_up) if self._follow_up is not None and self._turns_left else None
        if said is None:
            return StopReason.ANSWERED, []
        self._followed_up += 1
        return None, [_synthetic(said, "follow_up")]

    @property
    def _turns_left(self) -> bool:
        return self._progress.api_calls < self._settings.max_turns

    async def _ask(self, added: list[Message], toolbox: Toolbox, *, summary: bool = False) -> dict[str, Any]:
        transcript = self._transcript
        transcript.ask(added)
        settings = self._chat_settings()
        request: dict[str, Any] = {
            "settings": settings_digest(settings),
            "tools": toolbox.digest,
            "added": added,
            "count": len(self._head) + len(transcript.messages),
        }
        if self._progress.api_calls == 0:
            request["head"] = digest("head", self._head).hex()

        ran = False

        async def effect() -> Effect:
            nonlocal ran
            ran = True
            return await (answered() if self._limit is None else self._within(self._limit, answered))

        async def answered() -> Effect:
            if not summary:
                self._runner.expect()
            messages = [*self._head, *transcript.messages]
            try:
                completion = await self._model.complete(
                    ChatRequest(settings, messages, toolbox.definitions), self._context.limits, self._context.clock
                )
            except ItemError as error:
                if error.cause is Cause.CONTEXT_OVERFLOW and transcript.answered:
                    return Effect({"overflow": error.message})
                raise
            return Effect(self._read(completion, summary), completion.usage)

        output: dict[str, Any] = await self._context.step(MODEL, request, effect)
        if self._limit is not None and not ran:
            self._limit.replayed(output)
        return output

    @staticmethod
    async def _within(limit: TimeLimit, answered: Callable[[], Awaitable[Effect]]) -> Effect:
        """A model call within the time limit; its effect says if there was no time left for it."""
        found: Effect | None = None
        with limit.working():
            if limit.left > 0:
                async with limit.cutting_off():
                    found = await answered()
            elapsed = limit.elapsed
        if found is None:
            return Effect({OVER: elapsed, ELAPSED: elapsed})
        return Effect({**found.output, ELAPSED: elapsed}, found.usage)

    def _read(self, completion: Completion, summary: bool) -> dict[str, Any]:
        if summary:
            return read_summary(completion)
        return read_answer(completion, self._progress, self._toolbox, self._transcript.used_ids)

    def _chat_settings(self) -> ChatSettings:
        """The settings of the next call. A repeated request gets another seed, or it would get the same answer. After the first tool call
        none is forced any more, or the conversation would have no end."""
        settings, resends = self._settings.chat, self._progress.resends
        if settings.tool_choice not in (None, "auto", "none") and self._transcript.tool_uses:
            settings = replace(settings, tool_choice=None)
        if resends and settings.seed is not None:
            return replace(settings, seed=derive_seed(settings.seed, "resend", resends))
        return settings


def _synthetic(text: str, why: str) -> Message:
    return {"role": "user", "content": text, "_synthetic": why}
