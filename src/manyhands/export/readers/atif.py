"""The Agent Trajectory Interchange Format (ATIF) of Harbor, versions 1.0 to 1.8: one trajectory a file or line, folders of such, and the
job folders of Harbor, whose trials have one each.

What this program's own export has in ``extra.manyhands`` is read back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, loads_outside
from manyhands.core.messages import Message, ToolCall
from manyhands.core.outcomes import ItemState
from manyhands.core.usage import MAX_COST, ZERO, Usage
from manyhands.export.conversations import Conversation, ModelCall, Turn
from manyhands.export.files import SUMMARY
from manyhands.export.readers.chat import Calls, apart, begun, ending_of, prompt_key, tool_definitions
from manyhands.export.readers.fields import BadRow, Field
from manyhands.export.readers.files import data_files, files_in
from manyhands.export.readers.reader import MAX_ID, Reader, other_fields
from manyhands.io.tables.base import MAX_VALUE

_VERSION = re.compile(r"ATIF-v1\.[0-8]")
_ROLES: Mapping[str, str] = {"system": "system", "user": "user", "agent": "assistant"}
_OWN = "manyhands"
_TRAJECTORY, _RESULT = ("agent", "trajectory.json"), "result.json"
"""Where a trial of a Harbor job has its trajectory and what came of it."""
_TOTALS: Mapping[str, str] = {
    "total_prompt_tokens": "input_tokens",
    "total_completion_tokens": "output_tokens",
    "total_cached_tokens": "cached_tokens",
}
_METRICS: Mapping[str, str] = {name.removeprefix("total_"): ours for name, ours in _TOTALS.items()}
_COUNTED = ("calls", "reasoning_tokens", "cache_write_tokens", "unpriced_calls", "simulated_calls")
_TEXTS = ("run", "run_id", "workload", "label", "name", "prompt_key")
_OPTIONAL_TEXTS = ("agent", "model", "reason", "stop_reason", "verdict")
_KEPT = ("session_id", "notes", "continued_trajectory_ref", "extra")
"""Fields of others' trajectories that are kept as they are."""
_AUDIO: Mapping[str, str] = {
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
    "audio/aac": "aac",
}


class AtifReader(Reader):
    """Trajectories of ATIF."""

    name = "atif"
    about = "Agent Trajectory Interchange Format: files, folders of files, job folders of Harbor"

    def files(self, path: Path) -> Iterator[Path]:
        """In a folder: the trajectories of a job's trials, if there are any, else all its JSON files, else its files of rows."""
        if not path.is_dir():
            yield path
            return
        trials = files_in(path, lambda each: each.parts[-2:] == _TRAJECTORY)
        yield from (
            trials or files_in(path, lambda each: each.suffix == ".json" and each.name != SUMMARY) or data_files(path)
        )

    def conversation(self, row: Field, path: Path) -> Conversation:
        found = read_trajectory(row)
        trial = path.parent.parent / _RESULT
        if path.parts[-2:] == _TRAJECTORY and trial.is_file():
            _add_result(found, trial)
        if self.id_field is not None or not found.key:
            found.key = self.row_id(row)[0] or row.get("session_id").optional_text() or ""
        return found


