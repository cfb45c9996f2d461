"""``agent_judge``: a judge that looks for itself.

It works in a loop with tools that read the workspace's files, and ends with a score, or with ``rubrics`` point by point. A judge that is
an agent's program works in the workspace with its own tools instead. With ``target`` a named model judges, which may do so without a
workspace too, and then has no tools. A last message that can't be read is requested again. All model and tool calls are steps. The tools
read only, and nothing outside the workspace: they go by open folders and follow no link.
"""

from __future__ import annotations

import heapq
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

import regex

from manyhands.agents.loop import run_agent
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask
from manyhands.core.errors import GraderError, ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.core.redaction import KNOWN
from manyhands.core.settings import OptionalText, optional_number, whole
from manyhands.engine.contract import Context
from manyhands.graders.judged.asking import (
    MAX_CALLS,
    SCORE_REPLY,
    SYSTEM,
    Prompt,
    Reply,
    Shape,
    ask,
    judge_errors,
    prompt_of,
    read_reply,
    score_given,
    sections,
)
from manyhands.graders.judged.judge import SCORE, default_prompt
from manyhands.graders.judged.rubric_items import RubricItem, RubricList, RubricValue, criteria_in, rubrics_or_value
from manyhands.graders.judged.rubrics import Points
from manyhands.graders.protocol import Candidate, Grader, Grading, Judge, Score
from manyhands.graders.registry import Setup
from manyhands.graders.text.patterns import compiled
from manyhands.io.keys import Entry, key, read
from manyhands.io.locations import Location
from manyhands.sandboxes.files.trees import Found, NotPlain, Tree, open_regular
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.protocol import Tool, ToolEnvironment
from manyhands.tools.registry import tool

