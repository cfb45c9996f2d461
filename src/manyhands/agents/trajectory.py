"""The conversation of an attempt, as a fold over its steps.

The loop builds its history with the same ``Transcript`` that ``fold`` uses, so the two can't drift apart. Nothing is
stored twice: a model step's request holds only the messages that no earlier step holds (the prompt, and user turns that
this program wrote), its output the answer, and the steps of the tools their results.

Tool results are put here into the form in which the model and the journal get them; and steps, conversations and outcomes into lines for
people who watch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from manyhands.agents.reading import brief_usage
from manyhands.agents.task import CLOCK, ToolUse
from manyhands.agents.time_limit import OVER
from manyhands.agents.worlds.recorded_commands import COMMAND, CommandRecord
from manyhands.core.jsonio import Json, spaced
from manyhands.core.messages import Message, ToolCall, text_of
from manyhands.core.outcomes import Outcome
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Item, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.models.openai.response import RAW
from manyhands.network.counts import NETWORK, in_words
from manyhands.runs.ledger import timestamp
from manyhands.tools.protocol import ToolResult
from manyhands.tools.results import bounded
from manyhands.tools.services.artifacts import text_for_people
from manyhands.tools.services.steps import ASK, REQUEST


def as_text(content: Json) -> str:
    """A result's content for the model: text as it is, everything else as JSON; nothing for None."""
    if isinstance(content, str):
        return content
    return "" if content is None else spaced(content)


def recorded(result: ToolResult, max_length: int) -> dict[str, Any]:
    """A result as the journal holds it: ``content``, cut to about ``max_length`` characters, of ``failed`` and ``ends`` what is true, and
    ``usage`` and ``kept`` if there is any.

    Raises TypeError or ValueError if the content is not JSON.
    """
    marks = {"failed": result.failed, "ends": result.ends}
    record = {"content": bounded(result.content, max_length)} | {name: True for name, is_set in marks.items() if is_set}
    if result.usage is not ZERO:
        record["usage"] = brief_usage(result.usage)
    if result.kept is not None:
        record["kept"] = result.kept
    return record


def from_record(record: dict[str, Any]) -> ToolResult:
    """The reverse of ``recorded``."""
    usage = Usage(**record["usage"]) if "usage" in record else ZERO
    return ToolResult(
        record["content"], bool(record.get("failed")), bool(record.get("ends")), usage, record.get("kept")
    )


def refusal(reason: str) -> ToolResult:
    """The answer to a call that was not run, or that failed as a call."""
    return ToolResult({"error": reason}, failed=True)


def tool_message(call: ToolCall, result: ToolResult) -> Message:
    """The message that answers a call."""
    return {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": call["function"]["name"],
        "content": as_text(result.content),
        "_failed": result.failed,
    }


MODEL = "model"
TOOLS = "tools"
"""The calls of one turn that share the sandbox's world, as one step."""
TOOL = "tool"
"""One call that has nothing to do with the sandbox."""
AGENT = "agent"
"""A program that did the whole task in place of the built-in agent: ``added`` of its request and ``messages`` of its output are the
conversation, ``exit_code`` is None if it was stopped at its time limit."""
PROGRAM = "program"
"""In the output of such a step, if the conversation is that of the events which the program printed: what these say of it, ``model`` and
``version``."""


class Transcript:
    """A conversation as it grows, with what is counted along."""

    __slots__ = ("answered", "messages", "tool_usage", "tool_uses", "unknown_tools", "usage", "used_ids")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tool_uses: list[ToolUse] = []
        self.unknown_tools: list[str] = []
        self.usage: Usage = ZERO
        self.tool_usage: Usage = ZERO
        """What tool calls used besides."""
        self.used_ids: set[str] = set()
        self.answered = False

    def ask(self, added: Iterable[Message]) -> None:
        """Messages that are not answers: what the task begins with, and user turns of this program."""
        for message in added:
            self.messages.append(message)
            self.used_ids.update(call["id"] for call in message.get("tool_calls") or ())

    def answer(self, output: Mapping[str, Any]) -> Sequence[ToolCall]:
        """A model step's output. Returns the tool calls that now need results."""
        usage = output.get("usage")
        if usage:
            self.usage = self.usage + Usage(**usage)
        if "message" not in output or output.get("dropped"):
            return ()
        message: Message = output["message"]
        self.messages.append(message)
        self.answered = True
        calls = message.get("tool_calls") or ()
        self.used_ids.update(call["id"] for call in calls)
        for name in output.get("unknown") or ():
            if name not in self.unknown_tools:
                self.unknown_tools.append(name)
        return calls

    def take_over(self, output: Mapping[str, Any]) -> None:
        """What a program's step says that it said and did."""
        self.messages += output["messages"]
        self.usage = self.usage + Usage(**output.get("usage", {}))
        self.answered = self.answered or bool(output["messages"])
        for message in output["messages"]:
            if message["role"] == "tool":
                self.tool_uses.append(ToolUse(message["name"], bool(message.get("_failed"))))

    def result(self, call: ToolCall, result: ToolResult) -> None:
        """The result of a tool call; to be given in the order of the calls."""
        self.messages.append(tool_message(call, result))
        self.tool_uses.append(ToolUse(call["function"]["name"], result.failed))
        self.tool_usage = self.tool_usage + result.usage