def _add_result(found: Conversation, path: Path) -> None:
    """What a trial of Harbor came to: its task is what the trials of two jobs have in common."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_VALUE + 1)
        result = Field(loads_outside(data) if len(data) <= MAX_VALUE else None, _RESULT)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise BadRow(f"{_RESULT}: not JSON: {error}") from None
    for name in ("task_name", "trial_name"):
        if text := result.get(name).optional_text():
            found.source = {**found.source, name: text}
            found.key = found.key if name == "trial_name" and found.key else text[:MAX_ID]
    rewards = _inner(result.get("verifier_result"), "rewards")
    if not rewards.given:
        return
    scores = {name: rewards.get(name).number() for name in rewards.members()}
    found.scores = [
        {"name": name, "score": score, "verdict": "", "hits": [], "misses": []}
        for name, score in scores.items()
        if score is not None and 0 <= score <= 1
    ]
    main = scores.get("reward", next(iter(scores.values()), None))
    if main is not None and 0 <= main <= 1:
        found.score = main


def _inner(field: Field, name: str) -> Field:
    """A field of an object that need not be there."""
    return field.get(name) if field.given else Field(None, f"{field.path}.{name}")


def read_trajectory(row: Field) -> Conversation:
    """The conversation of a trajectory. Raises BadRow."""
    version = row.get("schema_version").text()
    if not _VERSION.fullmatch(version):
        raise row.get("schema_version").error(f"must be ATIF-v1.0 to ATIF-v1.8, not {version[:40]!r}")
    agent, own = row.get("agent"), _own(row)
    model = agent.get("model_name").optional_text()
    steps = _Steps(model, is_own=own.given)
    for step in row.get("steps").elements():
        steps.add(step)
    if not steps.turns:
        raise row.get("steps").error("has no steps")
    found = begun()
    found.turns, found.tools, found.model = steps.turns, tool_definitions(agent.get("tool_definitions")), model
    found.others = [_other(each) for each in row.get("subagent_trajectories").elements()]
    found.usage = _total_usage(row.get("final_metrics"), steps.turns, is_own=own.given)
    if own.given:
        _add_own(found, own, agent)
        return found
    found.stop_reason = ending_of(steps.turns)
    found.key = row.get("trajectory_id").optional_text() or ""
    found.agent = agent.get("name").text()
    times = [turn.at for turn in steps.turns if turn.at is not None]
    found.started_at, found.finished_at = (min(times), max(times)) if times else (None, None)
    found.source = {name: value for name, value in other_fields(row).items() if name in _KEPT}
    return found


def _other(field: Field) -> Conversation:
    """A conversation that took place for another. What it used is part of what that says it used."""
    found = read_trajectory(field)
    found.prompt_key = found.prompt_key or prompt_key(found.turns)
    found.name = found.name or field.get("trajectory_id").optional_text() or found.agent or ""
    found.usage = ZERO
    return found


def _own(field: Field) -> Field:
    """What this program's export has in ``extra``."""
    found = _inner(field.get("extra"), _OWN)
    if found.given:
        found.members()
    return found


def _add_own(found: Conversation, own: Field, agent: Field) -> None:
    """What a trajectory of this program says of its conversation."""
    for name in _TEXTS:
        setattr(found, name, own.get(name).optional_text() or "")
    for name in _OPTIONAL_TEXTS:
        setattr(found, name, own.get(name).optional_text())
    found.key = own.get("key").optional_text() or ""
    found.item = own.get("item").whole() or 0
    found.sample = own.get("sample").whole() or 0
    found.attempt = own.get("attempt").whole() or 0
    found.simulated, found.tools_changed = own.get("simulated").flag(), own.get("tools_changed").flag()
    if own.get("state").given:
        found.state = ItemState(own.get("state").one_of(*(each.value for each in ItemState)))
    if own.get("parallel_tool_calls").given:
        found.parallel_tool_calls = own.get("parallel_tool_calls").flag()
    found.score = own.get("score").number(0, 1)
    found.scores = [dict(each.members()) for each in own.get("scores").elements()]
    found.seed, found.tokens = own.get("seed").whole(0, 2**63), own.get("tokens").whole()
    found.started_at, found.finished_at = own.get("started_at").date(), own.get("finished_at").date()
    found.result = own.get("result").value
    found.version = agent.get("version").optional_text()
    if own.get("source").given:
        found.source = dict(own.get("source").members())


# --- Steps


