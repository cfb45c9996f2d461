"""Stages of a row: read from a file or from columns, refused with file, line and field, executed one after the other, each once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.engine.contract import Item, RecordedStep
from manyhands.testing.agent_doubles import FakeBackend, FakeTool, Folder, ScriptedModel, assistant, tool_call
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal
from manyhands.workloads.csv_jobs.rows.planning import JobRow
from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.csv_jobs.stages.definitions import Definitions, own_schema
from manyhands.workloads.csv_jobs.stages.row_stages import stage_columns, stages_for
from manyhands.workloads.csv_jobs.workers.agent import AgentWorker
from manyhands.workloads.csv_jobs.workers.function import FunctionWorker
from manyhands.workloads.csv_jobs.workers.reports import Accepted, Assignment, StageOfRow, Worker
from manyhands.workloads.csv_jobs.workers.staged import StagedWork, done_before
from tests.support.job_rows import JOB_ID, SCORE_SCHEMA, assignment

HEADERS = ("text", "lang", "a b")
CELLS = ("A day at sea", "en", "{text}")
THREE = [
    {"name": "summary", "instruction": "Sum up {text}."},
    {"name": "score", "instruction": "Score {summary}.", "output_schema": SCORE_SCHEMA, "when": 'lang == "en"'},
    {"name": "reply", "instruction": "{a b}: {score.rationale} {{x}} {summary.summary}", "when": "score >= 5"},
]


def stages_of(value: Any) -> Definitions:
    found = JobSpec(csv_path="t.csv", stages=value).stages
    assert found is not None
    return found


def refused(value: Any, headers: Sequence[str] = HEADERS) -> list[str]:
    with pytest.raises(UserError) as caught:
        stages_for(stages_of(value), headers)
    return str(caught.value).splitlines()


# --- What is written


def test_files_columns_and_mappings_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "score.md").write_text("Score {summary}.")
    (tmp_path / "inner" / "schema.json").write_text(json.dumps(SCORE_SCHEMA))
    (tmp_path / "inner" / "s.yaml").write_text(
        "stages:\n"
        "- name: summary\n  instruction: Sum up {text}.\n"
        "- {name: score, instruction-file: score.md, outputSchema: schema.json, when: 'lang == \"en\"'}\n"
        "- name: reply\n  instruction: '{a b}: {score.rationale} {{x}} {summary.summary}'\n  when: score >= 5\n"
    )
    (tmp_path / "s.json").write_text(json.dumps(THREE, indent="\t"))
    expected = stages_of(THREE)
    assert [stage["name"] for stage in expected] == ["summary", "score", "reply"]
    assert expected[0]["output_schema"] == own_schema("summary")
    assert stages_of(str(tmp_path / "inner" / "s.yaml")) == stages_of(str(tmp_path / "s.json")) == expected
    assert stages_of(["summary=Sum up {text}.", " b = Is {summary} == 1?"]) == stages_of(
        [THREE[0], {"name": "b", "instruction": " Is {summary} == 1?"}]
    )
    spec = JobSpec(csv_path="t.csv", stages=THREE)
    assert JobSpec.from_record(json.loads(json.dumps(spec.recorded())), data_dir="d").stages == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml, line 1: has no stages"),
        ("name: a", "s.yaml, line 1: must be a list of stages, or have one key: stages"),
        ("- a", "s.yaml, line 1: [0]: must be a mapping, not 'a'"),
        ("- name: a", "s.yaml, line 1: [0].name: the stage needs an instruction or an instruction_file, and not both"),
        ("- instruction: x", "s.yaml, line 1: [0]: name is required"),
        ("- name: a\n  instruction: x\n  whenn: y", "s.yaml, line 3: [0].whenn: unknown key; did you mean when?"),
        (
            "- name: a\n  instruction: x\n  when: lang = 1",
            "s.yaml, line 3: [0].when: write '==' at '= 1' in 'lang = 1'",
        ),
        ("- name: a.b\n  instruction: x", "s.yaml, line 1: [0].name: 'a.b' can't be the name of a stage, which may be"),
        ("- name: a\n  instruction: ' '", "s.yaml, line 2: [0].instruction: must not be empty"),
        (
            "- name: a\n  instruction: x\n- name: A\n  instruction: x",
            "s.yaml, line 3: [1].name: there are two stages called 'A'",
        ),
        (
            "- name: a\n  instruction: x\n  output_schema: {type: strin}",
            "s.yaml, line 3: [0].output_schema: output_schema.type: 'strin' is not one of",
        ),
        ("- name: a\n  instruction: x\n  output_schema: no.json", "s.yaml, line 3: [0].output_schema: can't read"),
        (
            "- name: a\n  instruction: x\n  output_schema: true",
            "s.yaml, line 3: [0].output_schema: must be a mapping, or the name",
        ),
        (
            "- name: a\n  instruction: 'Say {\"b\": 1}'",
            's.yaml, line 2: [0].instruction: {"b": 1} names no column and no earlier stage; '
            "there are: text, lang, a b; braces that mean themselves are doubled: {{ and }}",
        ),
        ("- name: a\n  instruction_file: no.md", "s.yaml, line 2: [0].instruction_file: can't read"),
        ("- name: lang\n  instruction: x", "s.yaml, line 1: [0].name: 'lang' is a column of the table already"),
        ("- name: status\n  instruction: x", "s.yaml, line 1: [0].name: 'status' is a column of every output already"),
        (
            "- name: a\n  instruction: 'x {txt}'",
            "s.yaml, line 2: [0].instruction: {txt} names no column and no earlier stage; did you mean text?; there are: text, ",
        ),
        (
            "- name: a\n  instruction: |\n    x\n    {a}",
            "s.yaml, line 2: [0].instruction: {a} is the stage's own result, which is not there before the stage has run (in line 2 of it)",
        ),
        (
            "- name: a\n  instruction: '{b.c}'\n- name: b\n  instruction: '{text}'",
            "s.yaml, line 2: [0].instruction: {b.c} is the result of a later stage; move it before 'a'",
        ),
        (
            "- name: a\n  instruction: x\n  when: b == 1\n- name: b\n  instruction: '{a}'",
            "s.yaml, line 3: [0].when: b is the result of a later stage, which itself needs 'a'",
        ),
        (
            "- name: a\n  instruction: x\n- name: b\n  instruction: '{a.b}'",
            "s.yaml, line 4: [1].instruction: {a.b} names no property of that result; its schema has: a",
        ),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(text)
    (line,) = refused("s.yaml")
    assert line.startswith(message), line


def test_a_wrong_name_in_a_file_of_its_own_is_said_with_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("one\ntwo {three}\n")
    (tmp_path / "s.yaml").write_text("- {name: a, instruction_file: a.md}\n- {name: b, instruction: '{four}'}\n")
    lines = refused(str(tmp_path / "s.yaml"))
    assert lines[0].startswith(f"{tmp_path / 'a.md'}, line 2: {{three}} names no column and no earlier stage")
    assert lines[1].startswith(f"{tmp_path / 's.yaml'}, line 2: [1].instruction: {{four}} names no column")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["a"], "--column: must be NAME=INSTRUCTION, not 'a'"),
        (["a=x", "=y"], "--column 2: must be NAME=INSTRUCTION, not '=y'"),
        (["a=x", "b={c}"], "--column 2: {c} names no column and no earlier stage"),
        (["a/b=x"], "--column: 'a/b' can't be the name of a stage"),
    ],
)
def test_a_wrong_column_is_said_with_its_number(columns: list[str], message: str) -> None:
    assert refused(columns)[0].startswith(message)


def test_parts_that_a_schema_leaves_open_can_be_named() -> None:
    for schema in (
        {},
        {"properties": {"x": {}}, "additionalProperties": True},
        {"properties": {"c": {"type": "object"}}},
    ):
        second = {"name": "b", "instruction": "{a.c.d}"}
        assert stages_for(stages_of([{"name": "a", "instruction": "x", "output_schema": schema}, second]), HEADERS)


# --- What a name stands for


@pytest.mark.parametrize(
    ("schema", "result", "value"),
    [
        (None, {"a": 3}, 3),
        ({"properties": {"a": {}, "why": {}}}, {"why": "x"}, None),
        ({"properties": {"only": {}}}, {"only": [1]}, [1]),
        ({"properties": {"result": {}, "why": {}}}, {"result": "r", "why": "x"}, "r"),
        ({"properties": {"b": {}, "c": {}}}, {"b": 1}, {"b": 1}),
        ({}, {"a": 1}, {"a": 1}),
    ],
)
def test_the_name_of_a_stage_stands_for_its_value(
    schema: dict[str, Any] | None, result: dict[str, Any], value: Any
) -> None:
    first: dict[str, Any] = {"name": "a", "instruction": "x"} | ({} if schema is None else {"output_schema": schema})
    one, two = stages_for(stages_of([first, {"name": "b", "instruction": "{a}"}]), HEADERS)
    assert one.value(result) == value
    written = two.instruction(CELLS, {"a": result})
    assert written == (
        "" if value is None else value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    )
    assert two.instruction(CELLS, {"a": None}) == ""
    assert two.instruction(CELLS, None) == "{a}"


def test_columns_of_stages() -> None:
    stages = stages_for(stages_of(THREE), HEADERS)
    assert [column.column for column in stage_columns(stages, False)] == ["summary", "score", "reply"]
    flat = stage_columns(stages, True)
    assert [column.column for column in flat] == ["summary", "score", "score.score", "score.rationale", "reply"]
    found = {"summary": {"state": "skipped"}, "score": {"state": "completed", "result": {"score": 3}}}
    assert [column.of(found) for column in flat] == [None, 3, 3, None, None]


# --- Executed


class Rows:
    """A job's stages over one row, whose worker function counts its calls; earlier attempts can be looked up."""

    def __init__(self, stages: Any = THREE, cells: Sequence[Any] = CELLS) -> None:
        self.stages = {stage.name: stage for stage in stages_for(stages_of(stages), HEADERS)}
        self.item = Item(1, "row-1", JobRow(0, 2, None, tuple(cells)).to_json())
        self.attempts: dict[int, MemoryJournal] = {}
        self.work = StagedWork(tuple(self.stages.values()), self.assignment)
        self.calls: Counter[str] = Counter()
        self.stopped = 0

    def assignment(self, item: Item, stage: StageOfRow) -> Assignment:
        here, cells = self.stages[stage.name], JobRow.of(item).cells
        made = assignment(here.schema.value, row=dict(zip(HEADERS, cells, strict=True)))
        instruction = here.instruction(cells, stage.results)
        return Assignment(**{name: getattr(made, name) for name in made.__slots__} | {
            "instruction": instruction, "prompt": instruction, "stage": stage
        })  # fmt: skip

    def earlier(self, item: int, attempt: int) -> Sequence[RecordedStep]:
        return list(self.attempts.get(attempt, {}).values())

    async def run(self, worker: Worker, attempt: int = 1, crash: CrashPoint | None = None) -> Accepted:
        journal = self.attempts.setdefault(attempt, {})
        facts = done_before(self.item, attempt, self.earlier)
        context = Attempt(journal, item=self.item, crash=crash, facts=facts)
        context.number = attempt
        return await self.work.run(context, worker, self.stop)

    def stop(self) -> None:
        self.stopped += 1

    def function(self, *scores: int | Exception) -> FunctionWorker:
        """Returns what fits; ``scores``: of the stage ``score``, call by call."""
        left = list(scores)

        def work(row: dict[str, Any], assignment: Assignment) -> dict[str, Any]:
            assert assignment.stage is not None
            name = assignment.stage.name
            self.calls[name] += 1
            if name != "score":
                return {name: f"{name} of {assignment.instruction}"}
            score = left.pop(0) if left else 7
            if isinstance(score, Exception):
                raise score
            return {"score": score, "rationale": row["summary"]}

        return FunctionWorker("here:work", work)


