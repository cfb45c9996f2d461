"""The arguments of a tool call, and the reply to it.

Arguments are read as Codex reads them: unknown names are passed over, null is the same as nothing, and types are strict (a number as
text, half a row or a negative count is an error). A reply has Codex's keys, with null for what is not there, and ours beside them; and the
same in a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from manyhands.core.errors import ToolError
from manyhands.core.jsonio import line
from manyhands.core.text import cut
from manyhands.workloads.csv_jobs.mcp.declarations import ENDED_KEYS, RUN, SPAWN_RESULT, STATUS_RESULT, WAIT
from manyhands.workloads.csv_jobs.service.status import JobStatus

if TYPE_CHECKING:
    from manyhands.workloads.csv_jobs.service.jobs import Spawned


PROBLEM = "failed to parse function arguments: "
"""What Codex puts before every message about arguments."""
_MAX_INT = 2**63 - 1
_MAX_SHOWN_CHARS = 60


class Arguments:
    """Reads the arguments of one call by name. Every method raises ToolError for a value of another type."""

    def __init__(self, values: Any) -> None:
        if values is not None and not isinstance(values, Mapping):
            raise ToolError(f"{PROBLEM}they must be a JSON object, not {shown(values)}")
        self._values: Mapping[str, Any] = values or {}

    @property
    def names(self) -> list[str]:
        """What the call names, null apart."""
        return [name for name, value in self._values.items() if isinstance(name, str) and value is not None]

    def required_text(self, name: str) -> str:
        """Text that must be there (it may be empty)."""
        text = self.text(name)
        if text is None:
            raise ToolError(f"{PROBLEM}missing field `{name}`")
        return text

    def text(self, name: str, *aliases: str) -> str | None:
        """Text, under its name or another one."""
        value = self._first((name, *aliases))
        return None if value is None else _text(name, value)

    def count(self, name: str, *aliases: str) -> int | None:
        """A whole number from 0 up."""
        value = self._first((name, *aliases))
        number = None if value is None else _whole(name, value)
        if number is not None and number < 0:
            raise ToolError(f"{PROBLEM}{name} must not be negative, as {number} is")
        return number

    def whole(self, name: str) -> int | None:
        """A whole number, which may be negative."""
        value = self._values.get(name)
        return None if value is None else _whole(name, value)

    def flag(self, name: str) -> bool | None:
        """True or false."""
        value = self._values.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise _wrong(name, "true or false", value)

    def mapping(self, name: str) -> dict[str, Any] | None:
        """A JSON object."""
        value = self._values.get(name)
        if value is None or isinstance(value, dict):
            return value
        raise _wrong(name, "a JSON object", value)

    def texts(self, name: str) -> list[str] | None:
        """A list of texts."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(entry, str) for entry in value):
            raise _wrong(name, "a list of texts", value)
        return [_text(name, entry) for entry in value]

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """One of several words."""
        word = self.text(name)
        if word is None or word in choices:
            return word
        raise _wrong(name, " or ".join(choices), word)

    def required(self, name: str) -> Any:
        """Any JSON value that must be there (it may be null)."""
        if name not in self._values:
            raise ToolError(f"{PROBLEM}missing field `{name}`")
        return self._values[name]

    def _first(self, names: Iterable[str]) -> Any:
        return next((value for name in names if (value := self._values.get(name)) is not None), None)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    if "\0" in value:
        raise ToolError(f"{PROBLEM}{name} holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{PROBLEM}{name} holds half of a surrogate pair, which is no text") from None
    return value


def _whole(name: str, value: Any) -> int:
    # 5.0 is how some clients write 5: a JSON number has no types of its own.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, "a whole number", value)
    if abs(value) > _MAX_INT:
        raise ToolError(f"{PROBLEM}{name} is too large")
    return value


def _wrong(name: str, expected: str, value: Any) -> ToolError:
    return ToolError(f"{PROBLEM}{name} must be {expected}, not {shown(value)}")