def refusals(output: Mapping[str, Any]) -> dict[int, ToolResult]:
    """The answers to those calls of a turn that are not run, by index."""
    refused = output.get("refused")
    return {int(index): refusal(reason) for index, reason in refused.items()} if refused else {}


def fold(steps: Iterable[RecordedStep], scope: str = "") -> list[Message]:
    """The messages of an attempt's conversation, from the prompt on.

    ``steps``: all steps of one attempt, in any order. ``scope``: the scope that the conversation took place in, which is the item's
    own for that of its agent; judges' conversations have others. The steps of an attempt that has not ended give the conversation
    so far.
    """
    return fold_transcript(steps, scope).messages


def fold_transcript(steps: Iterable[RecordedStep], scope: str = "") -> Transcript:
    """Like ``fold``, with tool uses, unknown tools and usage."""
    transcript = Transcript()
    answers, results = _sorted_out(steps, scope)
    for step in answers:
        _fold_turn(transcript, step, results)
    return transcript


def folded(steps: Iterable[RecordedStep], scope: str = "") -> Iterator[tuple[Message, RecordedStep]]:
    """Like ``fold``, each message with the step that holds it. What an answer that was refused by this program got as results stands in
    the answer's step."""
    transcript = Transcript()
    answers, results = _sorted_out(steps, scope)
    for step in answers:
        begin = len(transcript.messages)
        _fold_turn(transcript, step, results)
        ids = {
            call["id"]: index for index, call in enumerate((step.output.get("message") or {}).get("tool_calls") or ())
        }
        for message in transcript.messages[begin:]:
            index = ids.get(message.get("tool_call_id", "")) if message["role"] == "tool" else None
            found = None if index is None else results.get((f"{step.scope}/{step.seq}", index))
            yield message, step if found is None else found[1]


_Results = dict[tuple[str, int], tuple[ToolResult, RecordedStep]]
"""By the address of the turn and the call's index."""


def _sorted_out(steps: Iterable[RecordedStep], scope: str) -> tuple[list[RecordedStep], _Results]:
    """The model steps of a scope in order, and all tool results."""
    answers: list[RecordedStep] = []
    results: _Results = {}
    for step in steps:
        if step.kind in (MODEL, AGENT):
            if step.scope == scope:
                answers.append(step)
        elif step.kind in (TOOL, TOOLS):
            results.update({address: (result, step) for address, result in _results(step).items()})
    return sorted(answers, key=lambda step: step.seq), results


def _fold_turn(transcript: Transcript, step: RecordedStep, results: _Results) -> None:
    transcript.ask(step.request["added"])
    if step.kind == AGENT:
        transcript.take_over(step.output)
        return
    refused = refusals(step.output)
    for index, call in enumerate(transcript.answer(step.output)):
        found = results.get((f"{step.scope}/{step.seq}", index))
        result = refused.get(index) or (None if found is None else found[0])
        if result is None:  # the attempt was interrupted here
            break
        transcript.result(call, result)


def _results(step: RecordedStep) -> dict[tuple[str, int], ToolResult]:
    turn = step.request["turn"]
    if step.kind == TOOL:
        return {(turn, step.request["call"]["index"]): from_record(step.output)}
    pairs = zip(step.request["calls"], step.output["results"], strict=True)
    return {(turn, call["index"]): from_record(record) for call, record in pairs}


def describe_step(step: RecordedStep) -> Iterable[tuple[str, str]]:
    """Who said what, in order; for tools, each call's result."""
    if step.kind == MODEL:
        return _model_step(step)
    if step.kind == TOOLS:
        pairs = zip(step.request["calls"], step.output["results"], strict=True)
        return [(call_label(call), _text(result)) for call, result in pairs]
    if step.kind == TOOL:
        return [(call_label(step.request["call"]), _text(step.output))]
    if step.kind == AGENT:
        return _agent_step(step)
    if step.kind == CLOCK:
        return [(CLOCK, str(timestamp(step.output)))]
    if step.kind == NETWORK:
        return [(NETWORK, in_words(step.output["hosts"]) or "no host was asked for")]
    if step.kind == COMMAND:
        return _command_step(step)
    if step.kind in (ASK, REQUEST):
        return _service_step(step)
    return [(step.kind, json.dumps(step.output, ensure_ascii=False))]