class Attempt(MemoryContext):
    number = 1

    @property
    def attempt(self) -> int:
        return self.number


async def test_each_stage_gets_the_results_of_those_before_it() -> None:
    rows = Rows()
    accepted = await rows.run(rows.function())
    summary = "summary of Sum up A day at sea."
    reply = f"reply of {{text}}: {summary} {{x}} {summary}"
    assert accepted.result == {
        "summary": {"state": "completed", "result": {"summary": summary}},
        "score": {"state": "completed", "result": {"score": 7, "rationale": summary}},
        "reply": {"state": "completed", "result": {"reply": reply}},
    }
    assert (accepted.via, accepted.stop, accepted.corrections) == ("function", False, 0)
    states = rows.work.states(rows.item, rows.earlier(1, 1), accepted.to_json())
    assert [(each.name, each.state, each.result) for each in states] == [
        (name, "completed", entry["result"]) for name, entry in accepted.result.items()
    ]


async def test_stages_whose_condition_does_not_hold_are_skipped() -> None:
    rows = Rows()
    accepted = await rows.run(rows.function(4))
    assert [entry["state"] for entry in accepted.result.values()] == ["completed", "completed", "skipped"]
    rows = Rows(cells=("x", "de", ""))
    accepted = await rows.run(rows.function())
    assert accepted.result["score"] == accepted.result["reply"] == {"state": "skipped"}
    assert rows.calls == {"summary": 1}
    assert [each.state for each in rows.work.states(rows.item, [], accepted.to_json())] == [
        "completed",
        "skipped",
        "skipped",
    ]