def shown(value: Any) -> str:
    """A value for a message: short, on one line."""
    return cut(line(value), _MAX_SHOWN_CHARS)


FIRST_ERRORS = 5
"""Failed rows that an answer names."""
_NO_DETAILS = "rows failed without saying why"


@dataclass(frozen=True, slots=True)
class Reply:
    """A tool's answer: a JSON object, and the same in a sentence or two."""

    content: dict[str, Any]
    text: str


def status_object(status: JobStatus) -> dict[str, Any]:
    """A job's status, as ``STATUS_RESULT`` describes it: ``JobStatus.to_json`` with Codex's words."""
    content = {
        **status.to_json(),
        "status": status.original_status,
        "total_tokens": status.usage.total_tokens,
        "cost_usd": round(status.usage.cost, 6),
    }
    return {name: content[name] for name in STATUS_RESULT["properties"]}


def spawned_object(spawned: Spawned, status: JobStatus, notices: Sequence[str]) -> dict[str, Any]:
    """The answer of a spawn that does not wait."""
    content = {
        **status_object(status),
        "started": spawned.started,
        "total_items": spawned.total_items,
        "notices": list(notices),
    }
    return {name: content[name] for name in SPAWN_RESULT["properties"] if name not in ENDED_KEYS}


def ended_object(status: JobStatus, errors: Sequence[Mapping[str, Any]], timed_out: bool) -> dict[str, Any]:
    """What the answer of a spawn that waited has beyond the other's."""
    content = {
        **status_object(status),
        "job_error": _job_error(status, errors),
        "failed_item_errors": [_item_error(error) for error in errors[:FIRST_ERRORS]] or None,
        "timed_out": timed_out,
        "next_step": next_step(status, timed_out),
    }
    return {name: content[name] for name in ENDED_KEYS}


def next_step(status: JobStatus, timed_out: bool) -> str | None:
    """What the caller may do about a job that has not ended; None if it has."""
    if status.ended:
        return None
    if timed_out or status.runner_active:
        return f"The job continues. Call {WAIT} with job_id {status.job_id}."
    return f"No process executes the job. Call {RUN} with job_id {status.job_id} to continue it."


def status_text(status: JobStatus) -> str:
    """A job's status in a sentence."""
    ended = status.total_items - status.pending_items - status.running_items
    parts = [f"{ended} of {_rows(status.total_items)} ended"]
    parts += [
        f"{count} {word}"
        for count, word in (
            (status.failed_items, "failed"),
            (status.skipped_items, "skipped"),
            (status.cancelled_items, "cancelled"),
            (status.running_items, "running"),
        )
        if count
    ]
    state = status.state.replace("_", " ")
    text = f"Job {_called(status)} is {state}: {', '.join(parts)}."
    return " ".join(part for part in (text, status.last_error, _capital(status.waiting)) if part)


def spawned_text(spawned: Spawned, status: JobStatus) -> str:
    """The answer of a spawn that does not wait, in two sentences."""
    begun = "was started" if spawned.started else f"was created, and is {status.state}"
    return (
        f"Job {spawned.job_id} {begun} with {_rows(spawned.total_items)}; results go to {spawned.output_csv_path}. "
        f"Follow it with {WAIT}."
    )


def _capital(line: str | None) -> str:
    return f"{line[:1].upper()}{line[1:]}." if line else ""


def _called(status: JobStatus) -> str:
    return status.job_id if status.name in ("", status.job_id) else f"{status.name} ({status.job_id})"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _job_error(status: JobStatus, errors: Sequence[Mapping[str, Any]]) -> str | None:
    if status.last_error and status.last_error.strip():
        return status.last_error
    if status.failed_items and not any(error["last_error"] for error in errors):
        return _NO_DETAILS
    return None


def _item_error(error: Mapping[str, Any]) -> dict[str, Any]:
    return {name: error.get(name) for name in ("item_id", "source_id", "last_error")}
