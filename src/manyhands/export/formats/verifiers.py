"""The results of Prime Intellect's verifiers: traces of its version 1 (``traces.jsonl``, an episode a line), or the rollouts of its earlier
interface (``results.jsonl`` with ``metadata.json``), which verifiers 0.3 is the last to read.

An episode is a conversation with the conversations of its judges, each a trace. Its messages are a chain of nodes; those that a model may
be trained on are ``sampled``. What verifiers has no field for is in ``info.manyhands``. What the item used beside these calls (in abandoned
attempts, in further conversations) is in ``extra_usage`` of the first trace.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json, dumps
from manyhands.core.messages import text_of
from manyhands.core.outcomes import ItemState
from manyhands.core.usage import ZERO, Usage
from manyhands.export.chat import NO_CONVERSATION, chat_messages, tool_definitions
from manyhands.export.conversations import Conversation, ModelCall, Turn
from manyhands.export.files import JsonLines, Sink
from manyhands.export.format import Format, Unfit

TRACE_VERSION = 1
"""Of verifiers 0.3 and 0.4."""
STOP_CONDITIONS = {
    "answered": "agent_completed",
    "truncated": "max_output_tokens",
    "context_overflow": "max_input_tokens",
}
"""What verifiers calls some of our reasons to stop; it takes any other word."""
FINISH_REASONS = frozenset({"stop", "length", "tool_calls"})
PARTS = ("text", "image_url")
"""The content parts that messages may have."""
UNSCORED = "missing scores (the reward is 0)"


class Verifiers(Format):
    """A folder with the file that verifiers reads, or one for each split."""

    name = "verifiers"
    about = "verifiers: traces.jsonl of version 1, or results.jsonl of version 0"
    suffix = ""
    in_folder = True
    reasoning = "field"
    options = frozenset({"verifiers_version", "best_of"})

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        if not conversation.turns:
            raise Unfit(NO_CONVERSATION)
        yield self._rollout(conversation) if self.settings.verifiers_version == "v0" else self._episode(conversation)

    def sink(self, path: Path) -> Sink:
        path.mkdir(exist_ok=True)
        return _Rollouts(path) if self.settings.verifiers_version == "v0" else JsonLines(path / "traces.jsonl")

    # --- Version 1

    def _episode(self, conversation: Conversation) -> dict[str, Any]:
        judges = [] if self.settings.judges else [other for other in conversation.others if other.turns]
        task = self._task(conversation)
        traces = [self._trace(each, task) for each in (conversation, *judges)]
        traces[0] |= {"rewards": _rewards(conversation), "metrics": _metrics(conversation)}
        recorded = sum((each.own_usage for each in judges), start=conversation.own_usage)
        if (beside := _beside(conversation.usage, recorded)) is not None:
            traces[0]["extra_usage"] = [beside]
        return {
            "id": conversation.trace_id,
            "env": {"id": conversation.workload, "name": conversation.run},
            "task": task,
            "group": {"id": conversation.prompt_key},
            "ok": traces[0]["ok"],
            "errors": traces[0]["errors"],
            "traces": traces,
        }

    def _task(self, conversation: Conversation) -> dict[str, Any]:
        first = next((turn for turn in conversation.turns if turn.role == "user"), None)
        system = next((turn for turn in conversation.turns if turn.role == "system"), None)
        data: dict[str, Any] = {"id": conversation.key, "name": conversation.label}
        if first is not None:
            data["prompt"] = text_of(first.message.get("content"))
        if system is not None:
            data["system_prompt"] = text_of(system.message.get("content"))
        if conversation.source:
            data["source"] = dict(conversation.source)
        return {"type": "Task", "data": data, "key": conversation.prompt_key}

    def _trace(self, conversation: Conversation, task: Mapping[str, Json]) -> dict[str, Any]:
        started, finished = conversation.started_at or 0.0, conversation.finished_at or 0.0
        agent: dict[str, Any] = {"config": {}, "name": conversation.agent or conversation.name or "agent"}
        agent["trainable"] = not conversation.name
        if conversation.model is not None:
            agent["config"] = {"model": conversation.model}
        tools = [_tool(tool) for tool in tool_definitions(conversation)]
        is_completed = conversation.state is ItemState.COMPLETED
        why = conversation.reason or conversation.state.value
        return {
            "version": TRACE_VERSION,
            "id": conversation.trace_id,
            "task": task,
            "agent": agent,
            "tools": tools,
            "nodes": self._nodes(conversation, tools, started),
            "calls": [
                _call(number, turn.call) for number, turn in enumerate(conversation.turns) if turn.call is not None
            ],
            "rewards": {},
            "metrics": {},
            "info": {"manyhands": _about(conversation)},
            "is_completed": conversation.stop_reason is not None,
            "ok": is_completed,
            "stop_condition": _stop_condition(conversation),
            "errors": [] if is_completed else [{"type": why, "message": why}],
            "timing": {"start": started, "agent": {"start": started, "end": finished}},
        }

    def _nodes(self, conversation: Conversation, tools: list[dict[str, Any]], at: float) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = []
        messages = chat_messages(conversation.turns, self.reasoning_mode, self.losses)
        for number, (turn, message) in enumerate(zip(conversation.turns, messages, strict=True)):
            at = at if turn.at is None else turn.at
            node = {"message": self._message(message), "sampled": turn.train, "timestamp": at}
            if number:
                node["parent"] = number - 1
            elif tools:
                node["tools"] = tools
            nodes.append(node)
        return nodes

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message of chat completions as verifiers has it."""
        content = message["content"]
        if isinstance(content, list):
            kept = [part for part in content if isinstance(part, dict) and part.get("type") in PARTS]
            self.losses.add("content parts that are neither text nor images", len(content) - len(kept))
            message["content"] = text_of(content) if message["role"] == "assistant" else [_part(part) for part in kept]
        elif content is None and message["role"] != "assistant":
            message["content"] = ""
        if "tool_calls" in message:
            message["tool_calls"] = [
                {"id": call["id"], "type": "function", **call["function"]} for call in message["tool_calls"]
            ]
        return message

    # --- Version 0

    def _rollout(self, conversation: Conversation) -> dict[str, Any]:
        messages = [
            _with_calls_as_text(self._message(message))
            for message in chat_messages(conversation.turns, self.reasoning_mode, self.losses)
        ]
        first = next((at for at, turn in enumerate(conversation.turns) if _is_answer(turn)), len(messages))
        self.losses.add(UNSCORED, conversation.score is None)
        started, finished = conversation.started_at or 0.0, conversation.finished_at or 0.0
        digest = hashlib.blake2b(conversation.prompt_key.encode(), digest_size=6).digest()
        info: dict[str, Any] = {"manyhands": _about(conversation)}
        if conversation.source:
            info["source"] = dict(conversation.source)
        return {
            "example_id": int.from_bytes(digest, "big"),
            "prompt": messages[:first],
            "completion": messages[first:],
            "reward": conversation.score or 0.0,
            "error": _error(conversation),
            "timing": {
                "start_time": started,
                "generation": {"start": started, "end": finished},
                "scoring": {"start": finished, "end": finished},
            },
            "is_completed": conversation.stop_reason is not None,
            "is_truncated": conversation.truncated,
            "stop_condition": _stop_condition(conversation),
            "metrics": _metrics(conversation),
            "tool_defs": [_tool(tool) for tool in tool_definitions(conversation)] or None,
            "token_usage": {
                "input_tokens": float(conversation.usage.input_tokens),
                "output_tokens": float(conversation.usage.output_tokens),
            },
            "info": info,
        }


