"""What a worker gets for a row, and what it reports: where external workers report, corrections, and the error of a row without a report.

An external worker shows by the secret of its attempt that it is the one that works on the row. Its report is checked at once; one that
fits is answered only when it is on disk, so that an accepted report is never lost.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps
from manyhands.core.outcomes import StopReason
from manyhands.core.text import printable
from manyhands.engine.contract import Context
from manyhands.tools.results import bounded
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.prompts import same_id

WORKER_STEP = "worker"
"""The kind of a step in which a command or a function did the work."""
SECRET = "MANYHANDS_WORKER"
"""The environment variable in which a worker finds the secret of its attempt."""
MAX_RESULT_BYTES = 16 << 20
"""Bytes of a result as JSON at most."""
REMEMBERED = 10_000
"""Items whose end is remembered, to answer workers that report too late."""
SETTLING_SECONDS = 50.0


@dataclass(frozen=True, slots=True)
class StageOfRow:
    """One stage of a row."""

    name: str
    number: int
    """From 1, also if stages before it were skipped."""
    results: Mapping[str, Json]
    """The results of earlier stages by name; that of a skipped one is None."""
    values: Mapping[str, Json]
    """What their names stand for."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One row's work, or that of one of its stages, as a worker gets it."""

    job_id: str
    item_id: str
    row_index: int
    row: Mapping[str, Json]
    """The cells by column."""
    instruction: str
    """The template filled in."""
    prompt: str
    """The whole text for an agent, which names the report tool."""
    schema: OutputSchema
    corrections: int
    """How often a report that does not fit the schema may be corrected."""
    max_seconds: float
    """How long the worker may take, from its launch."""
    stage: StageOfRow | None = None
    """Of a job with stages: which one it is."""

    @property
    def columns(self) -> dict[str, Json]:
        """The cells, and in a stage the values of earlier stages, by their names."""
        return dict(self.row) if self.stage is None else {**self.row, **self.stage.values}


