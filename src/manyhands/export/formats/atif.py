"""The Agent Trajectory Interchange Format (ATIF) of Harbor, versions 1.7 and 1.8, which differ in audio alone.

Tool results stand in the step of the calls that they answer (``observation``). Fields that the format does not know are forbidden, so what
it has no place for is in ``extra.manyhands`` at each level: of a trajectory, who and what it is about, scores, the source; of a step,
``train`` (false for an answer that is not to be trained on), ``synthetic``, ``finish_reason``, ``step``, ``started_at``, and ``content``
where the message does not say it exactly; of a tool call, ``arguments`` as the model wrote them where they are no JSON object; of a
result, ``failed`` and ``at``.

The judges of a conversation are its ``subagent_trajectories``, referred to by the last step. ``final_metrics`` of a trajectory count
everything that was used for its item, judges and abandoned attempts included, so that their sum over all trajectories (those inside of
others apart) is what the run used; ``final_metrics.extra.manyhands`` says what is the steps' own. Of several conversations of one item
only the first counts it, and the others have no totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manyhands.core import VERSION
from manyhands.core.jsonio import Json, finite, loads_outside
from manyhands.core.messages import Message, ToolCall, text_of
from manyhands.core.usage import ZERO, Usage
from manyhands.export.chat import NO_CONVERSATION, tool_definitions, with_thinking
from manyhands.export.conversations import Conversation, ModelCall, Turn
from manyhands.export.files import JsonLines, OneFileEach, Sink, file_name
from manyhands.export.format import Format, Losses, Unfit
from manyhands.export.settings import ExportSettings

SOURCES = {"system": "system", "user": "user", "assistant": "agent"}
IMAGE_TYPES = {"jpg": "image/jpeg", "jpeg": "image/jpeg", "png": "image/png", "gif": "image/gif", "webp": "image/webp"}
"""The types of images that there may be, by the endings of their addresses."""
AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "ogg": "audio/ogg", "aac": "audio/aac"}
"""The types of audio, by the names that chat completions have for them."""
ABOUT = (
    *("run", "run_id", "workload", "item", "key", "sample", "attempt", "label", "name", "prompt_key", "agent", "model"),
    *("simulated", "tools_changed", "parallel_tool_calls", "reason", "stop_reason", "score", "verdict", "seed"),
    *("tokens", "result"),
)
"""What ``extra.manyhands`` of a trajectory has of the conversation's fields as it is, unless it is empty."""
SPLIT = (
    "final_metrics count everything that was used for the item; extra.manyhands in them says what is not the steps' own"
)
ELSEWHERE = "final_metrics have no totals: those of the item are in the trajectory of its first conversation"
SIMULATED = "a simulated model answered"
_COUNTED = ("calls", "reasoning_tokens", "cache_write_tokens", "unpriced_calls", "simulated_calls")
"""What metrics have in ``extra``."""


class Atif(Format):
    """A folder with one JSON file for each conversation; JSON Lines if the output is called so."""

    name = "atif"
    about = "Agent Trajectory Interchange Format: one JSON file for each conversation, or JSON Lines (-o NAME.jsonl)"
    suffix = ""
    in_folder = True
    reasoning = "field"
    options = frozenset({"atif_version", "best_of"})

    def __init__(self, settings: ExportSettings, losses: Losses) -> None:
        super().__init__(settings, losses)
        if settings.output is not None and (settings.output == "-" or settings.output.endswith(".jsonl")):
            self.suffix, self.in_folder = ".jsonl", False

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        if not conversation.turns:
            raise Unfit(NO_CONVERSATION)
        others = () if self.settings.judges else [other for other in conversation.others if other.turns]
        row = self._trajectory(conversation, conversation.usage, others)
        if others:
            inner = [self._trajectory(other, other.own_usage, ()) for other in others]
            row["subagent_trajectories"] = _with_distinct_ids(inner)
            row["steps"][-1].setdefault("observation", {"results": []})["results"] += [
                {"subagent_trajectory_ref": [{"trajectory_id": each["trajectory_id"]}]} for each in inner
            ]
        yield row

    def sink(self, path: Path) -> Sink:
        return JsonLines(path) if self.suffix else OneFileEach(path, ".json", _file_name)

    def _trajectory(self, conversation: Conversation, used: Usage, judges: Sequence[Conversation]) -> dict[str, Any]:
        steps = _Steps(self.reasoning_mode, self.losses, audio=self.settings.atif_version != "1.7")
        for turn in conversation.turns:
            steps.add(turn)
        metrics, notes = _final_metrics(conversation, used, judges)
        notes += [SIMULATED] * conversation.simulated
        row: dict[str, Any] = {
            "schema_version": f"ATIF-v{self.settings.atif_version}",
            "session_id": f"{conversation.run_id}/{conversation.item}",
            "trajectory_id": conversation.trace_id,
            "agent": _agent(conversation),
            "steps": steps.steps,
        }
        if notes:
            row["notes"] = "; ".join(notes)
        return row | {
            "final_metrics": {**metrics, "total_steps": len(steps.steps)},
            "extra": {"manyhands": _about(conversation)},
        }