class _Rollouts(JsonLines):
    """``results.jsonl``, and at its end ``metadata.json``, without which verifiers takes a folder for no results."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "results.jsonl")
        self._metadata = folder / "metadata.json"
        self._examples: Counter[int] = Counter()
        self._reward, self._errors, self._tokens = 0.0, 0, [0.0, 0.0]
        self._runs: dict[str, None] = {}
        self._models: dict[str, None] = {}

    def write(self, row: Mapping[str, Json]) -> None:
        super().write(row)
        about = row["info"]["manyhands"]
        self._runs[about["run"]] = None
        self._models[str(about["model"])] = None
        self._examples[row["example_id"]] += 1
        self._reward += row["reward"]
        self._errors += row["error"] is not None
        for at, name in enumerate(("input_tokens", "output_tokens")):
            self._tokens[at] += row["token_usage"][name]

    def close(self) -> None:
        super().close()
        metadata = {
            "env_id": ",".join(self._runs),
            "env_args": {},
            "model": ",".join(self._models),
            "base_url": "",
            "num_examples": len(self._examples),
            "rollouts_per_example": max(self._examples.values(), default=0),
            "sampling_args": {},
            "time": 0.0,
            "avg_reward": self._reward / max(1, self.rows),
            "avg_metrics": {},
            "avg_error": self._errors / max(1, self.rows),
            "pass_at_k": {},
            "pass_all_k": {},
            "pass_threshold": 0.5,
            "usage": {"input_tokens": self._tokens[0], "output_tokens": self._tokens[1]},
            "version_info": {"vf_version": "", "vf_commit": None, "env_version": None, "env_commit": None},
            "state_columns": [],
            "tools": None,
        }
        with self._metadata.open("xb") as file:
            file.write(dumps(metadata) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _is_answer(turn: Turn) -> bool:
    return turn.role == "assistant" and "_given" not in turn.message


def _stop_condition(conversation: Conversation) -> str | None:
    return STOP_CONDITIONS.get(conversation.stop_reason or "", conversation.stop_reason)


def _error(conversation: Conversation) -> dict[str, str] | None:
    if conversation.state is ItemState.COMPLETED:
        return None
    why = conversation.reason or conversation.state.value
    return dict.fromkeys(("error", "message", "error_chain_repr", "error_chain_str"), why)


def _with_calls_as_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message as rollouts have it: each call as JSON text, and no content but text."""
    if "tool_calls" in message:
        message["tool_calls"] = [dumps(call).decode() for call in message["tool_calls"]]
    return message | {"content": message["content"] or ""}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    return {
        "type": "function",
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {},
    }


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": text_of([part])}
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return {"type": "image_url", "image_url": {"url": url if isinstance(url, str) else ""}}