class _Steps:
    """The turns of a trajectory as they are made of its steps."""

    def __init__(self, model: str | None, *, is_own: bool) -> None:
        self.turns: list[Turn] = []
        self._model, self._is_own = model, is_own
        self._calls = Calls()
        self._names: dict[str, str] = {}
        self._number = 0

    def add(self, step: Field) -> None:
        """Add what a step says: its message, and the results in its observation."""
        self._number += 1
        role, own, at = _ROLES[step.get("source").one_of(*_ROLES)], _own(step), step.get("timestamp").date()
        message = cast(Message, {"role": role, "content": _content(step.get("message"))})
        given = step.get("is_copied_context").flag()
        if given:
            message["_given"] = True
        if own.given and own.get("synthetic").given:
            message["_synthetic"] = own.get("synthetic").text()
        turn = Turn(message, at)
        if role == "assistant":
            self._answer(turn, step, own, given=given)
        self.turns.append(turn)
        for result in _inner(step.get("observation"), "results").elements():
            self._add_result(result, at)

    def _answer(self, turn: Turn, step: Field, own: Field, *, given: bool) -> None:
        message = turn.message
        self._calls.begin_turn()
        if thought := step.get("reasoning_content").optional_text():
            message["reasoning"] = thought
        elif not self._is_own and isinstance(message["content"], str):
            thought, message["content"] = apart(message["content"])
            if thought:
                message["reasoning"] = thought
        calls = [self._tool_call(each) for each in step.get("tool_calls").elements()]
        if calls:
            message["tool_calls"] = calls
            if message["content"] == "" and not (own.given and own.get("content").given):
                message["content"] = None
        count, metrics = step.get("llm_call_count").whole(), step.get("metrics")
        said = own.get("train") if own.given else Field(None)
        turn.train = not given and (said.flag() if said.given else self._is_own or count != 0)
        if metrics.given:
            turn.call = self._model_call(step, own, metrics, count, turn.at)

    def _tool_call(self, field: Field) -> ToolCall:
        own, name, arguments = _own(field), field.get("function_name").text(), field.get("arguments")
        value: Json = arguments.members() if arguments.given else {}
        if own.given and own.get("arguments").given:
            value = own.get("arguments").text()
        call = self._calls.made(name, value, field.get("tool_call_id").optional_text())
        self._names[call["id"]] = name
        return call

    def _model_call(self, step: Field, own: Field, metrics: Field, count: int | None, at: float | None) -> ModelCall:
        usage = _usage(metrics, _METRICS, "cost_usd", count, is_own=self._is_own)
        own = own if own.given else Field({})
        finished = at or next((turn.at for turn in reversed(self.turns) if turn.at is not None), 0.0)
        started = own.get("started_at").date()
        return ModelCall(
            own.get("step").optional_text() or f"/{self._number - 1}",
            step.get("model_name").optional_text() or (None if self._is_own else self._model),
            usage,
            finished if started is None else started,
            finished,
            own.get("finish_reason").optional_text(),
        )

    def _add_result(self, result: Field, at: float | None) -> None:
        """A result of a call, or what the agent observed without having called a tool, which it is told as a user's message."""
        content, call_id, own = result.get("content"), result.get("source_call_id").optional_text(), _own(result)
        if not content.given and call_id is None and result.get("subagent_trajectory_ref").given:
            return
        said = _content(content) if content.given else ""
        if own.given:
            call_id = call_id or own.get("tool_call_id").optional_text() or ""
            at = own.get("at").date()
        elif call_id is None and not self._calls.waiting:
            self.turns.append(Turn(cast(Message, {"role": "user", "content": said}), at))
            return
        call_id = call_id if own.given else self._calls.answered(call_id, None)
        message: Message = {"role": "tool", "tool_call_id": call_id or "", "content": said}
        name = own.get("name").optional_text() if own.given else None
        if name or call_id in self._names:
            message["name"] = name or self._names[call_id or ""]
        if own.given and own.get("failed").flag():
            message["_failed"] = True
        self.turns.append(Turn(message, at))


def _content(field: Field) -> Json:
    """A message or a result: text, or parts."""
    if not isinstance(field.value, list):
        return field.text()
    return [_part(each) for each in field.elements()]


def _part(field: Field) -> dict[str, Any]:
    kind = field.get("type").one_of("text", "image", "audio")
    if kind == "text":
        return {"type": "text", "text": field.get("text").text()}
    source = field.get("source")
    path, media = source.get("path").text(), source.get("media_type").text()
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": path}}
    begin = f"data:{media};base64,"
    if media in _AUDIO and path.startswith(begin):
        return {"type": "input_audio", "input_audio": {"data": path.removeprefix(begin), "format": _AUDIO[media]}}
    return {"type": "audio", "source": {"media_type": media, "path": path}}


# --- What was used


def _usage(metrics: Field, names: Mapping[str, str], cost_name: str, calls: int | None, *, is_own: bool) -> Usage:
    """What metrics count. Of others', a call without a cost is one whose cost nobody knows."""
    counts = {ours: metrics.get(name).whole() or 0 for name, ours in names.items()}
    extra, cost = metrics.get("extra"), metrics.get(cost_name).number(0, MAX_COST)
    if is_own:
        counts |= {name: _inner(extra, name).whole() or 0 for name in _COUNTED}
    else:
        counts["calls"] = 1 if calls is None else calls
        counts["unpriced_calls"] = counts["calls"] if cost is None else 0
    return Usage(**counts, cost=cost or 0.0)


def _total_usage(metrics: Field, turns: list[Turn], *, is_own: bool) -> Usage:
    """What the whole of a trajectory used: its totals, or where there are none, the sum of its steps."""
    own = sum((turn.call.usage for turn in turns if turn.call is not None), start=ZERO)
    if is_own:
        return _usage(metrics, _TOTALS, "total_cost_usd", None, is_own=True) if metrics.given else ZERO
    if not metrics.given or not any(metrics.get(name).given for name in (*_TOTALS, "total_cost_usd")):
        return own
    calls = own.calls or sum(turn.role == "assistant" for turn in turns)
    return _usage(metrics, _TOTALS, "total_cost_usd", calls, is_own=False)
