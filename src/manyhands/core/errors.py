"""What can go wrong, by audience.

ManyhandsError
├── UserError            for the person: one clear line; the command exits with 2
│   └── RunError         … about a run folder (locked, exists already, settings changed, not a run)
├── StorageError         the journal can't be written (full disk, read-only folder); the run stops and stays resumable
├── ItemError            for the record: the item failed, with its cause
├── GraderError          a grader broke; says nothing about what was graded
├── ToolError            for the model: a tool call failed in a way that the model can act on
├── Divergence           the journal holds another request at this address
└── Interrupted          the run is stopping: nothing new is begun
"""

from __future__ import annotations

from typing import Any

from manyhands.core.failures import Cause


class ManyhandsError(Exception):
    """The root of everything raised on purpose."""


class UserError(ManyhandsError):
    """A person has to change something; the message is one line that says what and where."""


class RunError(UserError):
    """A run folder can't be used in the requested way."""


class StorageError(ManyhandsError):
    """The journal or an output can't be written. Nothing that was recorded is lost."""


class ItemError(ManyhandsError):
    """An item failed. ``retry_after``: seconds that the other side requested to wait, if it did. ``record``: a small JSON
    object that is kept with the item if this failure ends it."""

    def __init__(
        self, cause: Cause, message: str, *, retry_after: float | None = None, record: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.retry_after = retry_after
        self.record = record or {}

    def bare(self) -> ItemError:
        """The same without its traceback, and of this class itself."""
        return ItemError(self.cause, self.message, retry_after=self.retry_after, record=self.record)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.cause, self.message, self.retry_after, self.record))


class GraderError(ManyhandsError):
    """A grader could not do its work: its program crashed, its judge can't be reached. Never a score of zero."""


class ToolError(ManyhandsError):
    """A tool call failed; the message goes to the model, so it says what to do differently."""


class Divergence(ManyhandsError):
    """A replayed step does not match the journal: the code, the prompt or a setting changed since it was recorded."""

    def __init__(self, scope: str, seq: int, recorded_kind: str, kind: str, detail: str = "") -> None:
        super().__init__(f"step {scope}/{seq}: recorded as {recorded_kind!r}, now {kind!r}{detail}")
        self.scope = scope
        self.seq = seq


class Interrupted(ManyhandsError):
    """The run is stopping: no further step or call is begun."""


def _rebuild(
    cls: type[ItemError], cause: Cause, message: str, retry_after: float | None, record: dict[str, Any]
) -> ItemError:
    return cls(cause, message, retry_after=retry_after, record=record)