async def test_a_row_of_which_all_stages_are_skipped_is_completed() -> None:
    rows = Rows([{"name": "a", "instruction": "x", "when": "false"}])
    accepted = await rows.run(rows.function())
    assert accepted == Accepted({"a": {"state": "skipped"}}, None, "none")


@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
async def test_after_a_crash_at_any_step_nothing_recorded_is_done_again(when: Any) -> None:
    expected = (await Rows().run(Rows().function())).result
    for step in range(1, 7):
        rows = Rows()
        with pytest.raises(Crash):
            await rows.run(rows.function(), crash=CrashPoint(step, when))
        recorded = {scope for scope, _ in rows.attempts[1] if scope}
        before = Counter(rows.calls)
        assert (await rows.run(rows.function())).result == expected
        assert all(rows.calls[scope] == before[scope] for scope in recorded)
        assert sum(rows.calls.values()) <= 4
    assert (await rows.run(FunctionWorker("here:work", lambda row: {}))).result == expected


async def test_a_failed_stage_keeps_the_results_before_it_and_the_next_attempt_takes_them_over() -> None:
    rows = Rows()
    worker = rows.function(ItemError(Cause.WORKER_ERROR, "no"), 30, 8)
    with pytest.raises(ItemError) as caught:
        await rows.run(worker)
    error = caught.value
    assert (error.cause, error.message) == (Cause.WORKER_ERROR, "stage score: no")
    assert error.record["stages"]["summary"]["state"] == "completed"
    assert error.record["stages"]["score"] == {"state": "failed", "error": "no"}
    assert error.record["stages"]["reply"] == {"state": "pending"}
    states = rows.work.states(rows.item, rows.earlier(1, 1), error.record)
    assert [(each.state, each.work is not None) for each in states] == [
        ("completed", True),
        ("failed", True),
        ("pending", False),
    ]
    with pytest.raises(ItemError, match="stage score: the result does not fit") as caught:
        await rows.run(worker, attempt=2)
    assert caught.value.record["last_report"]["score"] == 30
    accepted = await rows.run(worker, attempt=3)
    assert accepted.result["score"]["result"]["score"] == 8
    assert rows.calls == {"summary": 1, "score": 3, "reply": 1}
    assert await rows.run(worker, attempt=3) == accepted
    await rows.run(worker, attempt=4)
    assert rows.calls == {"summary": 2, "score": 4, "reply": 2}, "what was complete is done again as a whole"


