"""The report tool's own schema, and what it makes of calls and of their replay."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.digests import Draws
from manyhands.core.errors import ItemError, ToolError
from manyhands.models.simulated.calls import example
from manyhands.testing.agent_doubles import no_sandbox
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.workers.agent import Reporting, ReportTool
from tests.support.job_rows import JOB_ID, SCORE_SCHEMA, assignment


def made(schema: dict[str, Any] | None = None, **more: Any) -> tuple[ReportTool, ToolEnvironment, Reporting]:
    environment = ToolEnvironment(no_sandbox, SystemClock())
    return ReportTool(OutputSchema.of(schema)), environment, Reporting.begin(assignment(schema, **more), environment)


def arguments(result: Any, **more: Any) -> dict[str, Any]:
    return {"job_id": JOB_ID, "item_id": "row-1", "result": result, **more}


TREE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.org/tree",
    "description": "A tree.",
    "properties": {
        "name": {"$ref": "#/$defs/name"},
        "same": {"$ref": "#/properties/name"},
        "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        "default": {"$ref": "#/$defs/name"},
        "word": {"enum": [{"$ref": "#"}]},
        "$ref": {"type": "integer"},
    },
    "required": ["name", "same"],
    "$defs": {"name": {"type": "string", "minLength": 2}, "deep": {"properties": {"up": {"$ref": "#/$defs/name"}}}},
}


def test_the_result_is_described_by_the_schema_and_references_still_lead_there() -> None:
    tool, _, _ = made(TREE)
    jsonschema.Draft202012Validator.check_schema(tool.parameters)
    result = tool.parameters["properties"]["result"]
    assert result["type"] == "object"
    assert result["description"] == "A tree."
    assert "$schema" not in result
    assert "$id" not in result
    assert result["properties"]["same"] == {"$ref": "#/properties/result/properties/name"}
    assert result["properties"]["children"]["items"] == {"$ref": "#/properties/result"}
    assert result["properties"]["default"] == {"$ref": "#/$defs/name"}
    assert result["properties"]["word"] == {"enum": [{"$ref": "#"}]}
    assert tool.parameters["$defs"] == TREE["$defs"]
    validator = jsonschema.Draft202012Validator(dict(tool.parameters))
    assert validator.is_valid(arguments({"name": "ab", "same": "cd", "children": [{"name": "ab", "same": "cd"}]}))
    assert not validator.is_valid(arguments({"name": "ab", "same": "c"}))
    assert not validator.is_valid(arguments({"name": "ab", "same": "cd", "children": [{"name": "a", "same": "cd"}]}))
    assert not validator.is_valid({"job_id": JOB_ID, "item_id": "row-1"})


@pytest.mark.parametrize("schema", [TREE, SCORE_SCHEMA, None, {"type": ["object", "null"]}])
def test_examples_made_from_its_parameters_are_accepted(schema: dict[str, Any] | None) -> None:
    tool, _, _ = made(schema)
    for number in range(20):
        value = example(tool.parameters, Draws("t", number))
        assert OutputSchema.of(schema).violations(value["result"]) == ()


def test_the_given_schema_is_left_as_it_is() -> None:
    before = OutputSchema.of(TREE).text
    made(TREE)
    assert OutputSchema.of(TREE).text == before


async def test_an_accepted_report_ends_the_conversation_and_is_brought_back_on_replay() -> None:
    tool, environment, reporting = made(SCORE_SCHEMA)
    with_violation = await tool.call(arguments({"score": 0}), environment)
    result = await tool.call(arguments('{"score": 3}', stop=True), environment)
    assert (result.ends, result.failed) == (True, False)
    assert isinstance(result.content, dict)
    assert result.content["accepted"] is True
    accepted = reporting.accepted
    assert accepted is not None
    assert (accepted.result, accepted.stop, accepted.corrections, accepted.via) == ({"score": 3}, True, 1, "tool")
    again, elsewhere, restored = made(SCORE_SCHEMA)
    again.restore(arguments({"score": 0}), with_violation, elsewhere)
    again.restore(arguments('{"score": 3}', stop=True), result, elsewhere)
    assert restored.accepted == accepted
    assert restored.corrections == reporting.corrections


async def test_restoring_refused_calls_changes_nothing() -> None:
    tool, environment, reporting = made()
    tool.restore({"nonsense": 1}, ToolResult({"error": "no"}, failed=True), environment)
    tool.restore(arguments({}), ToolResult("text"), environment)
    assert reporting.accepted is None
    assert reporting.corrections.refused == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"job_id": JOB_ID, "item_id": "row-1"}, "'result' is missing"),
        ({"item_id": "row-1", "result": {}}, "'job_id' is missing"),
        ({**arguments({}), "more": 1}, "no argument 'more'"),
        ({**arguments({}), "stop": "perhaps"}, "'stop' was \"perhaps\""),
        ({**arguments({}), "item_id": "row-11"}, "item_id 'row-11' is not what you were given"),
        ({**arguments({}), "job_id": "x"}, "job_id 'x' is not what you were given"),
    ],
)
async def test_wrong_arguments_are_explained_and_cost_no_correction(given: dict[str, Any], message: str) -> None:
    tool, environment, reporting = made()
    with pytest.raises(ToolError, match=message):
        await tool.call(given, environment)
    assert reporting.corrections.refused == 0
    assert reporting.accepted is None


async def test_ids_are_taken_as_the_prompt_shows_them() -> None:
    for item_id, written in (("7", 7), ("a\nb", '"a\\nb"'), ("a\nb", "a b"), (" x", "x")):
        tool, environment, reporting = made(item_id=item_id)
        await tool.call({**arguments({}), "item_id": written}, environment)
        assert reporting.accepted is not None


async def test_a_second_report_is_refused_with_a_reason() -> None:
    tool, environment, reporting = made()
    await tool.call(arguments({"a": 1}), environment)
    with pytest.raises(ToolError, match="accepted for this item already"):
        await tool.call(arguments({"a": 2}), environment)
    assert reporting.accepted is not None
    assert reporting.accepted.result == {"a": 1}


async def test_a_huge_misfit_is_kept_within_bounds() -> None:
    tool, environment, _ = made(SCORE_SCHEMA, corrections=0)
    with pytest.raises(ItemError) as caught:
        await tool.call(arguments({"rationale": "x" * 1_000_000}), environment)
    assert len(caught.value.record["last_report"]["rationale"]) < 110_000