@dataclass(frozen=True, slots=True)
class Accepted:
    """A report that was accepted."""

    result: dict[str, Any]
    reported_at: float | None
    """Seconds since 1970 UTC, by the context's clock; None if all stages of the row were skipped."""
    via: str
    """How it came: ``tool``, ``mcp``, ``stdout`` or ``function``; ``none`` if all stages of the row were skipped."""
    stop: bool = False
    """The worker requests to end the job."""
    corrections: int = 0
    """Refused reports before it."""
    collected: Mapping[str, Any] | None = None
    """What the job's command gave when the conversation had ended: ``output``, and ``problem`` if it is not to be relied on."""

    def to_json(self) -> dict[str, Any]:
        return {
            "result": self.result,
            "reported_at": self.reported_at,
            "via": self.via,
            "stop": self.stop,
            "corrections": self.corrections,
            **({} if self.collected is None else {"collected": dict(self.collected)}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The reverse of ``to_json``."""
        return cls(
            value["result"],
            value["reported_at"],
            value["via"],
            value["stop"],
            value["corrections"],
            value.get("collected"),
        )


class Worker(Protocol):
    """Does the work of rows. Opened once in each process that executes rows."""

    async def run(self, context: Context, assignment: Assignment) -> Accepted:
        """Raises ItemError: INVALID_OUTPUT for a report that does not fit or did not come, WORKER_ERROR for a worker that broke,
        TIMEOUT, and what the model client raises."""
        ...


# --- Reports of external workers


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The answer to a report."""

    accepted: bool
    reason: str | None = None
    """Why it was not accepted, in one sentence."""
    violations: tuple[str, ...] = ()
    """What does not fit."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report that fits."""

    result: dict[str, Any]
    stop: bool
    """The worker requests to end the job."""


class PendingReport:
    """The report of one attempt at an item, awaited. Made by ``ReportInbox.open``; must be closed."""

    def __init__(self, inbox: ReportInbox, item_id: str, schema: OutputSchema, corrections: Corrections) -> None:
        self.secret = secrets.token_urlsafe(32)
        self.item_id = item_id
        self.corrections = corrections
        self._inbox = inbox
        self._schema = schema
        loop = asyncio.get_running_loop()
        self._arrived: asyncio.Future[Report] = loop.create_future()
        self._settled: asyncio.Future[Acceptance] = loop.create_future()

    def arrived(self) -> asyncio.Future[Report]:
        """Done with a report that fits, whose worker waits until ``settled``; or with ItemError(INVALID_OUTPUT) once a report does not
        fit and no correction is left. Nobody may cancel it."""
        return self._arrived

    def settled(self, accepted: bool, reason: str | None = None) -> None:
        """Answer the report that arrived: it is on disk, or not (and why not)."""
        if not self._settled.done():
            self._settled.set_result(Acceptance(accepted, None if accepted else reason))

    def close(self, ending: str) -> None:
        """Accept no more reports. ``ending``: the answer to those that come too late."""
        if not self._arrived.done():
            self._arrived.cancel()
        elif not self._arrived.cancelled():
            self._arrived.exception()  # it need not have been waited for
        self.settled(False, ending)
        self._inbox.forget(self, ending)

    async def take(self, result: Json, stop: bool) -> Acceptance:
        """A report from whoever has the secret."""
        if self._arrived.done():
            return self._too_late()
        violations = _too_large(result) or await self._schema.check(result)
        if self._arrived.done():  # by another report, while this one was checked
            return self._too_late()
        if violations:
            return self._refused(result, violations)
        self._arrived.set_result(Report(result, stop))
        try:
            async with asyncio.timeout(SETTLING_SECONDS):
                return await asyncio.shield(self._settled)
        except TimeoutError:
            return Acceptance(False, "the result could not be put on disk in time")

    def _refused(self, result: Json, violations: tuple[str, ...]) -> Acceptance:
        self.corrections.refuse(result, violations)
        if self.corrections.used_up:
            self._arrived.set_exception(self.corrections.failure())
            return Acceptance(
                False, "the result does not fit, and no correction is left: the item has failed", violations
            )
        return Acceptance(
            False, f"the result does not fit; correct it and report again. {self.corrections.tries()}", violations
        )

    def _too_late(self) -> Acceptance:
        if self._arrived.cancelled() or self._arrived.exception() is not None:
            return Acceptance(False, "the item has failed: no correction was left")
        return Acceptance(False, "a result was reported for this item already")


class ReportInbox:
    """The reports of one job that are awaited in this process. For the event loop's thread."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._open: dict[str, PendingReport] = {}
        self._endings: OrderedDict[str, str] = OrderedDict()

    def open(self, job_id: str, item_id: str, schema: OutputSchema, corrections: Corrections) -> PendingReport:
        """Await a report on an item. Raises ValueError if one is awaited already, or for another job."""
        if job_id != self._job_id or item_id in self._open:
            raise ValueError(f"no report on {item_id!r} of job {job_id!r} can be awaited here")
        report = self._open[item_id] = PendingReport(self, item_id, schema, corrections)
        return report

    async def deliver(self, job_id: str, item_id: str, result: Json, *, stop: bool, secret: str) -> Acceptance:
        """A report as it came. It is accepted at most once; otherwise the answer has the reason."""
        if not same_id(job_id, self._job_id):
            return Acceptance(False, f"job {job_id} is not executed here")
        report = self._found(item_id)
        if report is None:
            ending = self._endings.get(item_id)
            return Acceptance(False, ending or f"item {item_id} is not being worked on")
        if not secret:
            return Acceptance(False, f"the worker's secret is missing; it is in the worker's environment as {SECRET}")
        if not hmac.compare_digest(secret.encode("utf-8", "replace"), report.secret.encode()):
            return Acceptance(False, "the secret is not that of the attempt under way at this item")
        return await report.take(result, stop)

    async def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a report as it comes over a socket; what else may come there is refused."""
        if message.get("op") != "report":
            return {"error": "only reports are taken here"}
        acceptance = await self.deliver(
            str(message.get("job_id")),
            str(message.get("item_id")),
            message.get("result"),
            stop=message.get("stop") is True,
            secret=str(message.get("secret")),
        )
        return asdict(acceptance)

    def forget(self, report: PendingReport, ending: str) -> None:
        """Part of closing a report."""
        if self._open.get(report.item_id) is report:
            del self._open[report.item_id]
        self._endings[report.item_id] = ending
        self._endings.move_to_end(report.item_id)
        if len(self._endings) > REMEMBERED:
            self._endings.popitem(last=False)

    def _found(self, item_id: str) -> PendingReport | None:
        found = self._open.get(item_id)
        if found is not None:
            return found
        return next((report for name, report in self._open.items() if same_id(item_id, name)), None)


def _too_large(result: Json) -> tuple[str, ...]:
    size = len(dumps(result))
    return (
        () if size <= MAX_RESULT_BYTES else (f"$: is {size} bytes of JSON, and at most {MAX_RESULT_BYTES} are taken",)
    )


MAX_KEPT_CHARS = 100_000
"""Characters of a report that is kept with a failed item."""


@dataclass(slots=True)
class Corrections:
    """An item's refused reports."""

    allowed: int
    """Corrections in all; one more report than that is checked."""
    refused: int = 0
    """Reports that did not fit so far."""
    last: Json = None
    """The last one of them."""
    violations: tuple[str, ...] = ()
    """What did not fit of it."""

    def refuse(self, result: Json, violations: tuple[str, ...]) -> None:
        """Count a report that does not fit."""
        self.refused += 1
        self.last, self.violations = result, violations

    @property
    def left(self) -> int:
        """Corrections that are still allowed, after at least one refusal."""
        return self.allowed + 1 - self.refused

    @property
    def used_up(self) -> bool:
        return self.left <= 0

    def tries(self) -> str:
        """How many are left, in a sentence for the worker."""
        if self.used_up:
            return "No correction is left."
        return "One correction is left." if self.left == 1 else f"{self.left} corrections are left."

    def failure(self) -> ItemError:
        """The failure of an item whose last report did not fit; the report is kept."""
        more = f" (and {len(self.violations) - 1} more)" if len(self.violations) > 1 else ""
        return ItemError(
            Cause.INVALID_OUTPUT, f"the result does not fit: {self.violations[0]}{more}", record=self.record()
        )

    def record(self) -> dict[str, Json]:
        """What is kept with an item that ends without an accepted report; nothing if none was refused."""
        if not self.violations:
            return {}
        return {"last_report": bounded(self.last, MAX_KEPT_CHARS), "violations": list(self.violations)}


UNREPORTED = "worker finished without calling report_agent_job_result"
MAX_TAIL_CHARS = 2000
"""Characters that are kept of a worker's last words."""
MAX_ERROR_CHARS = 600
"""Characters of them that are the error of a worker that failed."""
_LAST_LINES = 3
_MAX_SEARCHED_CHARS = 64 << 10
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
"""Control characters, but for those that end a line or part words."""


def timeout_error(seconds: float) -> ItemError:
    """The worker took longer than it may."""
    return ItemError(Cause.TIMEOUT, f"worker exceeded max runtime of {seconds:g}s")


def missing_report_error(
    record: dict[str, Any], *, stopped: StopReason = StopReason.ANSWERED, why: str | None = None
) -> ItemError:
    """The worker ended, but there is no result. ``stopped``: how an agent's conversation ended; ``why``: what it printed in place of a
    result, if that looks like one."""
    if stopped is StopReason.ANSWERED:
        return ItemError(Cause.INVALID_OUTPUT, UNREPORTED if why is None else f"{UNREPORTED}: {why}", record=record)
    cause = Cause.CONTEXT_OVERFLOW if stopped is StopReason.CONTEXT_OVERFLOW else Cause.INVALID_OUTPUT
    return ItemError(cause, f"{UNREPORTED} ({stopped.value})", record=record)


def tail(text: str) -> str:
    """The end of what a worker printed, within bounds."""
    text = text.strip()
    return text if len(text) <= MAX_TAIL_CHARS else f"…{text[1 - MAX_TAIL_CHARS :]}"


def tail_line(text: str) -> str:
    """The last three lines of what a worker printed, on one line, without control characters, within bounds."""
    lines = [" ".join(_CONTROL.sub("", line).split()) for line in text[-_MAX_SEARCHED_CHARS:].splitlines()]
    joined = " | ".join([line for line in lines if line][-_LAST_LINES:])
    return printable(joined[-MAX_ERROR_CHARS:])