@pytest.mark.parametrize("cells", [("Other", "en", "{text}"), ("A day at sea", "en", "what no prompt has so far")])
async def test_what_an_earlier_attempt_did_for_another_row_is_not_taken_over(cells: tuple[str, ...]) -> None:
    rows = Rows()
    with pytest.raises(ItemError):
        await rows.run(rows.function(ItemError(Cause.WORKER_ERROR, "no")))
    rows.item.payload = JobRow(0, 2, None, cells).to_json()
    accepted = await rows.run(rows.function(), attempt=2)
    assert accepted.result["summary"]["result"] == {"summary": f"summary of Sum up {cells[0]}."}
    assert rows.calls == {"summary": 2, "score": 2, "reply": 1}


async def test_an_attempt_takes_over_from_the_latest_that_had_begun() -> None:
    rows = Rows()
    worker = rows.function(ItemError(Cause.WORKER_ERROR, "no"), ItemError(Cause.WORKER_ERROR, "no"))
    with pytest.raises(ItemError):
        await rows.run(worker)
    with pytest.raises(ItemError):
        await rows.run(worker, attempt=4)
    for step in rows.attempts[4].values():  # earlier versions recorded nothing of the columns
        for output in step.output.values():
            del output["columns"]
    accepted = await rows.run(worker, attempt=6)
    assert accepted.result["score"]["result"]["score"] == 7
    assert rows.calls == {"summary": 1, "score": 3, "reply": 1}