def _service_step(step: RecordedStep) -> Iterator[tuple[str, str]]:
    """What a tool asked a model or a service, and what it got."""
    if step.kind == ASK:
        name = str(step.request["settings"]["model"])
        for message in step.request["messages"]:
            yield f"{name} is asked", text_for_people(message.get("content"))
        answer = text_of(step.output.get("message", {}).get("content"))
    else:
        name = str(step.request["service"])
        yield f"{name} is asked", json.dumps(step.request["request"], ensure_ascii=False)
        answer = json.dumps(step.output.get("answer"), ensure_ascii=False)
    failure = step.output.get("failure")
    yield (f"{name} answers", answer) if failure is None else (f"{name} fails", failure)


def _command_step(step: RecordedStep) -> Iterator[tuple[str, str]]:
    """A command of this program's: what it was, how it ended, and what it printed."""
    record = CommandRecord.from_json(step.output)
    yield step.scope.rpartition("/")[2] or COMMAND, record.command
    if record.output:
        yield "printed", record.output
    if record.problem is not None:
        yield "ended", record.problem


def call_label(call: dict[str, Any]) -> str:
    """A recorded tool call in one line."""
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{call.get('name', '?')}({text})"


def _model_step(step: RecordedStep) -> Iterator[tuple[str, str]]:
    for message in step.request.get("added", []):
        why = f" (by this program: {message['_synthetic']})" if "_synthetic" in message else ""
        role = str(message.get("role")) + (" (given)" if "_given" in message else "") + why
        if (text := text_for_people(message.get("content"))) or not message.get("tool_calls"):
            yield role, text
        for call in message.get("tool_calls", []):
            yield f"{role}, calls", f"{call['function']['name']}({call['function']['arguments']})"
    if "overflow" in step.output:
        yield "overflow", step.output["overflow"]
    if OVER in step.output:
        yield "time limit", f"over after {step.output[OVER]:g} s"
    message = step.output.get("message", {})
    if message.get("reasoning"):
        yield "assistant, reasoning", message["reasoning"]
    if content := text_of(message.get("content")):
        yield "assistant", content
    extra = step.output.get("extra") or {}
    if "address" in extra:
        yield "answered by", extra["address"]
    raw = extra.get(RAW) or {}
    if "content" in raw:
        yield "assistant, as sent", text_of(raw["content"])
    yield from _calls_of_answer(message.get("tool_calls", []), refusals(step.output))
    if following := step.output.get("next"):
        yield "then", f"{following} {step.output.get('stop', '')}".strip()


def _calls_of_answer(calls: Sequence[ToolCall], refused: Mapping[int, ToolResult]) -> Iterator[tuple[str, str]]:
    """The calls, and the answers to those that were not run."""
    for call in calls:
        yield "assistant, calls", f"{call['function']['name']}({call['function']['arguments']})"
    for index, call in enumerate(calls):
        if index in refused:
            function = call["function"]
            yield f"{function['name']}({function['arguments']})", f"(failed) {as_text(refused[index].content)}"


def _agent_step(step: RecordedStep) -> Iterator[tuple[str, str]]:
    for message in (*step.request["added"], *step.output["messages"]):
        if text := text_for_people(message.get("content")):
            yield str(message["role"]), text
        for call in message.get("tool_calls", []):
            yield "assistant, calls", f"{call['function']['name']}({call['function']['arguments']})"
    code = step.output["exit_code"]
    yield "then", "stopped at its time limit" if code is None else f"exit code {code}"


def _text(result: dict[str, Any]) -> str:
    content = result.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1)
    return f"(failed) {text}" if result.get("failed") else text


def item_lines(
    label: str, item: Item, outcome: Outcome, why: str, reader: JournalReader, preview: int
) -> Iterator[str]:
    """A line for the item, then one for each of its last attempt's tool calls, whose arguments and results are cut to ``preview``
    characters. ``why``: what is said behind the state."""
    yield f"[{label}] {outcome.state} ({why})" if why else f"[{label}] {outcome.state}"
    for line in _calls(item, reader, preview):
        yield f"[{label}]   {line}"


def _calls(item: Item, reader: JournalReader, preview: int) -> Iterator[str]:
    row = reader.item(str(item.number))
    if row is None:
        return
    messages = fold(reader.steps(row.number, row.attempt))
    results = {message.get("tool_call_id"): message for message in messages if message["role"] == "tool"}
    for message in messages:
        for call in message.get("tool_calls", []):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            yield f"{name}({_cut(arguments, preview)}) -> {_result(results.get(call['id']), preview)}"


def _result(message: Message | None, preview: int) -> str:
    return "" if message is None else _cut(str(message.get("content")), preview)


def _cut(text: str, preview: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= preview else line[:preview] + "…"
