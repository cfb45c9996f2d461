"""The conversations of an evaluation, for exports: what targets answered to tests, and what judges were asked about it.

A target's input stands in a conversation as models get it, whatever kind of target it was: so its answers can be compared, and paired,
with those of others. A model, or the built-in agent, has been sent exactly this, but that files are read again of messages before the
last one; its own system prompt and the test's are one message. Other targets' conversations have the paths of files where a model's have
what is in them, and what they answered as they recorded it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from manyhands.agents.toolbox import NO_TOOLS
from manyhands.agents.trajectory import AGENT, PROGRAM
from manyhands.core.digests import content_key
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message, ToolCall
from manyhands.core.outcomes import ItemState, StopReason
from manyhands.core.usage import Usage
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.export.conversations import (
    Conversation,
    ConversationSource,
    Turn,
    model_calls,
    note_settings,
    side_conversations,
    stop_reason_of,
    turns_of,
)
from manyhands.graders.registry import name_for
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.evalfile.messages import Files, chat_messages
from manyhands.workloads.evals.grading.conversation import TURN, WHOLE
from manyhands.workloads.evals.items import ERROR, TestItem
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.results.model_targets import ModelTarget, model_target
from manyhands.workloads.evals.results.recorded_output import has_own_prompt, turns_of_output
from manyhands.workloads.evals.results.result_lines import TestResult, result_of
from manyhands.workloads.evals.targets.definitions import identity

_SOURCE = ("test_id", "dataset", "conversation_id", "criteria", "expected_output", "metadata", "tags")
_GRADERS, _GRADER = "-graders", "grader-"
"""How the scopes of graders are called: those of a conversation's turns and of the whole, and of each among others."""


class EvalConversations(ConversationSource):
    """The conversation of each test at each target, with those of its judges. The turns of a test that has several are one conversation.
    Tests whose target said nothing have none."""

    def __init__(self, reader: JournalReader) -> None:
        super().__init__(reader)
        self._prepared = PreparedEval.from_json(self.spec, reader.folder.parent)
        self._models: dict[tuple[int, str], ModelTarget | None] = {}

    def conversations(self, row: ItemRow, steps: Sequence[RecordedStep], usage: Usage) -> Iterator[Conversation]:
        if row.state is ItemState.DISCARDED or "test" not in row.payload:
            return
        item, result = TestItem.from_json(row.payload), result_of(row, self._prepared.thresholds)
        program = next((step for step in steps if step.kind == AGENT), None)  # that did it in place of a model
        asked = _Asked(item, steps, self._model(item) if program is None else None)
        found = self.begun(row, usage)
        found.turns = asked.turns() or _recorded(item, row, result, asked)
        if not found.turns:
            return
        found.simulated = found.simulated or bool(result.simulated)
        self._describe(found, item, result)
        if program is None:
            asked.describe(found)
        else:
            about = program.output.get(PROGRAM, {})
            found.model, found.version = about.get("model"), about.get("version", "unknown")
        found.stop_reason = _stop_reason(row, result, asked)
        found.others = side_conversations(found, steps, asked.scopes)
        for other in found.others:
            other.name = f"judge {_grader(other.name, item, result.scores or ())}"
        yield found

    def _describe(self, found: Conversation, item: TestItem, result: TestResult) -> None:
        """What is known of a test and its answer, whatever kind of target gave it."""
        found.label, found.sample, found.agent = item.test_id, item.sample, item.target
        turns = [turn["input"] for turn in item.written.get("conversation", {}).get("turns", ())]
        found.prompt_key = content_key([item.written["input"], item.written.get("guidelines", ""), turns])
        found.score, found.verdict = result.score, result.verdict
        found.scores = cast(Sequence[Mapping[str, Any]], result.scores or ())
        found.result = result.answer
        found.source = {name: value for name in _SOURCE if (value := getattr(result, name)) is not None}
        model = self._prepared.target_of(item.file, item.target).settings.get("model")
        found.model = model if isinstance(model, str) else None

    def _model(self, item: TestItem) -> ModelTarget | None:
        key = (item.file, item.target)
        if key not in self._models:
            target = self._prepared.target_of(*key)
            self._models[key] = model_target(target, os.environ, self._prepared.services.get(identity(target), {}))
        return self._models[key]


