"""Which JSON in what a worker printed is meant as its result: no echo, no example, no list of several."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.workers.input_echo import WorkerInput
from manyhands.workloads.csv_jobs.workers.printed_result import FoundResult, NoResult, result_in
from manyhands.workloads.csv_jobs.workers.reports import UNREPORTED
from tests.support.job_rows import SCORE_SCHEMA, assignment, find_result

ANSWER_SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
ANSWER = OutputSchema.of(ANSWER_SCHEMA)
ANYTHING = OutputSchema.of(None)
SCHEMAS = pytest.mark.parametrize("schema", [None, SCORE_SCHEMA], ids=["no schema", "schema"])
YES = {"answer": "yes"}
TEXT = json.dumps(YES)


def event(**parts: Any) -> str:
    return json.dumps(parts)


def framed(text: str) -> str:
    return event(type="result", subtype="success", is_error=False, result=text, session_id="s", total_cost_usd=0.1)


async def found(text: str, schema: dict[str, Any] | None, **more: Any) -> FoundResult | NoResult:
    work = assignment(schema, printing=True, **more)
    return await result_in(text, work.schema, WorkerInput(work.prompt, work.row))


# --- Echoes


@SCHEMAS
@pytest.mark.parametrize(
    "how",
    [
        "cat",
        "crlf",
        "tail",
        "head",
        "framed",
        "fenced",
        "said",
        "indented",
        "quoted",
        "yaml",
        "lower",
        "json",
        "chat",
        "all",
    ],
)
async def test_a_prompt_that_comes_back_is_no_result(schema: dict[str, Any] | None, how: str) -> None:
    instruction = 'Score the path, as in:\n{"score": 4}\nDo not guess.'
    prompt = assignment(schema, instruction=instruction, printing=True).prompt
    lines = prompt.splitlines()
    text = {
        "cat": prompt,
        "crlf": prompt.replace("\n", "\r\n"),
        "tail": "\n".join(lines[-12:]),
        "head": "\n".join(lines[:9]),
        "framed": framed(prompt),
        "fenced": f"You said:\n```\n{prompt}\n```\n",
        "said": f"I was asked:\n{prompt}\nBut I can't see the file.",
        "indented": "".join(f"    {line}\n" for line in lines),
        "quoted": "".join(f"> {line}\n" for line in lines),
        "yaml": "prompt: |\n" + "".join(f"  {line}\n" for line in lines),
        "lower": prompt.lower(),
        "json": event(prompt=prompt),
        "chat": event(messages=[{"role": "user", "content": prompt}]),
        "all": event(item_id="row-1", prompt=prompt, schema=schema or {}),
    }[how]
    answer = await found(text, schema, instruction=instruction)
    assert isinstance(answer, NoResult)
    assert answer.why is not None
    assert "only repeated" in answer.why


@SCHEMAS
@pytest.mark.parametrize("dumped", [{"indent": 2}, {"separators": (",", ":")}, {}, {"sort_keys": True, "indent": 4}])
async def test_the_row_that_comes_back_is_no_result(schema: dict[str, Any] | None, dumped: dict[str, Any]) -> None:
    row = {"score": 3, "path": "a"} if schema is None else {"score": 3, "rationale": "x"}
    for text in (json.dumps(row, **dumped), f"row:\n{json.dumps(row, **dumped)}\n", framed(json.dumps(row, **dumped))):
        assert await found(text, schema, row=row) == NoResult("it only repeated the row")


@SCHEMAS
async def test_a_row_with_line_ends_of_unicode_that_comes_back_is_no_result(schema: dict[str, Any] | None) -> None:
    instruction = 'Score "a\u2028b\x85c", as in:\n{"score": 4}\nDo not guess.'
    prompt = assignment(schema, instruction=instruction, printing=True).prompt
    answer = await found(prompt, schema, instruction=instruction)
    assert isinstance(answer, NoResult)
    assert "only repeated" in (answer.why or "")


async def test_a_row_whose_numbers_became_numbers_is_no_result() -> None:
    given = WorkerInput("prompt", {"id": "7", "text": "t"})
    for value in ({"id": 7, "text": "t"}, {"row": {"text": "t", "id": 7}}, {"row": given.row, "item_id": "row-1"}):
        answer = await result_in(json.dumps(value), ANYTHING, given)
        assert answer == NoResult("it only repeated the row"), value
    assert await result_in('{"id": 7, "text": "T"}', ANYTHING, given) == FoundResult({"id": 7, "text": "T"}, ())
    assert await result_in('{"item_id": "row-1"}', ANYTHING, given) == FoundResult({"item_id": "row-1"}, ())


async def test_the_schema_that_comes_back_is_no_result() -> None:
    loose = {"type": "object", "properties": {"score": {"type": "integer"}}}
    for schema in (SCORE_SCHEMA, loose):
        for text in (json.dumps(schema), OutputSchema.of(schema).text, f"[{json.dumps(schema)}]"):
            assert await found(text, schema) == NoResult("it only repeated the output schema")


async def test_a_row_that_the_schema_asks_for_may_be_the_answer() -> None:
    """A row that is right as it is: nobody can tell it from an answer, unless the prompt comes back around it."""
    row = {"name": "Ann", "city": "Rome"}
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in row}, "required": list(row)}
    assert await found(json.dumps(row), schema, row=row) == FoundResult(row, ())
    work = assignment(schema, row=row, printing=True)
    assert isinstance(await found(work.prompt, schema, row=row), NoResult)


async def test_an_answer_that_the_instruction_names_is_an_answer() -> None:
    instruction = f'Answer {TEXT} or {{"answer": "no"}}.\nFinal answer:\n{TEXT}\n'
    for text in (TEXT, f"Final answer:\n{TEXT}", f"```json\n{TEXT}\n```"):
        assert await found(text, ANSWER_SCHEMA, instruction=instruction) == FoundResult(YES, ())


async def test_what_follows_a_prompt_that_comes_back_counts() -> None:
    prompt = assignment(None, printing=True).prompt
    assert await found(f"{prompt}\n{TEXT}\n", None) == FoundResult(YES, ())


async def test_an_empty_object_is_a_result_where_nothing_is_asked_for() -> None:
    assert await found("{}", None) == FoundResult({}, ())


# --- Lists


@pytest.mark.parametrize("schema", [ANYTHING, ANSWER], ids=["no schema", "schema"])
@pytest.mark.parametrize(
    "text",
    [
        f"[{TEXT}, {TEXT}]",
        json.dumps([YES, {"answer": "no"}], indent=2),
        f"Working\n[{TEXT}, {TEXT}]\n",
        f"{event(level='info')}\n[{TEXT}, {TEXT}]",
        f"```json\n[{TEXT}, {TEXT}]\n```",
        framed(f"[{TEXT}, {TEXT}]"),
        framed(f"Here:\n```\n[{TEXT}, {TEXT}]\n```"),
        f"[[{TEXT}], [{TEXT}]]",
        f"The results are [{TEXT}, {TEXT}].",
        event(type="result", result=[YES, YES], session_id="s"),
    ],
)
def test_a_list_of_several_is_an_error_that_says_how_many(text: str, schema: OutputSchema) -> None:
    answer = find_result(text, schema)
    assert answer is not None
    assert "a list of 2 " in answer.violations[0]
    assert "a result is one object" in answer.violations[0]


@pytest.mark.parametrize(
    "text", [f"[{TEXT}]", f"log\n[{TEXT}]\n", f"```\n[{TEXT}]\n```", f"[{framed('working')}, {framed(TEXT)}]"]
)
def test_a_list_of_one_is_that_one(text: str) -> None:
    assert find_result(text, ANSWER) == FoundResult(YES, ())


def test_a_list_in_a_field_is_a_field() -> None:
    value = {"items": [{"a": 1}, {"a": 2}]}
    assert find_result(json.dumps(value), ANYTHING) == FoundResult(value, ())


def test_a_later_object_outranks_a_list_before_it() -> None:
    assert find_result(f'[{{"a": 1}}, {{"a": 2}}]\n{TEXT}', ANSWER) == FoundResult(YES, ())


# --- Examples


@pytest.mark.parametrize("schema", [ANYTHING, ANSWER], ids=["no schema", "schema"])
@pytest.mark.parametrize(
    "text",
    [
        f"For example, `{TEXT}` would be right, but I can't read the file.",
        f"For example, {TEXT} would be right.",
        f"For example: {TEXT}",
        f"An answer might be {TEXT}.",
        f"I could not determine it. An answer would look like this: {TEXT}",
        f"I can't. It should be something like {TEXT}",
        f"I would print e.g. {TEXT}.",
        f"For example:\n```json\n{TEXT}\n```\nI could not determine the answer.",
        f"```json\n{TEXT}\n```\nI could not determine the answer.",
        f"```json\n{TEXT}\n```\n\nUnfortunately, I was not able to find the file.",
        f"The format is:\n\n```json\n{TEXT}\n```\n\nPlease give me the file.",
        f"Here is an example:\n{TEXT}\nwould you like me to go on?",
        f"### Example\n\n```\n{TEXT}\n```\n",
        f"Possible answers:\n- {TEXT}\n- {TEXT}",
        f"If it were there, {TEXT} is what I would say.",
        f"It is either {TEXT} or {TEXT}.",
        f"{TEXT}\nI could not determine whether that is so.",
        f"If I could read it, the answer would be {TEXT}.",
        f"```json\n{TEXT}\n```\nI don't have access to the file.",
        f"{TEXT}\nI did not actually read the file.",
    ],
)
def test_an_example_in_prose_is_no_result(text: str, schema: OutputSchema) -> None:
    assert find_result(text, schema) is None
    assert find_result(framed(text), schema) is None


@pytest.mark.parametrize("schema", [ANYTHING, ANSWER], ids=["no schema", "schema"])
@pytest.mark.parametrize(
    "text",
    [
        f"Here is the result in the requested format:\n\n```json\n{TEXT}\n```",
        f"Based on the example in the instruction, the result is:\n{TEXT}",
        f"```json\n{TEXT}\n```\n\nThe answer is yes because the file says so.",
        f"I could not find a test. For example, main.py has none. The result: {TEXT}",
        f"**Result:** `{TEXT}`",
        f"{TEXT}\nDone in 3 s.",
        f"```json\n{TEXT}\n```\n\nI did not modify any files.",
        f"{TEXT}\nI didn't change anything in the repository.",
        f"{TEXT}\nI could not find any other problems, and did not run the tests.",
        f"{TEXT}\nI was unable to run the tests.",
        f"This could be a risk, so I say:\n{TEXT}",
        f"<answer>{TEXT}</answer>",
        f"I looked at it.\n<result>{TEXT}</result>\n",
        f"I can't see why not.\n\n{json.dumps(YES, indent=2)}\n",
        f"warning: could not open cache\n{TEXT}\nwarning: could not write cache",
    ],
)
def test_an_answer_in_prose_is_the_result(text: str, schema: OutputSchema) -> None:
    assert find_result(text, schema) == FoundResult(YES, ())
    assert find_result(framed(text), schema) == FoundResult(YES, ())


async def test_why_there_is_none_is_told() -> None:
    answer = await found(f"For example, {TEXT} would be right.", None)
    assert isinstance(answer, NoResult)
    assert answer.why is not None
    assert "example" in answer.why
    assert await found("I don't know.", None) == NoResult(None)
    assert UNREPORTED


@pytest.mark.parametrize("form", ["{}", "log line\n{}\nbye", "```json\n{}\n```"])
def test_line_ends_of_unicode_within_strings_end_no_line(form: str) -> None:
    value = {"answer": "a\u2028b\u2029c\x85d"}
    text = form.replace("{}", json.dumps(value, ensure_ascii=False))
    assert find_result(text, ANSWER) == FoundResult(value, ())
    assert find_result(framed(text), ANSWER) == FoundResult(value, ())


def test_of_what_codex_says_the_last_message_counts() -> None:
    def said(text: str) -> str:
        return event(type="item.completed", item={"id": "i", "type": "agent_message", "text": text})

    begin, end = event(type="thread.started", thread_id="t"), event(type="turn.completed", usage={"input_tokens": 1})
    lines = [begin, said('{"answer": "maybe"}'), said("I could not determine it."), end]
    assert find_result("\n".join(lines), ANSWER) is None
    lines = [begin, said('{"answer": "maybe"}'), said(TEXT), end]
    assert find_result("\n".join(lines), ANSWER) == FoundResult(YES, ())


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("say it\nx\n", "say it\n" * 200_000),
        ("say it\n" * 50_000, "say it\nno\n" * 50_000),
        ('{"a": [\n' * 5_000, "[\n" * 5_000),
    ],
)
def test_long_prompts_that_come_back_take_little_time(prompt: str, text: str) -> None:
    began = time.process_time()
    find_result(text + "{}", ANSWER, WorkerInput(prompt, {}))
    assert time.process_time() - began < 10


def test_a_very_long_event_is_read() -> None:
    text = f"log\n{framed('x ' * 600_000 + TEXT)}\ndone"
    assert find_result(text, ANSWER) == FoundResult(YES, ())


@pytest.mark.parametrize("depth", [150, 250, 900, 5000])
async def test_what_is_nested_too_deeply_is_no_result(depth: int) -> None:
    nested = f'{{"score": 3, "more": {"[" * depth}{"]" * depth}}}'
    for text in (nested, f"Here it is:\n{nested}\n", f"Here it is:\n```json\n{nested}\n```\nDone."):
        assert isinstance(await found(text, None), NoResult) is (depth > 200)


async def test_many_objects_are_looked_through_in_time() -> None:
    """The last ones are candidates, so that no more of them need a look at the words around."""
    answer = await found("{}\n" * 80_000 + "Done.\n", SCORE_SCHEMA)
    assert answer == FoundResult({}, ("$: 'score' is a required property",))


async def test_a_prompt_of_openings_takes_no_time() -> None:
    began = time.process_time()
    await found('{"score": 3}', SCORE_SCHEMA, instruction="[\n" * 30_000)
    assert time.process_time() - began < 3
