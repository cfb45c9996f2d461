"""What a grader's program or function is given of a candidate: a JSON object, by one of two contracts, both of AgentV.

``code_judge``, the first one: ``answer`` is the text and ``output`` the target's messages. ``code_grader``, the later one: ``output`` is
the text and ``messages`` the whole conversation, the test's input first. No key of the person's own data is ever renamed.

The later one is read by graders that are written with AgentV's SDKs, which refuse what is not of the form they declare (those of 4.42
and of 5 declare the same). So what they call optional is left out where it is missing or of another type, and what they need is there:

================  ===================================================================================================================
messages          ``role`` is one of four; ``content`` is a text, an object, or a list of objects (a text in a list becomes
                  ``{"type": "text", "value": …}``); ``tool_calls`` name their ``tool``
files             parts of ``input`` and ``expected_output`` that are files have their ``path``, ``text`` and ``resolved_path``
images            ``{"type": "image", "media_type", "path"}``: what was part of the message itself is in a file
long answers      of more than ``MAX_INLINE`` characters as JSON are in a file, ``output_path``, and ``output`` is null
``trace``         ``messages``; ``events``, each with ``event_id``, ``ordinal`` and ``type``; ``tool_calls`` as counts by name; figures
================  ===================================================================================================================

Such files are there until the program has ended.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import Json, as_text, type_error
from manyhands.graders.messages import tool_name, tool_uses_of, trace_of
from manyhands.graders.protocol import Candidate, MessageJson

FIRST, LATER = "code_judge", "code_grader"
"""The contracts, by the kinds that have them."""
MAX_INLINE = 50_000
"""Characters (UTF-16, as JSON) of an answer that is not put in a file."""
_MAX_FILE = 1 << 20
"""Bytes of an input file whose text is part of the payload."""
_SDKS = re.compile(rb"""["'](@agentv/sdk|agentv)(/[\w-]+)?["']""")
"""Packages whose graders and prompts read the later contract."""
_MAX_IMPORTS = 1 << 16
"""Bytes at the beginning of a program in which they are looked for."""


@contextmanager
def handed(
    candidate: Candidate, contract: str, config: Json = None, beside: Mapping[str, Json] | None = None
) -> Iterator[bytes]:
    """What a program gets on standard input. ``config``: the entry's own keys, None if there are none; ``beside``: what else goes with
    the later contract. Raises GraderError if a file that goes with it can't be written."""
    with _Attachments() as attachments:
        if contract == LATER:
            yield encoded({**_later(candidate, config, attachments), **(beside or {})})
        else:
            yield encoded(first(candidate, config))


def identifying(candidate: Candidate, kind: str, config: Json = None) -> dict[str, Any]:
    """What a candidate is recognized by in the journal: all that either contract is made of, in the form that runs have always
    recorded for that kind of grader. No file's name is in it, as those differ each time."""
    return _known(candidate, config) if kind == LATER else first(candidate, config)


def merged(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The entry's own keys as the later contract has them: those of a mapping ``config`` beside the others."""
    inner = None if config is None else config.get("config")
    if config is None or not isinstance(inner, Mapping):
        return config
    return {**{key: value for key, value in config.items() if key != "config"}, **inner} or None


def uses_sdk(program: Path) -> bool:
    """Whether a program is written with an SDK that reads the later contract."""
    try:
        with program.open("rb") as file:
            return _SDKS.search(file.read(_MAX_IMPORTS)) is not None
    except OSError:
        return False


def encoded(payload: Json) -> bytes:
    """JSON with an indentation of two spaces, which is what the contract says, and a line break."""
    try:
        return orjson.dumps(payload, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except type_error:
        return json.dumps(payload, indent=2, ensure_ascii=True).encode() + b"\n"


def first(candidate: Candidate, config: Json) -> dict[str, Any]:
    """The payload of the first contract."""
    return {
        "question": candidate.question,
        "criteria": candidate.criteria,
        "expected_output": list(candidate.expected_output),
        "reference_answer": candidate.reference_answer,
        "answer": candidate.answer,
        "output": _messages(candidate),
        "guideline_files": [str(path) for path in candidate.guideline_files],
        "input_files": [str(path) for path in candidate.files],
        "input": list(candidate.input),
        "trace": candidate.trace,
        **_common(candidate, config),
    }


def _known(candidate: Candidate, config: Json) -> dict[str, Any]:
    return {
        "input": list(candidate.input),
        "input_files": [str(path) for path in candidate.files],
        "criteria": candidate.criteria,
        "output": candidate.answer,
        "expected_output": list(candidate.expected_output),
        "messages": _messages(candidate) or [],
        "trace": candidate.trace,
        "trace_summary": None if candidate.trace is None else _summary(candidate.trace),
        **_figures(candidate),
        "guideline_files": [str(path) for path in candidate.guideline_files],
        **_common(candidate, config),
    }


def _common(candidate: Candidate, config: Json) -> dict[str, Any]:
    return {
        "file_changes": candidate.file_changes,
        "workspace_path": None if candidate.workspace is None else str(candidate.workspace),
        "config": config,
        "test_id": candidate.test_id,
        "metadata": candidate.metadata,
    }


def _figures(candidate: Candidate) -> dict[str, Any]:
    return {
        "token_usage": candidate.token_usage,
        "cost_usd": candidate.cost_usd,
        "duration_ms": candidate.duration_ms,
    }


def _messages(candidate: Candidate) -> list[Any] | None:
    return None if candidate.output is None else list(candidate.output)


def _summary(trace: Mapping[str, Any]) -> dict[str, Any]:
    return {**trace, "tool_calls": trace.get("tool_calls_by_name") or {}}


# --- The later contract


def _later(candidate: Candidate, config: Json, attachments: _Attachments) -> dict[str, Any]:
    def sent(messages: Sequence[MessageJson], own: bool = True) -> list[dict[str, Any]]:
        return [_sent(message, candidate if own else None, attachments) for message in messages]

    messages = [*sent(_asked(candidate)), *sent(candidate.output or (), own=False)]
    summary = _figured(candidate)
    output, written = candidate.answer, json.dumps(candidate.answer, ensure_ascii=False)
    too_long = len(written) > MAX_INLINE or len(written.encode("utf-16-le", "surrogatepass")) > 2 * MAX_INLINE
    common = _common(candidate, merged(config) if isinstance(config, Mapping) else config)
    return {
        "criteria": candidate.criteria,
        "expected_output": sent(candidate.expected_output),
        "output": None if too_long else output,
        "messages": messages,
        **({"output_path": attachments.add("output.json", json.dumps(output).encode())} if too_long else {}),
        "input_files": [str(path.absolute()) for path in candidate.files],
        "input": sent(candidate.input),
        "trace": None if summary is None else _trace(candidate, summary, messages),
        "trace_summary": summary,
        **_figures(candidate),
        "token_usage": _tokens(candidate.token_usage),
        "start_time": None if summary is None else summary.get("start_time"),
        "end_time": None if summary is None else summary.get("end_time"),
        "guideline_files": [str(path.absolute()) for path in candidate.guideline_files],
        **common,
    }


def _asked(candidate: Candidate) -> Sequence[MessageJson]:
    """The messages of the test's input that stand before the target's own, as texts, where these are not a whole conversation already."""
    output = candidate.output or ()
    if any(message.get("role") in ("user", "system") for message in output):
        return ()
    asked = [{**message, "content": _as_text(message.get("content"), candidate)} for message in candidate.input]
    repeated = (
        len(asked) == 1 and output and all(asked[0].get(key) == output[0].get(key) for key in ("role", "content"))
    )
    return () if repeated else asked


def _as_text(content: Json, candidate: Candidate) -> Json:
    """The text of a message of the test's; what has parts of other kinds than texts and files stays as it is."""
    if isinstance(content, Mapping):
        return json.dumps(content, indent=2, ensure_ascii=False)
    parts = content if isinstance(content, (list, tuple)) else ()
    texts = [_text_of(part, candidate) for part in parts]
    return "\n".join(filter(None, texts)) if texts and None not in texts else content


def _text_of(part: Json, candidate: Candidate) -> str | None:
    if isinstance(part, str) or not isinstance(part, Mapping):
        return part if isinstance(part, str) else None
    value = part.get("value", part.get("text"))
    if not isinstance(value, str) or part.get("type") not in ("text", "file"):
        return None
    return value if part["type"] == "text" else f'<file: path="{_path_of(value, candidate)}">'


def _figured(candidate: Candidate) -> dict[str, Any] | None:
    """The summary of the trace, None if nothing is known of what the target did."""
    if candidate.trace is None and candidate.output is None:
        return None
    trace = trace_of(candidate.output or ()) if candidate.trace is None else candidate.trace
    return {"event_count": 0, "error_count": 0, **_summary(trace)}


def _trace(candidate: Candidate, summary: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    tokens = _tokens(candidate.token_usage)
    figures = {**_figures(candidate), "token_usage": tokens}
    return {
        **summary,
        "messages": messages,
        "events": list(_events(messages, candidate.answer, summary.get("end_time"))),
        **{name: figure for name, figure in figures.items() if figure is not None},
        "metadata": {"eval_case_id": candidate.test_id},
    }


def _tokens(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {"input": 0, "output": 0, **{name: count for name, count in usage.items() if count is not None}}


_STATUSES = ("ok", "error", "timeout", "cancelled", "unknown")


def _events(messages: Sequence[Mapping[str, Any]], answer: str, end: str | None) -> Iterator[dict[str, Any]]:
    """What happened, in order: each message with its tool calls and their results, and the last thing that the assistant said."""
    ordinal, final = 0, None
    for index, message in enumerate(messages):
        for event in _events_of(message, index):
            yield {**event, "ordinal": ordinal}
            ordinal += 1
        if message["role"] == "assistant":
            final = index
    if final is not None:
        last = messages[final]
        when = {"timestamp": last.get("end_time") or last.get("start_time") or end}
        said = {**_event_message(last), "content": answer}
        event = {"event_id": "final-response", "parent_event_id": f"message-{final}", "ordinal": ordinal}
        yield _known_only(
            {**event, "type": "final_response", **when, "message": said, "metadata": {"message_index": final}}
        )


def _events_of(message: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    own = f"message-{index}"
    yield _known_only(
        {
            "event_id": own,
            "type": "message",
            **_when(message),
            "message": _event_message(message),
            "metadata": {"message_index": index},
        }
    )
    for number, call in enumerate(message.get("tool_calls") or ()):
        event_id, at = f"{own}-tool-{number}", {"message_index": index, "tool_index": number}
        result = {
            "name": call["tool"],
            "call_id": call.get("id"),
            "output": call.get("output"),
            "status": call.get("status") if call.get("status") in _STATUSES else "ok",
        }
        tool = _known_only({**result, "input": call.get("input")})
        event = {"event_id": event_id, "parent_event_id": own, "type": "tool_call", **_when(call)}
        yield _known_only({**event, "tool": tool, "metadata": at})
        if call.get("output") is not None:
            ended = {"parent_event_id": event_id, "type": "tool_result", "timestamp": call.get("end_time")}
            yield _known_only({"event_id": f"{event_id}-result", **ended, "tool": _known_only(result), "metadata": at})


def _when(part: Mapping[str, Any]) -> dict[str, Any]:
    duration = part.get("duration_ms")
    known = duration is not None and duration >= 0
    return {"timestamp": part.get("start_time"), "duration_ms": duration if known else None}


def _event_message(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("role", "name", "content", "metadata") if name in message}


def _known_only(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if part is not None}


# --- Messages of the later contract

_ROLES = {"assistant": "assistant", "user": "user", "system": "system", "tool": "tool"}
_ROLES |= {"developer": "system", "function": "tool"}
_IMAGE = re.compile(r"data:([^;,]+);base64,(.+)", re.DOTALL)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _declared(**kinds: Callable[[Any], bool]) -> dict[str, Callable[[Any], bool]]:
    """Optional keys and what their values must be, as they are written and as the SDK spells them."""
    return {**kinds, **{re.sub(r"_(\w)", lambda found: found[1].upper(), name): kind for name, kind in kinds.items()}}


_TIMES = {"start_time": _is_text, "end_time": _is_text, "duration_ms": _is_number}
_OF_MESSAGE = _declared(
    **_TIMES,
    content=lambda value: value is not None,
    tool_calls=lambda value: isinstance(value, (list, tuple)),
    name=_is_text,
    metadata=lambda value: isinstance(value, Mapping),
)
_OF_CALL = _declared(**_TIMES, id=_is_text)


def _sent(message: MessageJson, candidate: Candidate | None, attachments: _Attachments) -> dict[str, Any]:
    """A message as the later contract has it. ``candidate``: whose test the message is of, for its files; None for a target's."""
    sent = {**_fitting(message, _OF_MESSAGE), "role": _ROLES.get(str(message.get("role")), "assistant")}
    for name in ("tool_calls", "toolCalls"):
        if name in sent:
            sent[name] = [_sent_call(call) for call in sent[name] if isinstance(call, Mapping)]
    content = sent.get("content")
    if isinstance(content, (list, tuple)):
        sent["content"] = [_sent_part(part, candidate, attachments) for part in content]
    elif "content" in sent and not isinstance(content, (str, Mapping)):
        sent["content"] = as_text(content)
    return sent


def _fitting(value: Mapping[str, Any], kinds: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if name not in kinds or kinds[name](part)}


def _sent_call(call: Mapping[str, Any]) -> dict[str, Any]:
    sent = _fitting(call, _OF_CALL)
    use = next(iter(tool_uses_of(({"tool_calls": [call]},))), None)
    if "input" not in call and use is not None and use.input is not None:
        sent["input"] = use.input
    return {**sent, "tool": tool_name(call) or ""}


def _sent_part(part: Json, candidate: Candidate | None, attachments: _Attachments) -> Any:
    if not isinstance(part, Mapping):
        return {"type": "text", "value": as_text(part)}
    if part.get("type") == "image":
        return _image(part, candidate, attachments)
    if candidate is not None and part.get("type") == "file" and isinstance(part.get("value"), str):
        return _file(part, candidate)
    return part


def _file(part: Mapping[str, Any], candidate: Candidate) -> Mapping[str, Any]:
    """A file of a test's, with its text if it can be read and is not too long."""
    path = _path_of(part["value"], candidate)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except (OSError, ValueError):
        return part
    if len(data) > _MAX_FILE:
        return {**part, "path": part["value"], "resolved_path": str(path)}
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return {**part, "path": part["value"], "text": text, "resolved_path": str(path)}


def _image(part: Mapping[str, Any], candidate: Candidate | None, attachments: _Attachments) -> Mapping[str, Any]:
    source = part.get("source")
    named = part.get("value") if source is None else source
    if not isinstance(named, str):
        return part
    inline = _IMAGE.fullmatch(named)
    path: str | None
    if inline is not None:
        path, kind = attachments.image(inline[2], inline[1]), inline[1]
    else:
        path = named if source is not None or candidate is None else str(_path_of(named, candidate))
        kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    if path is None:
        return part
    given = part.get("media_type")
    return {"type": "image", "media_type": given if isinstance(given, str) else kind, "path": path}


def _path_of(named: str, candidate: Candidate) -> Path:
    """The file that a test names: among its files, or else from the eval file's folder."""
    end = Path(named.removeprefix("/")).parts
    ends = [path for path in candidate.files if path.parts[-len(end) :] == end]
    return (ends[0] if ends else candidate.folder / named).absolute()


class _Attachments:
    """Files that go with a payload, in a folder that is made for the first of them and removed on leaving."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._images = 0

    def __enter__(self) -> _Attachments:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, name: str, data: bytes) -> str:
        """The path of a new file. Raises GraderError if it can't be written."""
        try:
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="manyhands-grader-", ignore_cleanup_errors=True)
            path = Path(self._folder.name, name)
            path.write_bytes(data)
        except OSError as error:
            raise GraderError(f"can't write {name} for the grader's program: {error.strerror}") from error
        return str(path)

    def image(self, data: str, media_type: str) -> str | None:
        """The path of a new file with an image; None for what is no base64. Raises GraderError if it can't be written."""
        ending = re.sub(r"\W.*", "", media_type.partition("/")[2]) or "bin"
        try:
            content = base64.b64decode(data)
        except binascii.Error:
            return None
        self._images += 1
        return self.add(f"image-{self._images}.{'jpg' if ending == 'jpeg' else ending}", content)