def _file_name(row: Mapping[str, Json]) -> str:
    about = row["extra"]["manyhands"]
    return file_name(about["item"], about["key"], about.get("name", ""))


def _agent(conversation: Conversation) -> dict[str, Any]:
    agent: dict[str, Any] = {
        "name": conversation.agent or conversation.name or "manyhands",
        "version": conversation.version or VERSION,
    }
    if conversation.model is not None:
        agent["model_name"] = conversation.model
    if conversation.tools:
        agent["tool_definitions"] = tool_definitions(conversation)
    return agent


def _about(conversation: Conversation) -> dict[str, Any]:
    values = {name: getattr(conversation, name) for name in ABOUT}
    found = {name: value for name, value in values.items() if value is not None and value is not False and value != ""}
    found |= {"item": conversation.item, "key": conversation.key, "state": conversation.state.value}
    for name in ("scores", "source"):
        if value := getattr(conversation, name):
            found[name] = value
    for name in ("started_at", "finished_at"):
        if (at := getattr(conversation, name)) is not None:
            found[name] = _time(at)
    return found


def _with_distinct_ids(trajectories: list[dict[str, Any]]) -> list[dict[str, Any]]:
    taken: set[str] = set()
    for number, each in enumerate(trajectories, 1):
        if each["trajectory_id"] in taken:
            each["trajectory_id"] += f"#{number}"
        taken.add(each["trajectory_id"])
    return trajectories


# --- Steps


class _Steps:
    """The steps of a trajectory as they are made of turns."""

    def __init__(self, reasoning: str, losses: Losses, *, audio: bool) -> None:
        self.steps: list[dict[str, Any]] = []
        self._reasoning, self._losses, self._audio = reasoning, losses, audio
        self._calls: dict[str, tuple[dict[str, Any], str]] = {}
        """By their ids: the step that has the call, and the name of its tool."""

    def add(self, turn: Turn) -> None:
        if turn.role == "tool":
            self._add_result(turn)
            return
        step = self._begun(SOURCES[turn.role], turn.at)
        extra: dict[str, Any] = {}
        message = turn.message
        step["message"] = self._content(message.get("content"))
        if turn.role == "assistant":
            self._add_answer(step, extra, turn)
        if "_given" in message:
            step["is_copied_context"] = True
        if "_synthetic" in message:
            extra["synthetic"] = message["_synthetic"]
        if extra:
            step["extra"] = {"manyhands": extra}

    def _begun(self, source: str, at: float | None) -> dict[str, Any]:
        step: dict[str, Any] = {"step_id": len(self.steps) + 1, "source": source, "message": ""}
        if at is not None:
            step["timestamp"] = _time(at)
        self.steps.append(step)
        return step

    def _add_answer(self, step: dict[str, Any], extra: dict[str, Any], turn: Turn) -> None:
        message, calls = turn.message, turn.message.get("tool_calls") or ()
        if calls and message.get("content") == "":
            extra["content"] = ""  # beside calls, an empty message stands for none
        self._add_reasoning(step, message)
        if calls:
            step["tool_calls"] = [_tool_call(call) for call in calls]
            for call in calls:
                self._calls[call["id"]] = step, call["function"]["name"]
        if turn.call is not None:
            _add_model_call(step, extra, turn.call)
        if not turn.train and "_given" not in message:
            extra["train"] = False

    def _add_reasoning(self, step: dict[str, Any], message: Message) -> None:
        thought = message.get("reasoning")
        if not thought or not thought.strip():
            return
        if self._reasoning == "field":
            step["reasoning_content"] = thought
        elif self._reasoning == "keep":
            step["message"] = with_thinking(thought, text_of(message.get("content")))
        else:
            self._losses.add("messages' reasoning")

    def _add_result(self, turn: Turn) -> None:
        """Put a result into the step of its call. One that answers no call stands in the latest step."""
        message = turn.message
        call_id, name = message.get("tool_call_id", ""), message.get("name")
        result: dict[str, Any] = {"content": self._content(message.get("content"))}
        extra: dict[str, Any] = {}
        if call_id in self._calls:
            step, expected = self._calls[call_id]
            result = {"source_call_id": call_id, **result}
        else:
            step, expected = self.steps[-1] if self.steps else self._begun("system", turn.at), None
            extra["tool_call_id"] = call_id
        if name not in (None, expected):
            extra["name"] = name
        if message.get("_failed"):
            extra["failed"] = True
        if turn.at is not None:
            extra["at"] = _time(turn.at)
        if extra:
            result["extra"] = {"manyhands": extra}
        step.setdefault("observation", {"results": []})["results"].append(result)

    def _content(self, content: Json) -> str | list[dict[str, Any]]:
        if not isinstance(content, list):
            return text_of(content)
        return [self._part(part) for part in content]

    def _part(self, part: Json) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url" and (source := _image(part.get("image_url"))) is not None:
            return {"type": "image", "source": source}
        if self._audio and kind == "input_audio" and (source := _audio(part.get("input_audio"))) is not None:
            return {"type": "audio", "source": source}
        if kind not in ("text", None):
            self._losses.add(f"content parts of the type {kind}")
        return {"type": "text", "text": text_of([part])}


