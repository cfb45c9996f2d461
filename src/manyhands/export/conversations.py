"""The canonical record of a conversation, which every export format is made from, and how workloads give theirs.

Messages are those of ``core.messages``: chat completions with arguments as JSON text, ``reasoning`` apart, and a few keys of our own that
begin with ``_``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, cast

from manyhands.agents.time_limit import OVER
from manyhands.agents.trajectory import AGENT, MODEL, PROGRAM, fold, folded
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message, text_of
from manyhands.core.outcomes import ItemState, StopReason
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import ItemRow, RecordedStep, import_attribute
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.registry import conversations_target

CONTINUE, SUMMARY = "continue", "summary_request"
LEFT_OUT = (CONTINUE, SUMMARY)
"""Why messages were written by this program that do not belong to the conversation as it should have gone."""
ENDED = frozenset({StopReason.ANSWERED.value})
"""Stop reasons of conversations that came to their own end. All others are truncated."""


@dataclass(slots=True)  # not frozen: one is made for each message
class ModelCall:
    """The model call that gave a message. Not to be changed."""

    step: str
    """The step's address in its attempt: ``scope/seq``."""
    model: str | None
    """That served it, as far as the endpoint said; else that was asked."""
    usage: Usage
    started_at: float
    """Seconds since 1970 UTC."""
    finished_at: float
    finish_reason: str | None = None