class _Asked:
    """A test as its target was asked it."""

    def __init__(self, item: TestItem, steps: Sequence[RecordedStep], model: ModelTarget | None) -> None:
        self.test: Test = item.test
        self._steps = steps
        self._model = model
        turns = () if self.test.conversation is None else self.test.conversation.turns
        self.inputs = [turn.input for turn in turns] or [()]
        """What was said in each turn; before the first one there is the test's input."""
        self.scopes = [f"{TURN}-{number}" for number in range(1, len(turns) + 1)] or [""]
        """Of each turn's answer."""
        self._calls = [call for scope in self.scopes for call in model_calls(steps, scope)]

    @property
    def ended_by(self) -> str | None:
        """Why the last of the built-in agent's conversations ended."""
        return stop_reason_of(self._steps, self._calls[-1].scope) if self._calls else None

    def turns(self) -> list[Turn]:
        """The conversation of a model that this program called for it; empty if it called none."""
        found: list[Turn] = []
        reached = {step.scope for step in self._calls}
        for number, scope in enumerate(self.scopes):
            if scope not in reached:
                break
            before = self.said(number, inline=True)[:-1]  # the last one is in the steps, as it was sent
            found += [*before, *_renamed(turns_of(self._steps, scope), found)]
        return self.with_system(found) if found else []

    def said(self, number: int, *, inline: bool) -> list[Turn]:
        """What the target was told before its answer in a turn, which counts from 0. ``inline``: what is in files, instead of their
        paths."""
        test = self.test
        if number:  # a system message counts as one at the beginning only
            chat = self._chat(({"role": "user", "content": "-"}, *self.inputs[number]), "", inline=inline)[1:]
        else:
            chat = self._chat((*test.input, *self.inputs[0]), test.guidelines, inline=inline)
        return [_given(cast(Message, message)) for message in chat]

    def with_system(self, turns: list[Turn]) -> list[Turn]:
        """With the target's own system prompt before the test's, in one message: most formats allow for one only."""
        own = "" if self._model is None else self._model.system(with_tools=self._has_tools)
        if not own:
            return turns
        if turns[0].role == "system":
            own, turns = f"{own}\n\n{turns[0].message['content']}", turns[1:]
        return [Turn({"role": "system", "content": own}), *turns]

    def describe(self, found: Conversation) -> None:
        """What is known of the model that was asked."""
        if self._calls:
            note_settings(found, self._calls[0])
        if self._model is not None:
            found.ephemeral, found.prefill = self._model.options.ephemeral_system_prompt, self._model.prefill
            if self._has_tools:
                box = self._model.toolbox
                found.tools, found.tools_changed = box.definitions, self._sent_tools not in (None, box.digest)

    @property
    def _sent_tools(self) -> str | None:
        """The digest of the tools that were sent; None if that is not recorded, as of answers of earlier runs."""
        return self._calls[0].request.get("tools") if self._calls else None

    @property
    def _has_tools(self) -> bool:
        if self._sent_tools is not None:
            return self._sent_tools != NO_TOOLS.digest
        return self._model is not None and bool(self._model.toolbox.names)

    def _chat(self, input: Sequence[Mapping[str, Any]], guidelines: str, *, inline: bool) -> list[dict[str, Any]]:
        test = self.test
        try:
            return chat_messages(input, guidelines, Files(test.references, test.guideline_files, inline))
        except OSError:  # files that are gone by now
            return chat_messages(input, guidelines, Files(test.references, test.guideline_files))


def _given(message: Message) -> Turn:
    """A message of a test."""
    return Turn(cast(Message, {**message, "_given": True}) if message["role"] == "assistant" else message)