def _image(given: Json) -> dict[str, Any] | None:
    """The source of an image, whose type its address says; None for a type that there must not be."""
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        return None
    if url.startswith("data:"):
        kind = url[5:].partition(";")[0].partition(",")[0]
        return {"media_type": kind, "path": url} if kind in IMAGE_TYPES.values() else None
    ending = url.partition("?")[0].partition("#")[0].rpartition(".")[2].lower()
    return {"media_type": IMAGE_TYPES.get(ending, "image/png"), "path": url}


def _audio(given: Json) -> dict[str, Any] | None:
    kind = AUDIO_TYPES.get(str(given.get("format"))) if isinstance(given, dict) else None
    if kind is None or not isinstance(given.get("data"), str):
        return None
    return {"media_type": kind, "path": f"data:{kind};base64,{given['data']}"}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = call["function"]
    arguments = _arguments(function["arguments"])
    found = {"tool_call_id": call["id"], "function_name": function["name"], "arguments": arguments or {}}
    if arguments is None:
        found["extra"] = {"manyhands": {"arguments": function["arguments"]}}
    return found


def _arguments(text: Json) -> dict[str, Json] | None:
    """Arguments as an object; None if they are something else, or hold numbers that JSON has not."""
    try:
        found = loads_outside(text)
    except (ValueError, RecursionError, TypeError, AttributeError):
        return None
    return found if isinstance(found, dict) and finite(found) == found else None


# --- What was used, and when


def _add_model_call(step: dict[str, Any], extra: dict[str, Any], call: ModelCall) -> None:
    if call.model is not None:
        step["model_name"] = call.model
    step["metrics"] = _metrics(call.usage)
    if call.usage.calls:
        step["llm_call_count"] = call.usage.calls
    if call.finish_reason is not None:
        extra["finish_reason"] = call.finish_reason
    extra |= {"step": call.step, "started_at": _time(call.started_at)}


def _metrics(usage: Usage) -> dict[str, Any]:
    found: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    if usage.cost or not usage.unpriced_calls:
        found["cost_usd"] = usage.cost
    if extra := _counted(usage):
        found["extra"] = extra
    return found


def _final_metrics(
    conversation: Conversation, used: Usage, judges: Iterable[Conversation]
) -> tuple[dict[str, Any], list[str]]:
    """The metrics of a trajectory, and what has to be said of them."""
    own = conversation.own_usage
    if used == ZERO and own != ZERO:
        return {"extra": {"manyhands": {"steps": own.to_json()}}}, [ELSEWHERE]
    metrics: dict[str, Any] = {f"total_{name}": value for name, value in _metrics(used).items() if name != "extra"}
    if extra := _counted(used):
        metrics["extra"] = extra
    if used == own:
        return metrics, []
    judged = sum((judge.own_usage for judge in judges), start=ZERO)
    split = {"steps": own, "judges": judged, "other": used.without(own + judged)}
    metrics.setdefault("extra", {})["manyhands"] = {
        name: usage.to_json() for name, usage in split.items() if usage != ZERO
    }
    return metrics, [SPLIT]


def _counted(usage: Usage) -> dict[str, int]:
    return {name: value for name in _COUNTED if (value := getattr(usage, name))}


def _time(seconds: float) -> str:
    """An instant as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
