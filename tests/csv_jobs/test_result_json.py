"""Results are found in what scripts, models and agent programs print."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from tests.support.job_rows import SCORE_SCHEMA, find_result

ANYTHING = OutputSchema.of(None)
SCORE = OutputSchema.of(SCORE_SCHEMA)
GOOD = {"score": 3}
TEXT = json.dumps(GOOD)


def event(**parts: Any) -> str:
    return json.dumps(parts)


CLAUDE = event(
    type="result",
    subtype="success",
    is_error=False,
    duration_ms=5,
    result=f"Here:\n```json\n{TEXT}\n```",
    session_id="s",
)
CODEX = "\n".join(
    [
        event(type="thread.started", thread_id="t"),
        event(type="item.completed", item={"id": "0", "type": "reasoning", "text": '{"score": 1}'}),
        event(
            type="item.completed", item={"id": "1", "type": "command_execution", "aggregated_output": '{"score": 2}'}
        ),
        event(type="item.completed", item={"id": "2", "type": "agent_message", "text": TEXT}),
        event(type="turn.completed", usage={"input_tokens": 5}),
    ]
)
STREAM = "\n".join(
    [
        event(type="system", subtype="init", session_id="s", tools=["Read"], model="m"),
        event(type="user", message={"role": "user", "content": [{"type": "tool_result", "content": '{"score": 1}'}]}),
        event(type="assistant", message={"role": "assistant", "content": [{"type": "text", "text": f"So: {TEXT}."}]}),
        event(type="result", is_error=False, result="Done.", session_id="s"),
    ]
)
OLD_CODEX = "\n".join(
    [
        event(id="0", msg={"type": "agent_message", "message": TEXT}),
        event(id="0", msg={"type": "token_count", "info": None}),
    ]
)


@pytest.mark.parametrize("schema", [ANYTHING, SCORE], ids=["no schema", "schema"])
@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"\ufeff  {TEXT}\r\n",
        json.dumps(GOOD, indent=4),
        f"loading…\nrow 1 {{done}}\n{TEXT}\n",
        f"log: {{'a': 1}}\n{json.dumps(GOOD, indent=2)}",
        f"The result is {TEXT}",
        f"```json\n{TEXT}\n```",
        f"It is\n\n~~~\n{TEXT}\n~~~\n\nwhich follows from {{x}}.",
        f'First {{"a": 1}}, then\n```\n{TEXT}\n```\nand also {{"b": 2}}.',
        event(job_id="j", item_id="i", result=GOOD),
        CLAUDE,
        f"[{CLAUDE}]",
        CODEX,
        STREAM,
        OLD_CODEX,
        event(response=f"Well. {TEXT}", stats={"models": {}}),
        event(type="text", sessionID="s", part={"type": "text", "text": TEXT}),
        event(type="result", result="Done.", structured_output=GOOD, session_id="s"),
        f"{event(type='result', result=event(type='result', result=TEXT))}",
    ],
)
def test_the_result_is_found(text: str, schema: OutputSchema) -> None:
    found = find_result(text, schema)
    assert found is not None
    assert (found.result, found.violations) == (GOOD, ())


@pytest.mark.parametrize("schema", [ANYTHING, SCORE], ids=["no schema", "schema"])
@pytest.mark.parametrize(
    "text", ["", "Done.", "[1, 2]", "3", '"text"', "{", "{{}", '{"a": NaN}', "{a: 1}", '{"a": 1', "null", "[" * 100_000]
)
def test_nothing_is_found_where_nothing_is(text: str, schema: OutputSchema) -> None:
    found = find_result(text, schema)
    assert found is None or found.result == {}


@pytest.mark.parametrize(
    "text", [STREAM.replace(json.dumps(f"So: {TEXT}."), '"So."'), CODEX.replace(json.dumps(TEXT), '"Done."')]
)
def test_frames_and_what_happened_on_the_way_are_no_results(text: str) -> None:
    assert find_result(text, ANYTHING) is None


def test_the_last_one_counts_and_the_last_that_fits_before_it() -> None:
    lines = '{"score": 1}\n{"score": 2}\n{"other": 3}'
    assert find_result(lines, ANYTHING).result == {"other": 3}  # type: ignore[union-attr]
    assert find_result(lines, SCORE).result == {"score": 2}  # type: ignore[union-attr]


def test_the_likeliest_misfit_is_told() -> None:
    found = find_result('{"score": 1, "x": 1}\nlast: {"score": 11}', SCORE)
    assert found is not None
    assert found.violations == ("$.score: 11 is greater than the maximum of 10",)


def test_an_object_far_from_the_end_is_found_if_it_has_a_line_of_its_own() -> None:
    found = find_result(f"{TEXT}\n" + "{ not JSON\n" * 1000 + "x" * 500_000, SCORE)
    assert found is not None
    assert found.result == GOOD


def test_what_a_script_prints_may_look_like_a_frame() -> None:
    shaped = OutputSchema.of(
        {"properties": {"type": {"const": "result"}, "result": {"type": "string"}}, "required": ["type"]}
    )
    found = find_result('{"type": "result", "result": "ok"}', shaped)
    assert found is not None
    assert found.violations == ()
    bug = {"type": "bug", "message": "It broke {here}.", "text": TEXT}
    assert find_result(json.dumps(bug), ANYTHING).result == bug  # type: ignore[union-attr]


def test_a_wrapped_object_is_looked_into_if_the_schema_can_tell() -> None:
    wrapped = json.dumps({"output": GOOD, "confidence": 1})
    assert find_result(wrapped, SCORE).result == GOOD  # type: ignore[union-attr]
    assert find_result(wrapped, ANYTHING).result == {"output": GOOD, "confidence": 1}  # type: ignore[union-attr]


def test_a_printed_report_may_ask_to_stop() -> None:
    found = find_result(event(job_id="j", item_id="i", result=GOOD, stop=True), SCORE)
    assert found is not None
    assert found.stop


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 200_000,
        "{" * 2_000_000,
        '{"a": "' * 300_000,
        "```\n" * 300_000,
        '{"type": "result", "result": "{}"}\n' * 50_000,
        "{}" * 1_000_000,
        ('{"b": [' + "1," * 1000) * 500,
        "~~~~ {\n" * 100_000,
    ],
    ids=lambda text: text[:20],
)
def test_hostile_output_takes_little_time(text: str) -> None:
    began = time.process_time()
    find_result(text, SCORE)
    assert time.process_time() - began < 20


# Words may make an example of what follows; two letters are a word, or an abbreviation.
WITHOUT_WORDS = st.text().filter(lambda text: re.search(r"[a-z]\W{0,2}[a-z]", text, re.IGNORECASE) is None)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=4), WITHOUT_WORDS)
def test_an_object_on_the_last_line_is_found_whatever_signs_stand_before(value: dict[str, Any], before: str) -> None:
    value = {**value, "score": 5}
    schema = OutputSchema.of({"properties": {"score": {"const": 5}}, "required": ["score"]})
    line = json.dumps(value)
    found = find_result(f"{before.replace('`', '').replace('~', '')}\n{line}", schema)
    assert found is not None
    assert found.violations == ()