def _renamed(turns: list[Turn], earlier: Iterable[Turn]) -> list[Turn]:
    """Turns whose tool calls have other ids than those of earlier turns: models that number their calls begin anew in every turn of a
    test."""
    used = {call["id"] for turn in earlier for call in turn.message.get("tool_calls") or ()}
    own = {call["id"] for turn in turns for call in turn.message.get("tool_calls") or ()}
    new = {call_id: _free(call_id, used | own) for call_id in own & used}
    return [replace(turn, message=_with_ids(turn.message, new)) for turn in turns] if new else turns


def _free(call_id: str, used: set[str]) -> str:
    number = 2
    while f"{call_id}_{number}" in used:
        number += 1
    return f"{call_id}_{number}"


def _with_ids(message: Message, new: Mapping[str, str]) -> Message:
    found = cast(Message, dict(message))
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [cast(ToolCall, {**call, "id": new.get(call["id"], call["id"])}) for call in calls]
    if "tool_call_id" in message:
        found["tool_call_id"] = new.get(message["tool_call_id"], message["tool_call_id"])
    return found


def _recorded(item: TestItem, row: ItemRow, result: TestResult, asked: _Asked) -> list[Turn]:
    """The conversation as it was recorded of a target that this program called no model for; empty if it said nothing."""
    if "conversation" not in item.written:
        answer = _answer(result.output, result.answer)
        if not answer:
            return []
        own = has_own_prompt(result.output or ())
        return asked.with_system([*([] if own else asked.said(0, inline=False)), *answer])
    found: list[Turn] = []
    for number, turn in enumerate(result.turns or ()):
        answer = _answer(cast("list[dict[str, Json]] | None", turn.get("output")), str(turn.get("answer") or ""))
        if not answer:
            break
        found += [*asked.said(number, inline=False), *_renamed(answer, found)]
    return asked.with_system(found) if found else []


def _answer(output: Sequence[Mapping[str, Json]] | None, text: str) -> list[Turn]:
    """What a target said: its messages, else the text of its answer."""
    turns = turns_of_output(cast("Sequence[dict[str, Json]]", output or ()))
    if any(turn.role == "assistant" for turn in turns):
        return turns
    return [Turn({"role": "assistant", "content": text}, train=True)] if text else []


def _stop_reason(row: ItemRow, result: TestResult, asked: _Asked) -> str | None:
    """Why a conversation ended; None if it was broken off."""
    if row.state.final and row.record and result.status != ERROR:
        return StopReason.ANSWERED.value
    return asked.ended_by if row.cause == Cause.TARGET_ERROR else None


def _grader(scope: str, item: TestItem, scores: Sequence[Mapping[str, Any]]) -> str:
    """The grader that asked a judge in a scope, behind what it is part of: a turn, a composite. ``scores``: of the test; where there are
    none, as grading failed, the names are those of the eval file."""
    graders: Sequence[Mapping[str, Any]] = item.graders
    names: list[str] = []
    for part in scope.split("/"):
        if part.endswith(_GRADERS):
            name = part.removesuffix(_GRADERS)
            scores = next((score.get("scores", ()) for score in scores if score["name"] == name), ())
            graders = _graders_of(name, item)
            names += [name]
            continue
        number = part.removeprefix(_GRADER)
        if number == part or not number.isdigit():
            break
        score, grader = _nth(scores, int(number)), _nth(graders, int(number))
        names.append(str(score.get("name") or grader.get("name") or (name_for(grader) if grader else part)))
        scores, graders = score.get("scores", ()), grader.get("assert", ())
    return " > ".join(names) or scope


def _graders_of(name: str, item: TestItem) -> Sequence[Mapping[str, Any]]:
    """The graders of a conversation's turn, or of the whole."""
    if name == WHOLE:
        return item.graders
    turn = _nth(item.written["conversation"]["turns"], int(name.removeprefix(f"{TURN}-")) - 1)
    found: Sequence[Mapping[str, Any]] = turn.get("graders", ())
    return found


def _nth(entries: Sequence[Mapping[str, Any]], number: int) -> Mapping[str, Any]:
    return entries[number] if number < len(entries) else {}
