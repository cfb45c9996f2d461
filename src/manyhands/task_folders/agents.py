"""Who does a task in place of the built-in agent: its own solution, or a program inside its environment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyhands.agents.program_messages import read_launch
from manyhands.agents.programs import AgentProgram, program_name, read_account
from manyhands.agents.task import AgentResult
from manyhands.agents.trajectory import AGENT, PROGRAM, fold_transcript
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, as_text, line
from manyhands.core.messages import Message, ToolCall
from manyhands.core.outcomes import StopReason
from manyhands.core.redaction import KNOWN
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context, Effect, RecordedStep
from manyhands.io.locations import Location
from manyhands.processes.templates import CommandTemplate
from manyhands.sandboxes.protocol import Sandbox
from manyhands.task_folders.contents import SOLUTION, SOLVE_SCRIPT, Task
from manyhands.task_folders.settings import ORACLE
from manyhands.task_folders.trial import AGENT_LOGS, SHELL, SOLUTION_INSIDE, put_files, root_of
from manyhands.task_folders.variables import resolved

INSTRUCTION_FILE = f"{AGENT_LOGS}/instruction.md"
PLACEHOLDERS = ("instruction", "instruction_file")
MAX_OUTPUT = 4 << 20
"""Bytes of a program's output that are recorded."""
NO_LIMIT = 7 * 24 * 3600.0
"""Seconds for a program where nothing says how long it may take."""
_IN_BASH = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi'
_SOLVE = 'exec "$1" < /dev/null'
# $1 a file for the output, then the program. In a session of its own, what it leaves in the background is not ended with it: its tests may
# ask a server that it started. For the same reason the output is a file, which nobody stops reading.
_LEAVING = """\
output=$1; shift
if command -v setsid >/dev/null 2>&1; then (exec setsid "$@" >"$output" 2>&1); else ("$@" >"$output" 2>&1); fi
exit $?
"""
_SHOWN = '[ ! -f "$1" ] || exec cat -- "$1"'


def command_template(command: str) -> CommandTemplate:
    """A command that does tasks. Raises UserError for a placeholder where no quotation would hold its value together."""
    return CommandTemplate.parse(command, Location("--agent_command"), PLACEHOLDERS)


def program_of(command: str | None) -> str:
    """What does tasks, for results: the program of a command; ``oracle`` without a command."""
    if command is None:
        return ORACLE
    name, _ = program_name(command.split())
    return name


def named_model(command: str | None) -> str:
    """The model that a command names; ``oracle`` without a command, and nothing if nobody knows."""
    return ORACLE if command is None else AgentProgram.of(command.split()).model or ""


