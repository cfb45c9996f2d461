"""The master log: everything that happens in a conversation, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.io.files import MAX_READ, open_inside
from manyhands.workloads.memory.conversation.definitions import Json


class EventType(IntEnum):
    """What happened; the numbers are those of the log."""

    SEND_MESSAGE = 0
    BEGIN = 1
    END = 2
    SEND_FILL = 3
    RESPONSE_MESSAGE = 4
    RESPONSE_FILL = 5
    WAIT = 6
    SUITE_RESET = 7
    LLM_CALL = 8
    REGISTER_CALLBACK = 9
    DEREGISTER_CALLBACK = 10


SENDS = (EventType.SEND_MESSAGE, EventType.SEND_FILL)
RESPONSES = (EventType.RESPONSE_MESSAGE, EventType.RESPONSE_FILL)
MESSAGES = SENDS + RESPONSES

LATEST = 250_000_000_000
"""Seconds since 1970 that no event's time reaches; a little later, the calendar of Python ends."""

_FIELDS: Mapping[EventType, Mapping[str, type]] = {
    **{kind: {"message": str} for kind in MESSAGES},
    EventType.WAIT: {"tokens": int, "time": float},
    EventType.LLM_CALL: {"response": str},
}
"""What the data of an event must hold. Logs of older versions hold less of the rest, so nothing else is required."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    type: EventType
    timestamp: float
    """Virtual time, in seconds since 1970 UTC."""
    test_id: str
    """Empty where no test is concerned."""
    data: Mapping[str, Json] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The text of a message or a reply; empty for other events."""
        return str(self.data.get("message", ""))

    @property
    def is_question(self) -> bool:
        return bool(self.data.get("is_question", False))


def format_event(event: Event) -> str:
    """The event as a line of the log, without its newline; what the GoodAI LTM Benchmark writes, byte for byte."""
    fields = {
        "type": int(event.type),
        "timestamp": event.timestamp,
        "test_id": event.test_id,
        "data": dict(event.data),
    }
    return json.dumps(fields)


def parse_event(line: str, location: str) -> Event:
    """An event from its line. Raises UserError, beginning with ``location``, that names the field which is wrong."""
    try:
        found = loads(line)
    except ValueError:
        raise UserError(f"{location}: not a JSON object") from None
    if not isinstance(found, dict):
        raise UserError(f"{location}: not a JSON object")
    kind = _kind(found.get("type"), location)
    timestamp, test_id, data = found.get("timestamp"), found.get("test_id"), found.get("data")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        raise UserError(f"{location}: timestamp: not a number")
    if not abs(timestamp) < LATEST:
        raise UserError(f"{location}: timestamp: not a time in seconds since 1970")
    if not isinstance(test_id, str):
        raise UserError(f"{location}: test_id: not a text")
    if not isinstance(data, dict):
        raise UserError(f"{location}: data: not an object")
    for name, wanted in _FIELDS.get(kind, {}).items():
        _check_field(data, name, wanted, location)
    if kind is EventType.BEGIN and "tokens" in data:
        _check_field(data, "tokens", int, location)
    return Event(kind, float(timestamp), test_id, data)


def _kind(number: Json, location: str) -> EventType:
    if isinstance(number, bool) or not isinstance(number, int) or number not in EventType.__members__.values():
        raise UserError(f"{location}: type: not the number of an event (0 to {max(EventType):d})")
    return EventType(number)


def _check_field(data: Mapping[str, Json], name: str, wanted: type, location: str) -> None:
    value = data.get(name)
    accepted: tuple[type, ...] = (int, float) if wanted is float else (wanted,)
    if isinstance(value, bool) or not isinstance(value, accepted):
        described = {str: "a text", int: "a whole number", float: "a number"}[wanted]
        raise UserError(f"{location}: data.{name}: not {described}")


MAX_LOG_BYTES = 200_000_000
"""Bytes of a log that are read of a run folder that anybody may have made."""


def read_master_log(path: Path, within: Path | None = None) -> list[Event]:
    """All events of a log. ``within``: the folder of a log that nobody knows who wrote, which is read as ``open_inside`` does. Raises
    UserError that names file and line where the file is missing or too long, or a line is no event."""
    try:
        with path.open("rb") if within is None else open_inside(within, path) as file:
            if within is not None and os.fstat(file.fileno()).st_size > MAX_LOG_BYTES:
                raise UserError(f"{path}: longer than {MAX_LOG_BYTES:,} bytes")
            lines = enumerate(_lines(file), start=1)
            return [parse_event(line.decode(), f"{path}, line {number}") for number, line in lines if line.strip()]
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read: {error}") from None


def events_so_far(path: Path) -> tuple[list[Event], str]:
    """The events of a log that may still be written, up to the first line that is none, and what is wrong with that line; empty if nothing
    is. A last line that has not been written to its end is left out, and a log that isn't there has no events. ``path``: of a run folder
    that anybody may have made."""
    found: list[Event] = []
    try:
        with open_inside(path.parent, path) as file:
            for number, line in enumerate(_lines(file), start=1):
                if file.tell() > MAX_LOG_BYTES:
                    return found, f"{path.name}: longer than {MAX_LOG_BYTES:,} bytes"
                if not line.strip():
                    continue
                try:
                    found.append(parse_event(line.decode("utf-8", "replace"), f"{path.name}, line {number}"))
                except UserError as error:
                    return found, str(error) if line.endswith(b"\n") or len(line) == MAX_READ else ""
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        return found, f"{path}: can't be read: {error.strerror or error}"
    return found, ""


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a log, none of them so long that it takes all memory: what is longer is no event."""
    return iter(partial(file.readline, MAX_READ), b"")


_SYSTEM_LINES: Mapping[EventType, str] = {
    EventType.BEGIN: "Test '{id}' BEGINS",
    EventType.END: "Test '{id}' ENDS",
    EventType.REGISTER_CALLBACK: "Test '{id}' REGISTERS a callback.",
    EventType.DEREGISTER_CALLBACK: "Test '{id}' DEREGISTERS a callback.",
}


def readable(event: Event, zone: tzinfo | None = None) -> str:
    """The event as a line for people, as result files hold it. ``zone``: for the time; None for the machine's own."""
    moment = str(datetime.fromtimestamp(event.timestamp, zone).replace(tzinfo=None))
    if event.type in MESSAGES:
        speakers = {EventType.SEND_MESSAGE: "Test", EventType.SEND_FILL: "System"}
        return f"{speakers.get(event.type, 'Agent')} ({moment}): {event.message}"
    return f"SYSTEM ({moment}): {_system_text(event)}"


def _system_text(event: Event) -> str:
    if event.type is EventType.SUITE_RESET:
        return " Suite was RESET"
    if event.type is EventType.LLM_CALL:
        return f"Test '{event.test_id}' CALLS an LLM. Response:\n{event.data['response']}"
    if event.type is EventType.WAIT:
        return f"Test '{event.test_id}' WAITING for {_waiting_text(event)}"
    return _SYSTEM_LINES[event.type].format(id=event.test_id)


def _waiting_text(event: Event) -> str:
    tokens, seconds = event.data["tokens"], event.data["time"]
    parts = [f"{tokens} TOKENS"] if tokens else []
    return ", ".join(parts + ([f"{timedelta(seconds=seconds)} TIME"] if seconds else [])) + "."
