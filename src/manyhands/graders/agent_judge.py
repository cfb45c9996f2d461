"""``agent_judge``: a judge that looks for itself.

It works in a loop with tools that read the workspace's files, and ends with a score, or with ``rubrics`` point by point. With ``target``
a named model is asked, which may judge without a workspace too, and then has no tools. A last message that can't be read is asked for
again. All model and tool calls are steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from manyhands.agents.loop import run_agent
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask
from manyhands.core.errors import GraderError, ItemError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.core.places import Place
from manyhands.core.settings import OptionalText, optional_number, whole
from manyhands.engine.context import Context
from manyhands.graders.entry import Entry, key, read
from manyhands.graders.judge import SCORE, default_prompt
from manyhands.graders.judge_prompt import SCORE_REPLY, Prompt, prompt_of, sections
from manyhands.graders.judging import BROKEN, MOST_CALLS, SYSTEM, Reply, Shape, ask, broken, read_reply
from manyhands.graders.protocol import Candidate, Grader, Grading, Judge, Score
from manyhands.graders.registry import Setup
from manyhands.graders.rubric_items import RubricItem, RubricList, RubricValue, criteria_in, rubrics_or_value
from manyhands.graders.rubrics import Points
from manyhands.graders.verdicts import score_of
from manyhands.graders.workspace_tools import TOOLS, WORKSPACE
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.protocol import Tool, ToolEnvironment

LOOK, LOOK_PLAIN, AGAIN = "look", "look-plain", "again"
"""Scopes, below the grader's own, of its conversations: with tools, with tools and without a schema for the reply, and about a reply that
could not be read. ``agents.trajectory.fold`` wants to be told which."""
_LOOK = (
    "The files that the answer is about are in a workspace. Look at them with the tools on offer before you judge, and believe the "
    "files rather than what the answer says about them."
)


class AgentJudgeEntry(Entry):
    """Settings of ``agent_judge``."""

    spellings: ClassVar[Mapping[str, str]] = {
        "judge_target": "target",
        "grader_target": "target",
        "criteria": "rubrics",
        "max_turns": "max_steps",
    }
    entries: ClassVar[Mapping[str, type[Entry]]] = {"rubrics": RubricItem}
    prompt: Any = key(None, "What the judge is told: a text, the path of a file, or a mapping with script.")
    rubrics: RubricList | None = key(None, "Points to be judged one by one.")
    value: RubricValue = key(
        None, "Points to be judged one by one; or a text or an object that counts instead of the test's criteria."
    )
    max_steps: Annotated[int, whole(least=1, most=50)] = key(10, "Model calls at most, 1 to 50.")
    temperature: Annotated[float | None, optional_number(least=0, most=2)] = key(0.0, "0 to 2.")
    target: OptionalText = key(None, "The model that judges; the test's own judge by default.")


ENTRY = AgentJudgeEntry


def parse(entry: Mapping[str, Any], place: Place, setup: Setup) -> Grader:
    """Raises UserError for a prompt file that can't be read, and for points as ``rubrics`` does."""
    settings = read(AgentJudgeEntry, entry, place)
    rubrics, at = rubrics_or_value(settings.rubrics, settings.value, place, setup.notices)
    points = None if rubrics is None else Points.of(rubrics, at)
    return AgentJudge(
        entry["name"],
        entry["type"],
        prompt_of(settings.prompt, place.at("prompt"), setup.folder),
        points,
        settings.max_steps,
        settings.temperature,
        settings.target,
        setup.folder,
        criteria_in(settings.value),
    )