LOOK, LOOK_PLAIN, AGAIN = "look", "look-plain", "again"
"""Scopes, below the grader's own, of its conversations: with tools, with tools and without a schema for the reply, and about a reply that
could not be read. ``agents.trajectory.fold`` has to know which."""
_LOOK = (
    "The files that the answer is about are in a workspace. Look at them with the tools on offer before you judge, and believe the "
    "files rather than what the answer says about them."
)
_LOOK_ALONE = (
    "The files that the answer is about are in the folder in which you work. Look at them before you judge, change nothing, and believe "
    "the files rather than what the answer says about them."
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
    prompt: Any = key(None, "Prompt of the judge: a text, the path of a file, or a mapping with script.")
    rubrics: RubricList | None = key(None, "Points to be judged one by one.")
    value: RubricValue = key(
        None, "Points to be judged one by one; or a text or an object that counts instead of the test's criteria."
    )
    max_steps: Annotated[int, whole(minimum=1, maximum=50)] = key(10, "Model calls at most, 1 to 50.")
    temperature: Annotated[float | None, optional_number(minimum=0, maximum=2)] = key(0.0, "0 to 2.")
    target: OptionalText = key(None, "The model that judges; the test's own judge by default.")


ENTRY = AgentJudgeEntry


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError for a prompt file that can't be read, and for points as ``rubrics`` does."""
    settings = read(AgentJudgeEntry, entry, location)
    rubrics, at = rubrics_or_value(settings.rubrics, settings.value, location, setup)
    points = None if rubrics is None else Points.of(rubrics, at)
    return AgentJudge(
        entry["name"],
        entry["type"],
        prompt_of(settings.prompt, location.at("prompt"), setup.folder),
        points,
        settings.max_steps,
        settings.temperature,
        settings.target,
        setup.folder,
        criteria_in(settings.value),
    )


@dataclass(frozen=True, slots=True)
class AgentJudge:
    """Asks an agent that may look at the workspace."""

    name: str
    type: str
    prompt: Prompt
    points: Points | None
    steps: int
    """Model calls at most."""
    temperature: float | None
    target: str | None
    """The judge's name; None for the test's own, which needs a workspace to look at."""
    folder: Path
    criteria: str | None = None
    """What counts instead of the test's criteria; None for these."""

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        if self.criteria is not None:
            candidate = replace(candidate, criteria=self.criteria)
        workspace = candidate.workspace
        if workspace is None and self.target is None:
            raise GraderError("there is no workspace to look at; give the target one, or name a target here")
        if workspace is not None and (workspace.is_symlink() or not workspace.is_dir()):
            raise GraderError(f"the workspace {workspace} is gone")
        judge = (await grading.judges.judge(self.target)).about(candidate)
        judge = replace(judge, settings=replace(judge.settings, temperature=self.temperature))
        text = await self._prompt(candidate, grading, tools=judge.working is None)
        reply = await self._reply(grading.context, judge, text, workspace)
        if self.points is not None:
            return self.points.score(self, reply, grading)
        return score_given(self, reply, grading)

    async def _prompt(self, candidate: Candidate, grading: Grading, *, tools: bool) -> str:
        """``tools``: whether the judge gets ours to look with."""
        own = await self.prompt.rendered(self, candidate, grading, self.folder)
        look = f"{_LOOK if tools else _LOOK_ALONE}\n\n" if candidate.workspace is not None else ""
        if self.points is None:
            return f"{look}{own or default_prompt(candidate)}\n\n{SCORE_REPLY}"
        listed = f"[[ ## points ## ]]\n{self.points.listed()}"
        body = f"{own or sections(candidate)}\n\n{listed}"
        return f"{look}{self.points.task}\n\n{body}\n\n{self.points.reply}"

    async def _reply(self, context: Context, judge: Judge, text: str, workspace: Path | None) -> Reply:
        shape = SCORE if self.points is None else self.points.shape()
        last = None if self.points is None else self.points.partial()
        if workspace is None or judge.working is not None:  # which has means of its own to look
            messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
            return await ask(context, judge, messages, shape, last=last)
        result = await self._looked(context, judge, text, workspace, shape)
        answer = next((each for each in reversed(result.messages) if each.get("role") == "assistant"), None)
        value, problem = read_reply(str((answer or {}).get("content") or ""), shape)
        if value is not None:
            return Reply(value, result.usage)
        again: Message = {"role": "user", "content": f"That can't be used: {problem[:500]}. {self._reply_wanted}"}
        messages = [{"role": "system", "content": SYSTEM}, *_plain(result.messages), again]
        reply = await ask(context.scope(AGAIN), judge, messages, shape, last=last, calls=MAX_CALLS - 1)
        return replace(reply, usage=result.usage + reply.usage)

    @property
    def _reply_wanted(self) -> str:
        return SCORE_REPLY if self.points is None else self.points.reply

    async def _looked(self, context: Context, judge: Judge, text: str, workspace: Path, shape: Shape) -> AgentResult:
        """The conversation with tools. An endpoint that refuses the reply's schema beside tools is called without it; what was recorded of
        that conversation says that it was."""
        look, plain = context.scope(LOOK), context.scope(LOOK_PLAIN)
        with judge_errors(judge):
            if not plain.replaying:
                try:
                    return await self._loop(look, judge, text, workspace, shape.response_format)
                except ItemError as error:
                    if error.cause is not Cause.MODEL_REFUSED:
                        raise
            return await self._loop(plain, judge, text, workspace, None)

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


WORKSPACE = "workspace"
"""The key of the workspace's folder (a Path) in ``ToolEnvironment.state``."""
MAX_ENTRIES = 100
MAX_FILE_BYTES = 50 << 10
"""Bytes of a file that are shown."""
MAX_MATCHES = 20
_SEARCHED = 5000
"""Files that are searched at most, and bytes of each."""
_SEARCHED_BYTES = 1 << 20
_MAX_LINE = 300
_SEARCH_SECONDS = 10.0
"""For one search, all files together."""
_LEFT_OUT = frozenset((".git", "node_modules", "__pycache__", ".venv"))


@tool(changes_world=False)
def list_files(
    environment: ToolEnvironment,
    path: Annotated[str, "A folder of the workspace; the workspace itself by default."] = ".",
) -> dict[str, object]:
    """List a folder of the workspace: files with their sizes, folders with a slash behind the name."""
    with _reading(path), _opened(environment) as tree:
        folder = tree.folder(_within(environment, tree, path).split("/"))
        names = heapq.nsmallest(MAX_ENTRIES, _names(folder))
        count = sum(1 for _ in _names(folder))
        shown = [_entry(folder, name) for name in names]
    return {"entries": shown, "left_out": max(0, count - MAX_ENTRIES)}


@tool(changes_world=False)
def read_file(environment: ToolEnvironment, path: Annotated[str, "A file of the workspace."]) -> dict[str, object]:
    """Read a text file of the workspace, up to its first 50 KB."""
    with _reading(path), _opened(environment) as tree:
        try:
            descriptor = tree.open(_within(environment, tree, path))
        except (NotPlain, FileNotFoundError, NotADirectoryError):
            raise ToolError(f"{path[:200]} is no file of the workspace; list_files shows what there is") from None
        with os.fdopen(descriptor, "rb") as handle:
            data = handle.read(MAX_FILE_BYTES)
            rest = max(0, os.fstat(handle.fileno()).st_size - len(data))
    if b"\0" in data:
        raise ToolError(f"{path} is no text file")
    return {"content": data.decode("utf-8", "replace"), "bytes_left_out": rest}


@tool(changes_world=False)
def search_files(
    environment: ToolEnvironment,
    pattern: Annotated[str, "A regular expression, matched against each line."],
    files: Annotated[str, "Names of files to look in, as in *.py."] = "*",
) -> dict[str, object]:
    """Search the workspace's text files for lines that match, 20 at most."""
    try:
        wanted = compiled(pattern)
    except ValueError as error:
        raise ToolError(f"{pattern[:200]!r} can't be used: {error}") from None
    found: list[str] = []
    end = time.monotonic() + _SEARCH_SECONDS
    with _reading("the workspace"), _opened(environment) as tree:
        try:
            for each in _files(tree, files):
                found += _matches(each, wanted, MAX_MATCHES - len(found), end)
                if len(found) >= MAX_MATCHES:
                    break
        except TimeoutError:
            raise ToolError("the search took too long; use a simpler expression") from None
    return {"matches": found, "complete": len(found) < MAX_MATCHES}


TOOLS = (list_files, read_file, search_files)


def _opened(environment: ToolEnvironment) -> Tree:
    root: Path = environment.state[WORKSPACE]
    return Tree(root)


def _within(environment: ToolEnvironment, tree: Tree, path: str) -> str:
    """A path that a judge named, relative to the workspace and without links, as far as they stay in it."""
    root = os.fspath(environment.state[WORKSPACE])
    real = os.path.realpath(root)
    start = next((each for each in (root, real) if f"{path}/".startswith(f"{each}/")), "")
    try:
        return tree.resolved(path.removeprefix(start), real)
    except NotPlain:
        raise ToolError(f"{path[:200]} is outside the workspace") from None
    except ValueError:
        raise ToolError(f"{path[:200]!r} is no path") from None


def _names(folder: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries)


def _entry(folder: int, name: str) -> str:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return f"{name} (a link)"  # where it leads to may be outside
    return f"{name}/" if stat.S_ISDIR(status.st_mode) else f"{name} ({status.st_size} bytes)"


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ToolError(f"{path[:200]} can't be read: {error.strerror}") from error


def _files(tree: Tree, names: str) -> Iterator[Found]:
    files = (
        each
        for each in tree.walk(lambda each: each.name not in _LEFT_OUT)
        if each.is_file and fnmatch(each.name, names)
    )
    return islice(files, _SEARCHED)


def _matches(file: Found, wanted: regex.Pattern[str], max_matches: int, end: float) -> list[str]:
    """``end``: when to give up, of ``time.monotonic``. Raises TimeoutError."""
    try:
        with os.fdopen(open_regular(file.folder, file.name), "rb") as handle:
            data = handle.read(_SEARCHED_BYTES)
    except OSError:
        return []
    if b"\0" in data:
        return []
    found: list[str] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if len(found) < max_matches and wanted.search(line, timeout=left, concurrent=True):
            found.append(f"{file.path}:{number}: {KNOWN.text(line)[:_MAX_LINE]}")
    return found