@dataclass(slots=True)  # not frozen: one is made for each message
class Turn:
    """One message of a conversation, with where it comes from. Not to be changed."""

    message: Message
    at: float | None = None
    """When it was there, in seconds since 1970 UTC; None if nobody knows."""
    call: ModelCall | None = None
    """Of an assistant message that a model wrote in this run; of several that were joined, the sum."""
    train: bool = False
    """Whether a model may be trained on it: an assistant message that was written in this run."""

    @property
    def role(self) -> str:
        return self.message["role"]

    def to_json(self) -> dict[str, Any]:
        """The turn in the canonical record: its message with ``at``, ``train`` and ``call``."""
        call = self.call
        return {
            "message": self.message,
            "at": self.at,
            "train": self.train,
            "call": None
            if call is None
            else {
                "step": call.step,
                "model": call.model,
                "usage": call.usage.to_json(),
                "started_at": call.started_at,
                "finished_at": call.finished_at,
                "finish_reason": call.finish_reason,
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The reverse of ``to_json``."""
        call = value["call"]
        made = None if call is None else ModelCall(**{**call, "usage": Usage.from_json(call["usage"])})
        return cls(value["message"], value["at"], made, value["train"])


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One conversation of an item, whole. Times are seconds since 1970 UTC, tokens as endpoints counted them, costs US dollars."""

    run: str
    """The name of the run's folder."""
    run_id: str
    workload: str
    item: int
    """The item's number in its run. Of an imported conversation, that in the run where it took place, if anybody knows."""
    key: str
    """The item's identity in its run."""
    sample: int = 0
    """Which repeat of the same content it is, from 0."""
    attempt: int = 1
    label: str = ""
    """What people call the item."""
    name: str = ""
    """Which conversation of its item it is: empty for its agent's, else as ``stage NAME`` or ``judge NAME``."""
    prompt_key: str = ""
    """The same for all samples of one prompt, in every run: what splits, pairs and ``--best_of`` go by."""
    turns: list[Turn] = field(default_factory=list)
    """From the system message on, without what was ephemeral."""
    ephemeral: str | None = None
    """A further paragraph of the system message, which was sent and is not kept."""
    prefill: Sequence[Message] = ()
    """Messages that were sent right behind the system message, and are not kept."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Those that were available, as chat-completions tool objects."""
    tools_changed: bool = False
    """Whether they are known only as this version of the program has them, which is not how they were sent."""
    parallel_tool_calls: bool | None = None
    """The setting of that name, where it was sent."""
    agent: str | None = None
    """Who answered, where a run compares several: a target, an agent."""
    model: str | None = None
    """That was asked."""
    simulated: bool = False
    """Whether a simulated model wrote any of it."""
    state: ItemState = ItemState.COMPLETED
    """The item's."""
    reason: str | None = None
    """Why it was discarded, failed or was cancelled, in a word."""
    stop_reason: str | None = None
    """Why the conversation ended: a value of ``StopReason``; None if it has not."""
    score: float | None = None
    """From 0 to 1; None if it was not graded."""
    verdict: str | None = None
    scores: Sequence[Mapping[str, Any]] = ()
    """Of each grader: ``name``, ``score``, ``verdict``, ``hits``, ``misses``, ``reasoning``."""
    usage: Usage = ZERO
    """Of all recorded steps of the item: judges and abandoned attempts included. Of several conversations of one item only the first has
    it, so that sums are right."""
    started_at: float | None = None
    finished_at: float | None = None
    seed: int | None = None
    source: Mapping[str, Json] = field(default_factory=dict)
    """The other fields of the row or test that it was made from."""
    tokens: int | None = None
    """By the export's tokenizer; None without one."""
    result: Json = None
    """The structured result that was handed in, or the answer that was graded."""
    version: str | None = None
    """Of this program, when it made the run; of the agent's, where another one did the item; None for a conversation from elsewhere."""
    collected: Mapping[str, Any] | None = None
    """What the run's command gave in the end: ``output``, and ``problem`` if that is not to be relied on. The canonical record has no
    place for it."""
    others: Sequence[Conversation] = ()
    """Conversations that took place for this one: those of its judges."""

    def to_json(self) -> dict[str, Any]:
        """The canonical record: the same fields in every record. Times are seconds since 1970 UTC."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "turns": [turn.to_json() for turn in self.turns],
            "tools": [dict(tool) for tool in self.tools],
            "prefill": list(self.prefill),
            "state": self.state.value,
            "scores": [dict(score) for score in self.scores],
            "usage": self.usage.to_json(),
            "source": dict(self.source),
            "others": [other.to_json() for other in self.others],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The reverse of ``to_json``. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            **{name: value[name] for name in _PLAIN},
            turns=[Turn.from_json(each) for each in value["turns"]],
            tools=value["tools"],
            prefill=value["prefill"],
            state=ItemState(value["state"]),
            scores=value["scores"],
            usage=Usage.from_json(value["usage"]),
            source=value["source"],
            others=[cls.from_json(each) for each in value["others"]],
        )

    @property
    def messages(self) -> list[Message]:
        """Those of the turns."""
        return [turn.message for turn in self.turns]

    def texts(self) -> Json:
        """All of it that somebody wrote, but for the tools."""
        return [
            *(
                self.run,
                self.run_id,
                self.workload,
                self.version,
                self.prompt_key,
                self.key,
                self.label,
                self.name,
                self.agent,
                self.model,
                self.ephemeral,
                self.reason,
                self.stop_reason,
            ),
            *(list(self.prefill), list(self.scores), dict(self.source), self.result),
            [
                [turn.message, turn.call and [turn.call.step, turn.call.model, turn.call.finish_reason]]
                for turn in self.turns
            ],
            [other.texts() for other in self.others],
        ]

    @property
    def own_usage(self) -> Usage:
        """Of the calls that gave its turns. ``usage`` also has what else the item used."""
        return sum((turn.call.usage for turn in self.turns if turn.call is not None), start=ZERO)

    @property
    def trace_id(self) -> str:
        """A name that no other conversation has, and that it gets in every export."""
        whole = f"{self.run_id}/{self.item}/{self.attempt}"
        return f"{whole}/{self.name}" if self.name else whole

    @property
    def truncated(self) -> bool:
        """Whether it was broken off before the agent had answered."""
        return self.stop_reason not in ENDED

    @property
    def place(self) -> str:
        """Where it is, for people: the run and the item."""
        return f"{self.run} item {self.key}" + (f" ({self.name})" if self.name else "")


_PLAIN = tuple(
    each.name
    for each in fields(Conversation)
    if each.name not in ("turns", "tools", "prefill", "state", "scores", "usage", "source", "others", "collected")
)


class ConversationSource:
    """Gives the conversations of a run's items. A workload's own is a subclass, named in the registry. It only reads."""

    def __init__(self, reader: JournalReader) -> None:
        self.reader = reader
        self.spec: Any = reader.meta("spec")
        """As it is recorded: other versions may have made it."""
        self.run_id = str(reader.meta("run_id"))
        self.workload = str(reader.meta("workload"))
        self.version = str(reader.meta("version"))

    def has(self, row: ItemRow) -> bool:
        """Whether an item is still part of the run, and not one that its input does not name any more."""
        return not row.left_input

    def conversations(self, row: ItemRow, steps: Sequence[RecordedStep], usage: Usage) -> Iterator[Conversation]:
        """Those of one item, its agent's first. ``steps``: of its latest attempt, in order of recording; ``usage``: of all its steps."""
        raise NotImplementedError

    def begun(self, row: ItemRow, usage: Usage) -> Conversation:
        """A conversation with what is known of every item."""
        return Conversation(
            run=self.reader.folder.name,
            run_id=self.run_id,
            workload=self.workload,
            version=self.version,
            item=row.number,
            key=row.key,
            attempt=row.attempt,
            label=row.key,
            state=row.state,
            reason=row.reason or row.cause,
            usage=usage,
            simulated=usage.simulated_calls > 0,
            started_at=row.started_at,
            finished_at=row.finished_at,
        )


def turns_of(steps: Iterable[RecordedStep], scope: str = "", *, head: Sequence[Message] = ()) -> list[Turn]:
    """The conversation that an agent had in a scope of an attempt, with the messages that every request began with."""
    turns = [Turn(message) for message in head]
    for message, step in folded(steps, scope):
        if step.kind == AGENT:
            at = step.started_at if message["role"] == "user" else step.finished_at
            turns.append(Turn(message, at, train=message["role"] == "assistant" and PROGRAM in step.output))
            continue
        if message["role"] != "assistant" or "_given" in message or step.output.get("message") is not message:
            turns.append(Turn(message, step.started_at if message["role"] == "user" else step.finished_at))
            continue
        extra = step.output.get("extra") or {}
        model = extra.get("model") or step.request.get("settings", {}).get("model")
        call = ModelCall(
            f"{step.scope}/{step.seq}",
            model,
            Usage.from_json(dict(step.usage)),
            step.started_at,
            step.finished_at,
            step.output.get("finish_reason"),
        )
        turns.append(Turn(message, step.finished_at, call, train=True))
    return turns


def side_conversations(
    of: Conversation, steps: Sequence[RecordedStep], scopes: Iterable[str] = ("",)
) -> list[Conversation]:
    """The conversations of an attempt that took place in other scopes than its agent's (``scopes``): those of judges, as a rule. A scope
    in which somebody was asked from the beginning again has as many."""
    own = set(scopes)
    others = dict.fromkeys(step.scope for step in steps if step.kind == MODEL and step.scope not in own)
    return [_side(of, each, scope) for scope in others for each in _begun_anew(steps, scope)]


def _begun_anew(steps: Sequence[RecordedStep], scope: str) -> list[list[RecordedStep]]:
    """The steps of each of the conversations that a scope holds. The first request of one holds all messages that were sent."""
    others = [step for step in steps if step.kind != MODEL]
    found: list[list[RecordedStep]] = []
    for step in model_calls(steps, scope):
        if not found or step.request.get("count") == len(step.request["added"]):
            found.append([*others])
        found[-1].append(step)
    return found


def judges_named(others: Sequence[Conversation], scores: Sequence[Mapping[str, Any]]) -> Sequence[Conversation]:
    """The conversations of judges of a conversation, called by their graders instead of by scopes (``grade-…/grader-NUMBER``)."""
    for other in others:
        found = _GRADER.match(other.name)
        if found is not None and int(found[1]) < len(scores):
            other.name = f"judge {scores[int(found[1])]['name']}{found[2].replace('/', ' ')}"
    return others


_GRADER = re.compile(r"grade-[0-9a-f]+/grader-(\d{1,6})(.*)", re.DOTALL)


def _side(of: Conversation, steps: Sequence[RecordedStep], scope: str) -> Conversation:
    turns = turns_of(steps, scope)
    models = [turn.call.model for turn in turns if turn.call is not None]
    return replace(
        of,
        name=scope,
        turns=turns,
        tools=(),
        parallel_tool_calls=None,
        ephemeral=None,
        prefill=(),
        tools_changed=False,
        model=models[0] if models else None,
        agent=None,
        stop_reason=StopReason.ANSWERED.value,
        score=None,
        verdict=None,
        scores=(),
        usage=ZERO,
        source={},
        result=None,
        others=(),
    )


def note_settings(of: Conversation, call: RecordedStep) -> None:
    """Note what was asked, and how, as a model call records it."""
    settings: Mapping[str, Any] = call.request.get("settings", {})
    of.model, of.seed = settings.get("model"), settings.get("seed")
    of.parallel_tool_calls = settings.get("parallel_tool_calls")


def model_calls(steps: Iterable[RecordedStep], scope: str = "") -> list[RecordedStep]:
    """The model calls of a scope of an attempt, in order."""
    return sorted((step for step in steps if step.kind == MODEL and step.scope == scope), key=lambda step: step.seq)


def stop_reason_of(steps: Sequence[RecordedStep], scope: str = "") -> str | None:
    """Why the built-in agent ended the conversation that it had in a scope of an attempt, as its last model call says; None if there was
    none, or it has calls without a result. Good for conversations that came to an end, and were not interrupted."""
    calls = model_calls(steps, scope)
    if not calls:
        return _stop_reason_of_program(steps, scope)
    output: Mapping[str, Any] = calls[-1].output
    if "overflow" in output:
        return StopReason.CONTEXT_OVERFLOW.value
    if OVER in output:
        return StopReason.TIME_LIMIT.value
    if output.get("next") == "stop":
        return str(output["stop"])
    if not (output.get("message") or {}).get("tool_calls"):
        return None if output.get("next") else StopReason.ANSWERED.value
    return StopReason.MAX_TURNS.value if fold(steps, scope)[-1]["role"] == "tool" else None


def _stop_reason_of_program(steps: Sequence[RecordedStep], scope: str) -> str | None:
    program = next((step for step in steps if step.kind == AGENT and step.scope == scope), None)
    if program is None:
        return None
    code = program.output["exit_code"]
    return (StopReason.TIME_LIMIT if code is None else StopReason.AGENT_ERROR if code else StopReason.ANSWERED).value


def plain_turns(messages: Iterable[Message]) -> list[Turn]:
    """Messages of which nothing more is known."""
    return [Turn(message, train=message["role"] == "assistant" and "_given" not in message) for message in messages]


def without_synthetic(turns: Sequence[Turn]) -> list[Turn]:
    """The conversation without the turns that this program wrote, as it should have gone.

    A request to go on with a cut-off answer disappears, and the pieces become one answer; its reasoning is that of the first piece that
    has any, because later pieces reason about the request. A request for a summary disappears together with the summary. What is said to
    an agent that answered too early (``follow_up``) stays: what follows answers it.
    """
    if not any("_synthetic" in turn.message for turn in turns):
        return list(turns)
    kept: list[Turn] = []
    left_out: str | None = None
    for turn in turns:
        synthetic = turn.message.get("_synthetic")
        if synthetic in LEFT_OUT:
            left_out = synthetic
            continue
        answers, left_out_before = turn.role == "assistant" and left_out is not None, left_out
        left_out = None
        if answers and left_out_before == SUMMARY:
            continue
        if answers and kept and kept[-1].role == "assistant":
            kept[-1] = _joined(kept[-1], turn)
        else:
            kept.append(turn)
    return kept


def _joined(first: Turn, second: Turn) -> Turn:
    message = joined_messages(first.message, second.message)
    call = second.call
    if first.call is not None and second.call is not None:
        call = replace(second.call, usage=first.call.usage + second.call.usage, started_at=first.call.started_at)
    return Turn(message, second.at, call, first.train and second.train)


def joined_messages(first: Message, second: Message) -> Message:
    """Two pieces of one answer as one message."""
    joined = cast(Message, {**second, "content": text_of(first.get("content")) + text_of(second.get("content"))})
    for key in ("reasoning", "reasoning_details"):
        if first.get(key):
            joined = cast(Message, {**joined, key: first[key]})
    return joined


PAGE = 100
"""Items whose steps are read at once."""


def source_of(reader: JournalReader) -> ConversationSource | None:
    """What gives the conversations of a run; None if a run of its workload has none."""
    target = conversations_target(str(reader.meta("workload")))
    if target is None:
        return None
    kind: type[ConversationSource] = import_attribute(target)
    return kind(reader)


def conversations_of(source: ConversationSource, rows: Sequence[ItemRow]) -> Iterator[tuple[ItemRow, Conversation]]:
    """The conversations of a page of items, each with its item. Their steps are read by one query."""
    steps = source.reader.steps_of_items([row.number for row in rows])
    again = source.reader.usage_of_items([row.number for row in rows if row.attempt > 1])
    for row in rows:
        usage = again[row.number] if row.number in again else _used(steps[row.number])
        for conversation in source.conversations(row, steps[row.number], usage):
            yield row, conversation


def _used(steps: Iterable[RecordedStep]) -> Usage:
    return sum((Usage.from_json(dict(step.usage)) for step in steps if step.usage), ZERO)
