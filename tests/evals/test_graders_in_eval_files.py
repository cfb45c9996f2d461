"""Graders and options of later versions of the format, in eval files from the file to its results."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.engine.journal.reader import JournalReader
from manyhands.graders.conversations.grade_file import load_checks
from tests.support.eval_runs import EvalRun, perform_eval

ANSWER: dict[str, Any] = {
    "id": "a",
    "output": [
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {"tool": "search", "input": {"query": "cats", "limit": 10}},
                {"tool": "Skill", "input": {"skill": "pdf"}},
                {"tool": "fetch", "input": {"url": "x"}},
            ],
        },
        {"role": "assistant", "content": "Hello world, ok"},
    ],
}


async def graded(folder: Path, graders: str, answer: dict[str, Any] = ANSWER, **settings: Any) -> EvalRun:
    """A run of one test with these graders. ``settings``: ``top`` stands at the head of the file."""
    top, listed = settings.pop("top", ""), indent(dedent(graders), " " * 6)
    (folder / "suite.yaml").write_text(f"{dedent(top)}\ntests:\n  - id: a\n    input: x\n    assert:\n{listed}")
    (folder / "answers.jsonl").write_text(json.dumps(answer) + "\n")
    return await perform_eval(folder, from_output=str(folder / "answers.jsonl"), **settings)


@pytest.mark.parametrize(
    ("entry", "score"),
    [
        ("{type: contains-any, value: [nope, ok]}", 1),
        ("{type: contains-any, values: [nope, OK]}", 0),
        ("{type: contains-all, value: [Hello, world]}", 1),
        ("{type: contains-all, value: [Hello, World]}", 0),
        ("{type: icontains, value: HELLO}", 1),
        ("{type: icontains-any, value: [NOPE, HELLO]}", 1),
        ("{type: icontains-all, value: [HELLO, WORLD]}", 1),
        ("{type: icontains_all, value: [HELLO, MARS]}", 0),
        ("{type: starts-with, value: Hello}", 1),
        ("{type: startsWith, value: hello}", 0),
        ("{type: ends-with, value: ' ok '}", 1),
        ("{type: ends_with, value: world}", 0),
        ("{type: not-contains, value: error}", 1),
        ("{type: regex, value: 'WORLD', flags: i}", 1),
        ("{type: trajectory:tool-used, value: [search, fetch]}", 1),
        ("{type: 'trajectory:tool-used', value: {pattern: 'f*', min: 2}}", 0),
        ("{type: not-trajectory:tool-used, value: delete}", 1),
        ("{type: trajectory:tool-sequence, value: {mode: in_order, steps: [search, fetch]}}", 1),
        ("{type: trajectory:tool-sequence, value: {mode: exact, steps: [search, fetch]}}", 0),
        ("{type: trajectory:tool-args-match, value: {name: search, args: {query: cats}}}", 1),
        ("{type: trajectory:tool-args-match, value: {name: search, args: {query: cats}, mode: exact}}", 0),
        ("{type: trajectory:step-count, value: {type: tool, min: 1, max: 3}}", 1),
        ("{type: trajectory:step-count, value: {type: message, max: 1}}", 0),
        ("{type: skill-used, value: pdf}", 1),
        ("{type: not-skill-used, value: [pdf, xlsx]}", 0),
        ("{type: skill-trigger, skill: pdf}", 1),
        ("{type: skill-trigger, skill: xlsx, should_trigger: false}", 1),
    ],
)
async def test_kinds(entry: str, score: float, tmp_path: Path) -> None:
    record = (await graded(tmp_path, f"      - {entry}\n")).record("a")
    assert (record["score"], record["status"]) == (score, "passed" if score else "failed")


async def test_a_test_says_why_it_scores_nothing(tmp_path: Path) -> None:
    run = await graded(
        tmp_path,
        """\
              - {type: contains, value: Hello}
              - {name: gate, type: trajectory:tool-used, value: delete, required: true, min_score: 0.5}
              - type: composite
                name: outer
                assert:
                  - type: composite
                    name: inner
                    assert: [{name: deep, type: contains, value: zzz, required: 0.7}]
        """,
    )
    record = run.record("a")
    assert (record["score"], record["status"]) == (0, "failed")
    assert record["misses"][0] == "gate: 0 is below the required 0.5"
    assert "[inner] [deep] 0 is below the required 0.7" in record["misses"]
    gate = record["scores"][1]
    assert (gate["required"], gate["min_score"], gate["verdict"]) == (0.5, 0.5, "fail")


async def test_a_member_passes_from_its_own_limit_on(tmp_path: Path) -> None:
    run = await graded(
        tmp_path,
        """\
              - type: composite
                aggregator: {type: threshold, threshold: 1}
                assert:
                  - {type: tool-trajectory, mode: any_order, minimums: {search: 1, gone: 1}, min_score: 0.5}
        """,
    )
    assert run.record("a")["score"] == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "{type: trajectory:tool-usd, value: x}",
            "assert[0].type: unknown kind of grader 'trajectory:tool-usd'; did you mean trajectory:tool-used?",
        ),
        (
            "{type: contains, value: x, min_score: 1.5}",
            "assert[0].min_score: must be a number above 0 and up to 1, not 1.5",
        ),
        (
            "{type: rubrics, criteria: [{outcome: x, min_score: 7}]}",
            "assert[0].criteria[0].min_score: must be a number above 0",
        ),
        ("{type: not-contains, value: x, negate: false}", "assert[0].negate: contradicts the kind not-contains"),
        ("{type: skill-used, value: {min: 1}}", "assert[0].value: name or pattern is required"),
    ],
)
async def test_errors_name_file_line_and_field(entry: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        await graded(tmp_path, f"      - {entry}\n")
    assert "suite.yaml, line 6: tests[0]." + message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


async def test_includes_and_texts(tmp_path: Path) -> None:
    folder = tmp_path / ".agentv" / "templates"
    folder.mkdir(parents=True)
    (folder / "polite.yaml").write_text("assert:\n  - {type: starts-with, value: Hello}\n  - {include: ./more.yaml}\n")
    (folder / "more.yaml").write_text("- {type: not-contains, value: error, min_score: 0.5}\n")
    top = "targets: {judge: {provider: model, model: simulated}}\n"
    run = await graded(
        tmp_path,
        "      - include: polite\n      - Greets the world\n      - {type: skill-used, value: pdf}\n      - Is short\n",
        top=top,
        judge_target="judge",
    )
    scores = run.record("a")["scores"]
    assert [score["type"] for score in scores] == ["starts_with", "contains", "rubrics", "skill_used"]
    assert len(scores[2]["hits"]) + len(scores[2]["misses"]) == 2


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{type: llm-rubric, value: Greets politely}", "Greets politely"),
        ("{type: llm-rubric, value: [Greets politely, {outcome: Is short, weight: 2}]}", "rubric-2: Is short"),
        ("{type: llm-rubric, value: {tone: polite}}", '"tone": "polite"'),
        ("{type: trajectory:goal-success, value: {goal: Find cats}}", "Find cats"),
    ],
)
async def test_judges_are_told_of_values(entry: str, told: str, tmp_path: Path) -> None:
    run = await graded(
        tmp_path,
        f"      - {entry}\n",
        top="targets: {judge: {provider: model, model: simulated}}\n",
        judge_target="judge",
    )
    record = run.record("a")
    assert record["status"] in ("passed", "failed")
    with closing(JournalReader(run.folder)) as reader:
        row = reader.item_by_key(run.items()[0].key)
        assert row is not None
        asked = [step for step in reader.steps(row.number, row.attempt) if step.kind == "model"]
    assert told in str(asked[0].request["added"])


async def test_files_in_answers(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text("import json, sys\nprint(open(json.load(sys.stdin)['path']).read().upper())\n")
    (tmp_path / "report.shout").write_text("all quiet")
    answer = {"id": "a", "output": [{"role": "assistant", "content": [{"type": "file", "path": "report.shout"}]}]}
    top = "preprocessors: [{type: shout, command: [python3, shout.py]}]\n"
    own = "preprocessors: [{type: shout, command: cat > /dev/null; echo mine}]"
    run = await graded(
        tmp_path,
        f"      - {{type: contains, value: ALL QUIET}}\n      - {{type: contains, value: mine, {own}}}\n",
        answer,
        top=top,
    )
    assert run.record("a")["score"] == 1


async def test_files_in_answers_that_a_judge_sees_by_default(tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("all quiet")
    (tmp_path / "suite.yaml").write_text(
        dedent("""\
        targets: {judge: {provider: model, model: simulated}}
        preprocessors: [{type: xlsx, command: [cat]}]
        tests: [{id: a, input: x, criteria: reports}]
        """)
    )
    answer = {"id": "a", "output": [{"role": "assistant", "content": [{"type": "file", "path": "report.txt"}]}]}
    (tmp_path / "answers.jsonl").write_text(json.dumps(answer))
    run = await perform_eval(tmp_path, from_output=str(tmp_path / "answers.jsonl"), judge_target="judge")
    (score,) = run.record("a")["scores"]
    assert (score["type"], score["name"]) == ("llm_judge", "llm_judge")
    assert "grade" in [kind for _, kind in run.steps(run.items()[0].key)]


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ("preprocessors: [{type: a, command: [./gone.py]}]", "line 1: preprocessors[0].command: there is no program"),
        ("preprocessors: [{type: a}]", "line 1: preprocessors[0]: command is required"),
        ("preprocessors: [{type: a, command: [cat], comand: x}]", "line 1: preprocessors[0].comand: unknown key"),
        ("preprocessors: cat", "line 1: preprocessors: must be a list"),
    ],
)
async def test_preprocessors_that_can_not_be_meant(top: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        await graded(tmp_path, "      - {type: is-json}\n", top=top)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["trajectory:goal-success", "not-trajectory:goal-success", "llm-rubric"])
async def test_a_judge_is_needed_before_anything_runs(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="judge"):
        await graded(tmp_path, f"- {{type: composite, assert: [{{type: '{kind}', value: Find cats}}]}}\n")
    assert not (tmp_path / "data").exists()


def test_graders_of_batches_name_a_judge_that_there_is(tmp_path: Path) -> None:
    path = tmp_path / "checks.yaml"
    path.write_text("- {type: trajectory:goal-success, value: Find cats, target: nobody}\n")
    with pytest.raises(UserError, match="there is no judge called 'nobody' here"):
        load_checks(str(path))
    path.write_text("- {type: trajectory:goal-success, value: Find cats}\n- {type: not-skill-used, value: pdf}\n")
    assert load_checks(str(path))["graders"][1] == {"type": "skill_used", "value": "pdf", "negate": True}
