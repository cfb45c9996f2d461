"""The tool by which the built-in agent hands in a row's result, and the job's output schema as a part of the tool's own.

One tool object serves all rows of a job, so that all their conversations offer the same tools (which endpoints cache): whose
row it is, is in the environment of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import Field

from manyhands.core.errors import ToolError
from manyhands.core.jsonio import Json
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.schema import Arguments, checked
from manyhands.workloads.csv_jobs.rows.model import Accepted, Assignment
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL, same_id
from manyhands.workloads.csv_jobs.workers.reports import Corrections

_STATE = "csv_jobs.report"
_DESCRIPTION = (
    "Hand in the result of the item you were given. Call it exactly once, when the work is done. A result that does not fit "
    "is refused with the reasons, and can be corrected and handed in again; once it is accepted, you are finished."
)


class _Report(Arguments):
    job_id: str = Field(description="The job, as the task names it.")
    item_id: str = Field(description="The item, as the task names it.")
    result: Any = Field(description="The result: a JSON object.")
    stop: bool = Field(False, description="True ends the whole job before its other items. Leave it out as a rule.")


@dataclass(slots=True)
class Reporting:
    """Where an item's report stands."""

    assignment: Assignment
    corrections: Corrections
    accepted: Accepted | None = None

    @classmethod
    def begin(cls, assignment: Assignment, environment: ToolEnvironment) -> Reporting:
        """Make the environment that of one item's conversation."""
        reporting = environment.state[_STATE] = cls(assignment, Corrections(assignment.corrections))
        return reporting


class ReportTool:
    """``report_agent_job_result``, whose ``result`` is described by the job's output schema."""

    name = REPORT_TOOL
    description = _DESCRIPTION
    changes_world = False

    def __init__(self, schema: OutputSchema) -> None:
        self._schema = schema
        result = embedded(schema.value or {}, ("properties", "result"))
        result.schema.setdefault("description", "The result: a JSON object.")
        fields = _Report.model_fields
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {
                "job_id": {"type": "string", "description": fields["job_id"].description},
                "item_id": {"type": "string", "description": fields["item_id"].description},
                "result": result.schema,
                "stop": {"type": "boolean", "description": fields["stop"].description},
            },
            "required": ["job_id", "item_id", "result"],
            "additionalProperties": False,
            **result.definitions,
        }

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        """Take a report. Raises ToolError for one that is not about this item or comes too late, and
        ItemError(INVALID_OUTPUT) when one does not fit and no correction is left."""
        reporting: Reporting = environment.state[_STATE]
        report = self._read(arguments)
        _check_identity(report, reporting.assignment)
        if reporting.accepted is not None:
            raise ToolError(
                "A result was accepted for this item already, and a second one is not taken. You are finished."
            )
        violations = await self._schema.check(report["result"])
        if violations:
            return _refused(reporting.corrections, report["result"], violations)
        now = environment.clock.now()
        reporting.accepted = _accepted(report, now, reporting.corrections)
        return ToolResult({"accepted": True, "reported_at": now}, ends=True)

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        """Bring the state to where a recorded call left it."""
        reporting: Reporting = environment.state[_STATE]
        content = result.content
        if not isinstance(content, dict):
            return
        if "violations" in content:
            reporting.corrections.refuse(self._read(arguments)["result"], tuple(content["violations"]))
        elif content.get("accepted"):
            reporting.accepted = _accepted(self._read(arguments), content["reported_at"], reporting.corrections)

    def _read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are meant: an object that was written as JSON text is taken for what it says."""
        return checked(self.name, _Report, self.parameters, arguments)


def _check_identity(report: Mapping[str, Any], assignment: Assignment) -> None:
    wanted = {"job_id": assignment.job_id, "item_id": assignment.item_id}
    wrong = [f"{name} {report[name]!r}" for name, identity in wanted.items() if not same_id(report[name], identity)]
    if wrong:
        raise ToolError(
            f"The report was not taken: {' and '.join(wrong)} is not what you were given. "
            f"You work on job_id {assignment.job_id!r}, item_id {assignment.item_id!r}: report that."
        )


def _refused(corrections: Corrections, result: Json, violations: tuple[str, ...]) -> ToolResult:
    corrections.refuse(result, violations)
    if corrections.used_up:
        raise corrections.failure()
    content = {
        "accepted": False,
        "error": f"The result does not fit. Mend what the violations name, and report again. {corrections.tries()}",
        "violations": list(violations),
        "corrections_left": corrections.left,
    }
    return ToolResult(content, failed=True)


def _accepted(report: Mapping[str, Any], reported_at: float, corrections: Corrections) -> Accepted:
    return Accepted(report["result"], reported_at, "tool", bool(report["stop"]), corrections.refused)


_DEFINITIONS = ("$defs", "definitions")
_ABOUT_THE_WHOLE = ("$schema", "$id", *_DEFINITIONS)
_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", *_DEFINITIONS)
_NOT_SCHEMAS = ("const", "default", "enum", "examples")
_REFERENCES = ("$ref", "$dynamicRef")


class Embedded(NamedTuple):
    """``schema`` goes where it was made for; ``definitions`` (``$defs`` and the like, if it has any) to the top of the whole."""

    schema: dict[str, Any]
    definitions: dict[str, Any]


def embedded(schema: Mapping[str, Any], place: Sequence[str]) -> Embedded:
    """A schema of objects as it reads at a place in another schema: what refers to a part of it still does.

    Definitions move to the top, where endpoints and models look for them, so that references to them stay as they are; other
    references within the schema get the place before them.
    """
    prefix = "#/" + "/".join(place)
    definitions = {name: _moved_part(name, schema[name], prefix) for name in _DEFINITIONS if name in schema}
    rest = {name: part for name, part in schema.items() if name not in _ABOUT_THE_WHOLE}
    return Embedded({**_moved(rest, prefix), "type": "object"}, definitions)


def _moved(value: Json, prefix: str) -> Any:
    if isinstance(value, list):
        return [_moved(part, prefix) for part in value]
    if (
        not isinstance(value, Mapping) or "$id" in value
    ):  # within a schema of its own name references mean something else
        return value
    return {name: _moved_part(name, part, prefix) for name, part in value.items()}


def _moved_part(name: str, part: Json, prefix: str) -> Json:
    if name in _REFERENCES and isinstance(part, str):
        return _moved_reference(part, prefix)
    if name in _MAPS_OF_SCHEMAS and isinstance(part, Mapping):
        return {key: _moved(inner, prefix) for key, inner in part.items()}
    return part if name in _NOT_SCHEMAS else _moved(part, prefix)


def _moved_reference(reference: str, prefix: str) -> str:
    if reference == "#":
        return prefix
    if not reference.startswith("#/") or reference.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS)):
        return reference
    return prefix + reference[1:]