# --- The built-in agent


async def test_each_stage_is_a_conversation_with_a_report_tool_for_its_schema_and_a_sandbox_of_its_own(
    tmp_path: Path,
) -> None:
    def reply(result: Mapping[str, Any], **more: Any) -> Any:
        return assistant(None, tool_call(REPORT_TOOL, {"job_id": JOB_ID, "item_id": "row-1", "result": result, **more}))

    turns = [
        assistant(None, tool_call("write", {}, "w1")), reply({"summary": "S"}),
        assistant(None, tool_call("write", {}, "w2")), reply({"score": 30}), reply({"score": 3}, stop=True),
    ]  # fmt: skip
    model, backend, rows = ScriptedModel(turns), FakeBackend(Folder()), Rows()
    options = JobSpec(csv_path="t.csv", stages=THREE, model="simulated")
    tools = [FakeTool("write", changes_world=True)]
    worker = AgentWorker(options, tools, model=model, backend=backend, run_folder=tmp_path)
    accepted = await rows.run(worker)
    assert accepted.result["score"]["result"] == {"score": 3}
    assert (accepted.stop, accepted.corrections, rows.stopped) == (True, 1, 1)
    reports = [
        next(tool["function"]["parameters"] for tool in request.tools if tool["function"]["name"] == REPORT_TOOL)
        for request in (model.requests[0], model.requests[2])
    ]
    assert [list(each["properties"]["result"]["properties"]) for each in reports] == [
        ["summary"],
        ["score", "rationale"],
    ]
    assert len(model.requests) == 5
    assert [request.messages[-1]["content"] for request in (model.requests[0], model.requests[2])] == [
        "Sum up A day at sea.",
        "Score S.",
    ]
    assert len(backend.made) == 2
    assert (await rows.run(worker)) == accepted
    assert len(model.requests) == 5