@dataclass(frozen=True, slots=True)
class TaskProgram:
    """A program that does tasks inside their environments. Each launch is a step, whose messages are the conversation."""

    command: str | None = None
    """None: the task's own solution."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables that a task's own may be taken from."""

    async def run(self, context: Context, world: World, task: Task, seconds: float | None) -> AgentResult:
        """Do a task. ``seconds``: its time limit. Raises ItemError, INVALID_INPUT for a task without a solution."""
        address, ran = context.address, False
        asked: list[Message] = [{"role": "user", "content": task.instruction}]

        async def effect() -> Effect:
            nonlocal ran
            ran = True
            await world.begin_step(address)
            try:
                return await self._launched(await world.sandbox(), task, seconds)
            except ToolError as error:
                raise ItemError(Cause.INVALID_INPUT, f"task {task.name}: {error}") from error

        request = {"task": task.digest, "command": self.command, "added": asked}
        output: dict[str, Any] = await context.step(AGENT, request, effect)
        if not ran:
            world.replayed(address)
        return _result(asked, output)

    async def _launched(self, sandbox: Sandbox, task: Task, seconds: float | None) -> Effect:
        limit = NO_LIMIT if seconds is None else seconds
        if self.command is None:
            if not task.solved:
                raise ItemError(Cause.INVALID_INPUT, f"task {task.name} has no {SOLUTION}/{SOLVE_SCRIPT}")
            await put_files(sandbox, await asyncio.to_thread(task.archive, SOLUTION), SOLUTION_INSIDE, task)
            script = f"{SOLUTION_INSIDE}/{SOLVE_SCRIPT}"
            await sandbox.run(["chmod", "+x", script], timeout=60.0, user=root_of(sandbox))
            command = [*SHELL, _SOLVE, "sh", script]
            kept = f"{AGENT_LOGS}/oracle.txt"
            variables = {"DEBIAN_FRONTEND": "noninteractive", **resolved(task.config.solution.env, self.environ)}
            given = b""
        else:
            await sandbox.write_file(INSTRUCTION_FILE, task.instruction.encode())
            values = {"instruction": task.instruction, "instruction_file": INSTRUCTION_FILE}
            command = [*SHELL, _IN_BASH, "sh", command_template(self.command).shown(values)]
            kept, given, variables = f"{AGENT_LOGS}/program.txt", task.instruction.encode(), {}
        leaving = [*SHELL, _LEAVING, "sh", kept, *command]
        result = await sandbox.run(leaving, timeout=limit, input=given, environment=variables)
        shown = await sandbox.run([*SHELL, _SHOWN, "sh", kept], timeout=60.0, max_output=MAX_OUTPUT)
        text = KNOWN.text((shown.output or result.output).decode(errors="replace"))
        output: dict[str, Any] = {
            "exit_code": None if result.timed_out else result.exit_code,
            "omitted": shown.omitted,
            "seconds": math.ceil(result.seconds * 1000) / 1000,
        }
        if self.command is None:
            said = text.strip() or f"ran {SOLVE_SCRIPT}"
            return Effect({**output, "messages": [{"role": "assistant", "content": said}], "usage": ZERO.to_json()})
        found, usage = _read(text)
        return Effect({**output, **found, "usage": usage.to_json()}, usage)


def _read(text: str) -> tuple[dict[str, Any], Usage]:
    """The conversation that a program printed, and what it used. If it printed events, with what they say of the program."""
    launch, account = read_launch(text), read_account(text, lambda usage: None)
    usage = account.usage or ZERO
    if launch is None:
        said = text.strip()
        return {"messages": [{"role": "assistant", "content": said}] if said else []}, usage
    messages: list[Message] = []
    for number, said in enumerate(launch["output"]):
        messages += _as_chat(said, number)
    answers = sum(message["role"] == "assistant" for message in messages)
    program = {name: launch[name] for name in ("model", "version") if name in launch}
    return {"messages": messages, PROGRAM: program}, replace(usage, calls=max(answers, 1)) if usage.calls else usage


def _as_chat(said: Mapping[str, Json], number: int) -> list[Message]:
    """A message of a program's as chat messages: its calls, and what came of them."""
    calls: list[ToolCall] = []
    results: list[Message] = []
    for index, call in enumerate(said.get("tool_calls") or ()):
        call_id, name, given = str(call.get("id") or f"call_{number}_{index}"), str(call["tool"]), call.get("input")
        arguments = line(given if isinstance(given, Mapping) else {"input": given})
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
        content = as_text(call.get("output") if call.get("output") is not None else "")
        results.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": content})
    text = said.get("content")
    if said.get("role") != "assistant" or not (text or calls):
        return []
    message: Message = {"role": "assistant", "content": None if text is None else as_text(text)}
    if calls:
        message["tool_calls"] = calls
    return [message, *results]


def _result(asked: Sequence[Message], output: Mapping[str, Any]) -> AgentResult:
    step = RecordedStep(1, "", 0, AGENT, {"added": list(asked)}, dict(output), 0.0, 0.0, {})
    transcript = fold_transcript([step])
    code = output["exit_code"]
    stop = StopReason.TIME_LIMIT if code is None else StopReason.AGENT_ERROR if code else StopReason.ANSWERED
    return AgentResult(
        transcript.messages,
        stop,
        transcript.usage.calls,
        transcript.usage,
        transcript.tool_uses,
        exit_code=code,
        model=output.get(PROGRAM, {}).get("model"),
    )