@dataclass(frozen=True, slots=True)
class AgentJudge:
    """``steps``: model calls at most; ``target``: the judge's name, None for the test's own, which needs a workspace to look at;
    ``criteria``: instead of the test's."""

    name: str
    type: str
    prompt: Prompt
    points: Points | None
    steps: int
    temperature: float | None
    target: str | None
    folder: Path
    criteria: str | None = None

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        if self.criteria is not None:
            candidate = replace(candidate, criteria=self.criteria)
        workspace = candidate.workspace
        if workspace is None and self.target is None:
            raise GraderError("there is no workspace to look at; give the target one, or name a target here")
        if workspace is not None and (workspace.is_symlink() or not workspace.is_dir()):
            raise GraderError(f"the workspace {workspace} is gone")
        judge = await grading.judges.judge(self.target)
        judge = replace(judge, settings=replace(judge.settings, temperature=self.temperature))
        text = await self._prompt(candidate, grading)
        reply = await self._asked(grading.context, judge, text, workspace)
        if self.points is not None:
            return self.points.score(self, reply, grading)
        return broken(self, reply) if reply.value is None else score_of(self, reply.value, grading, usage=reply.usage)

    async def _prompt(self, candidate: Candidate, grading: Grading) -> str:
        own = await self.prompt.rendered(self, candidate, grading, self.folder)
        look = f"{_LOOK}\n\n" if candidate.workspace is not None else ""
        if self.points is None:
            return f"{look}{own or default_prompt(candidate)}\n\n{SCORE_REPLY}"
        listed = f"[[ ## points ## ]]\n{self.points.listed()}"
        body = f"{own or sections(candidate)}\n\n{listed}"
        return f"{look}{self.points.task}\n\n{body}\n\n{self.points.reply}"

    async def _asked(self, context: Context, judge: Judge, text: str, workspace: Path | None) -> Reply:
        shape = SCORE if self.points is None else self.points.shape()
        last = None if self.points is None else self.points.partial()
        if workspace is None:
            messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
            return await ask(context, judge, messages, shape, last=last)
        result = await self._looked(context, judge, text, workspace, shape)
        answer = next((each for each in reversed(result.messages) if each.get("role") == "assistant"), None)
        value, problem = read_reply(str((answer or {}).get("content") or ""), shape)
        if value is not None:
            return Reply(value, result.usage)
        again: Message = {"role": "user", "content": f"That can't be used: {problem[:500]}. {self._reply_wanted}"}
        messages = [{"role": "system", "content": SYSTEM}, *_plain(result.messages), again]
        reply = await ask(context.scope(AGAIN), judge, messages, shape, last=last, calls=MOST_CALLS - 1)
        return replace(reply, usage=result.usage + reply.usage)

    @property
    def _reply_wanted(self) -> str:
        return SCORE_REPLY if self.points is None else self.points.reply

    async def _looked(self, context: Context, judge: Judge, text: str, workspace: Path, shape: Shape) -> AgentResult:
        """The conversation with tools. An endpoint that refuses the reply's schema beside tools is asked without it; what was recorded of
        that conversation says that it was."""
        look, plain = context.scope(LOOK), context.scope(LOOK_PLAIN)
        try:
            if not plain.replaying:
                try:
                    return await self._loop(look, judge, text, workspace, shape.response_format)
                except ItemError as error:
                    if error.cause is not Cause.MODEL_REFUSED:
                        raise
            return await self._loop(plain, judge, text, workspace, None)
        except ItemError as error:
            if error.cause in BROKEN:
                raise GraderError(f"the judge {judge.name} can't be asked: {error.message}") from error
            raise

    async def _loop(
        self, context: Context, judge: Judge, text: str, workspace: Path, response_format: dict[str, Any] | None
    ) -> AgentResult:
        settings = AgentSettings(replace(judge.settings, response_format=response_format), max_turns=self.steps)
        environment = ToolEnvironment(_no_sandbox, context.clock, timeout=30.0, state={WORKSPACE: workspace})
        tools: tuple[Tool, ...] = TOOLS
        return await run_agent(
            context,
            AgentTask(text, system=(SYSTEM,)),
            model=judge.model,
            tools=tools,
            environment=environment,
            settings=settings,
        )


def _plain(messages: list[Message]) -> list[Message]:
    """A conversation for a further request without tools: what was said, and what the tools showed as if the user had."""
    plain: list[Message] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "tool":
            plain.append({"role": "user", "content": f"[{message.get('name', 'tool')}]\n{content}"})
        elif content:
            plain.append({"role": message["role"], "content": content})
    return plain


async def _no_sandbox() -> Sandbox:
    raise GraderError("a judge has no sandbox")