def _call(node: int, call: ModelCall) -> dict[str, Any]:
    return {
        "node": node,
        "model": call.model,
        "finish_reason": call.finish_reason if call.finish_reason in FINISH_REASONS else None,
        "usage": _usage(call.usage),
        "time": {"start": call.started_at, "end": call.finished_at},
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens - usage.cached_tokens,
        "completion_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cost": usage.cost if usage.cost or not usage.unpriced_calls else None,
    }


def _beside(whole: Usage, recorded: Usage) -> dict[str, Any] | None:
    """What was used beside the recorded calls; None if that is nothing."""
    rest = whole.without(recorded)
    return None if whole == ZERO or rest == ZERO else _usage(rest)


def _rewards(conversation: Conversation) -> dict[str, Any]:
    return {} if conversation.score is None else {"score": {"score": conversation.score, "weight": 1.0}}


def _metrics(conversation: Conversation) -> dict[str, float | None]:
    """The score of each grader by its name; of several with one name, the last."""
    return {str(score.get("name")): score.get("score") for score in conversation.scores}


def _about(conversation: Conversation) -> dict[str, Any]:
    return {
        "run": conversation.run,
        "run_id": conversation.run_id,
        "item": conversation.item,
        "key": conversation.key,
        "sample": conversation.sample,
        "attempt": conversation.attempt,
        "name": conversation.name,
        "model": conversation.model,
        "simulated": conversation.simulated,
        "state": conversation.state.value,
        "verdict": conversation.verdict,
        "scores": [dict(score) for score in conversation.scores],
        "usage": conversation.usage.to_json(),
    }
