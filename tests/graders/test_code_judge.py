"""``code_judge`` and ``code_grader``: what programs are told, and what is made of what they say."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import GraderError, ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import loads
from manyhands.core.usage import Usage
from manyhands.graders.contract import MAX_CHARACTERS, last_object, said
from manyhands.graders.payloads import encoded, handed
from manyhands.graders.protocol import Candidate, Score, ToolUse
from manyhands.processes.scripts import ScriptResult, Scripts
from manyhands.testing.agent_doubles import ScriptedModel
from manyhands.testing.context import Crash, CrashPoint, MemoryContext
from manyhands.testing.grader_doubles import NamedJudges, ScriptedPrograms, graders_of, make_grading

ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
SEED_KEYS = [
    *("question", "criteria", "expected_output", "reference_answer", "answer", "output", "guideline_files"),
    *("input_files", "input", "trace", "file_changes", "workspace_path", "config"),
]


@pytest.fixture
async def scripts() -> AsyncIterator[Scripts]:
    async with Scripts.opened(f"tests.{os.getpid()}.judges", ENVIRON) as found:
        yield found


def candidate(folder: Path = Path(), **more: Any) -> Candidate:
    values: dict[str, Any] = {
        "question": "q",
        "criteria": "c",
        "input": ({"role": "user", "content": {"requestType": 1}},),
        "expected_output": ({"role": "assistant", "content": {"decisionCode": "CLEAR", "snake_case": 2}},),
        "reference_answer": '{"decisionCode": "CLEAR"}',
        "output": ({"role": "assistant", "toolCalls": [{"tool": "T", "input": {"originCountry": "NZ"}}]},),
        "tool_uses": (ToolUse("T"),),
        "metadata": {"someKey": True},
        "folder": folder,
        **more,
    }
    return Candidate("test-1", '{"decisionCode":"CLEAR"}', **values)


async def judged(entry: dict[str, Any], scripts: Any, folder: Path = Path(), **more: Any) -> Score:
    (grader,) = graders_of({"type": "code_judge", "name": "j", **entry}, folder=folder)
    seconds = more.pop("seconds", 20.0)
    context = more.pop("context", None)
    judges = more.pop("judges", None)
    grading = make_grading(context, scripts=scripts, seconds=seconds, judges=judges)
    return await grader.grade(candidate(folder, **more), grading)


async def printing(
    text: str | dict[str, Any], *, exit_code: int | None = 0, stderr: bytes = b"", **entry: Any
) -> Score:
    out = text if isinstance(text, str) else json.dumps(text)
    programs = ScriptedPrograms([ScriptResult(exit_code, out.encode(), stderr, 0.1)])
    return await judged({"script": "x", **entry}, programs)


# --- What a program is told


async def test_the_payload_of_a_judge() -> None:
    programs = ScriptedPrograms.printing({"score": 1})
    await judged({"script": "x", "myKey": [1], "threshold-value": {"innerKey": 2}}, programs)
    payload = programs.calls[0]["payload"]
    assert [key for key in payload if key in SEED_KEYS] == SEED_KEYS
    assert set(payload) - set(SEED_KEYS) == {"test_id", "metadata"}
    assert payload["answer"] == '{"decisionCode":"CLEAR"}'
    assert payload["expected_output"] == [{"role": "assistant", "content": {"decisionCode": "CLEAR", "snake_case": 2}}]
    assert payload["output"][0]["toolCalls"][0]["input"] == {"originCountry": "NZ"}
    assert payload["config"] == {"myKey": [1], "threshold-value": {"innerKey": 2}}
    assert (payload["test_id"], payload["metadata"]) == ("test-1", {"someKey": True})
    assert payload["trace"] is payload["file_changes"] is payload["workspace_path"] is None


async def test_config_is_null_if_there_is_none() -> None:
    programs = ScriptedPrograms.printing({"score": 1})
    await judged({"script": "x", "cwd": None, "weight": 2, "target": False}, programs)
    assert programs.calls[0]["payload"]["config"] is None


@pytest.mark.parametrize("kind", ["code-grader", "code_grader", "script", "command"])
async def test_the_later_payload(kind: str) -> None:
    programs = ScriptedPrograms.printing({"score": 1})
    trace = {"event_count": 1, "tool_calls_by_name": {"T": 1}}
    await judged({"type": kind, "script": "x"}, programs, trace=trace, cost_usd=0.5)
    payload = programs.calls[0]["payload"]
    assert payload["output"] == '{"decisionCode":"CLEAR"}'
    assert [message["role"] for message in payload["messages"]] == ["user", "assistant"]
    assert payload["messages"][1]["toolCalls"][0]["tool"] == "T"
    assert payload["trace_summary"]["tool_calls"] == {"T": 1}
    assert payload["cost_usd"] == 0.5
    assert "answer" not in payload


def test_the_payload_is_json_with_two_spaces_whatever_is_in_it() -> None:
    assert encoded({"a": [1]}) == b'{\n  "a": [\n    1\n  ]\n}\n'
    odd = {"a": "\ud800", "b": 1 << 80}
    assert json.loads(encoded(odd)) == odd


WORDS = st.sampled_from(["decisionCode", "decision_code", "decision-code", "DecisionCode", "answer", "a.b", "ü", ""])
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(DATA, st.sampled_from(["code_judge", "code_grader"]))
def test_data_of_the_persons_own_arrives_as_it_is(data: Any, kind: str) -> None:
    message = {"role": "assistant", "content": {"inner": data}, "tool_calls": [{"tool": "T", "input": data}]}
    whole = candidate(expected_output=(message,), input=(message,), output=(message,), metadata={"someKey": data})
    with handed(whole, kind, {"ownKey": data}) as payload:
        sent = loads(payload)
    assert sent["expected_output"] == sent["input"] == [message]
    assert sent["messages" if kind == "code_grader" else "output"][-1] == message
    assert (sent["metadata"], sent["config"]) == ({"someKey": data}, {"ownKey": data})


async def test_the_folder_and_the_environment(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    show = 'printf \'{"score": 1, "hits": ["%s", "%s"]}\' "$(basename "$PWD")" "$AGENTV_WORKSPACE_PATH"'
    score = await judged({"script": show, "cwd": "."}, scripts, tmp_path)
    assert score.hits == (tmp_path.name,)
    score = await judged({"script": ["sh", "-c", show], "cwd": "inner"}, scripts, tmp_path, workspace=tmp_path)
    assert score.hits == ("inner", str(tmp_path))
    score = await judged({"script": show, "cwd": "gone"}, scripts, tmp_path)
    assert score.error is not None
    assert "gone" in score.error


# --- What is made of what it says


async def test_all_that_a_program_may_say() -> None:
    value = {
        "score": 0.7,
        "hits": ["a", " ", 3, "b"],
        "misses": [None, "c"],
        "reasoning": "r",
        "details": {"innerKey": [1]},
        "verdict": "pass",
        "more": 1,
    }
    score = await printing(value)
    assert (score.value, score.verdict, score.hits, score.misses) == (0.7, "borderline", ("a", "b"), ("c",))
    assert (score.reasoning, score.details) == ("r", {"innerKey": [1]})


@pytest.mark.parametrize(("given", "value"), [(1, 1.0), (0, 0.0), (1.5, 1.0), (-3, 0.0), (1e300, 1.0)])
async def test_scores_are_clamped(given: float, value: float) -> None:
    assert (await printing({"score": given})).value == value


async def test_assertions_give_the_score_where_there_is_none() -> None:
    assertions = [
        {"text": "a", "passed": True, "evidence": "line 3"},
        {"text": "b", "passed": False},
        {"text": "c", "passed": False},
    ]
    score = await printing({"assertions": assertions})
    assert score.value == pytest.approx(1 / 3)
    assert (score.hits, score.misses) == (("a",), ("b", "c"))
    assert score.details == {"assertions": assertions}
    score = await printing({"score": 0.9, "assertions": assertions, "hits": ["own"]})
    assert (score.value, score.hits, score.misses) == (0.9, ("own",), ("b", "c"))


@pytest.mark.parametrize(
    ("reply", "value", "verdict"),
    [
        ({"pass": True, "score": 0.3, "reason": "r"}, 0.3, "pass"),
        ({"pass": False, "score": 0.9, "reason": "r"}, 0.9, "fail"),
        ({"pass": True, "reason": "r"}, 1.0, "pass"),
        ({"pass": False, "reason": "r", "assertions": []}, 0.0, "fail"),
        ({"pass": False, "assertions": [{"text": "a", "passed": True}]}, 1.0, "fail"),
        ({"pass": True, "checks": [{"text": "a", "pass": True}, {"text": "b", "pass": False}]}, 0.5, "pass"),
        ({"checks": [{"text": "a", "pass": True, "score": 0.7}, {"text": "b", "pass": True}]}, 0.85, "pass"),
        ({"score": 0.9, "pass": "no", "checks": "none", "reason": 1}, 0.9, "pass"),
        ({"score": 0.9, "checks": [{"text": "a"}]}, 0.9, "pass"),
    ],
)
async def test_the_words_of_version_5(reply: dict[str, Any], value: float, verdict: str) -> None:
    for kind in ("code_judge", "script"):
        score = await printing(reply, type=kind)
        assert score.value == pytest.approx(value)
        assert (score.verdict, score.error) == (verdict, None)


async def test_checks_are_the_hits_and_misses() -> None:
    checks = [
        {"text": "a", "pass": True, "reason": "why"},
        {"text": "b", "pass": False, "evidence": "e", "reason": "w"},
    ]
    reply = {"score": 0.5, "checks": checks, "assertions": [{"text": "c", "passed": True}], "reason": "r"}
    score = await printing(reply)
    assert (score.hits, score.misses, score.reasoning) == (("a",), ("b",), "r")
    assert score.details == {
        "assertions": [
            {"text": "a", "passed": True, "evidence": "why"},
            {"text": "b", "passed": False, "evidence": "e"},
        ]
    }
    score = await printing({**reply, "hits": [], "misses": ["m"], "reasoning": "s"})
    assert (score.hits, score.misses, score.reasoning) == ((), ("m",), "s")
    score = await printing({"pass": True, "checks": [{"text": "a", "passed": True}]})
    assert "a check must have a text and pass" in str(score.error)


async def test_a_grader_written_with_an_sdk_that_broke() -> None:
    issues = [
        {"code": "invalid_type", "path": ["input", 0, "content"], "message": "Expected string, received null"},
        {"code": "invalid_type", "path": [], "message": "Required"},
    ]
    first = {
        "score": 0,
        "assertions": [{"text": f"Evaluation failed: {json.dumps(issues, indent=2)}", "passed": False}],
    }
    reason = "Assertion failed: x is\nundefined"
    later = {"pass": False, "score": 0, "reason": reason, "checks": [{"text": "t", "pass": False, "reason": "x"}]}
    for reply, words in (
        (first, "input.0.content: Expected string, received null; input: Required"),
        (later, "x is undefined"),
    ):
        score = await printing(reply, exit_code=1, type="script")
        assert (score.value, score.error) == (None, f"the program ended with exit code 1: {words}")


async def test_who_may_ask_the_judge() -> None:
    programs = ScriptedPrograms.printing(*[{"score": 1}] * 3)
    await judged({"type": "script", "script": "x", "provider": "azure", "k": 1}, programs)
    await judged({"type": "script", "script": "x", "provider": {"max_calls": 0}}, programs)
    await judged({"type": "code_judge", "script": "x", "provider": True}, programs)
    assert [call["payload"]["config"] for call in programs.calls] == [
        {"provider": "azure", "k": 1},
        None,
        {"provider": True},
    ]
    with pytest.raises(UserError, match="provider: must be true, or a mapping with max_calls"):
        graders_of({"type": "script", "script": "x", "provider": {"max_calls": -1}})


@pytest.mark.parametrize(
    "text",
    [
        'log\n{"score": 0.5}',
        'a {"score": 1} b\n{"score": 0.5}\n',
        '{"score": 1}\n{"score": 0.5}',
        '{"score": 0.5}\nbye',
        'start\n{\n  "score": 0.5,\n  "details": {\n    "x": {}\n  }\n}\n',
        'start\n{\n  "score": 0.5,\n  "details":\n    {"score": 1}\n}\nend',
        '\ufeff{"score": 0.5}',
        '{broken\n  {"score": 0.5}',
    ],
)
async def test_the_last_object_counts(text: str) -> None:
    assert (await printing(text)).value == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "printed nothing"),
        ("fine", "no JSON object: 'fine'"),
        ("[1]", "no JSON object"),
        ('{"score": NaN}', "no JSON object"),
        ("{}", "gave no score"),
        ('{"score": "1"}', "no number"),
        ('{"score": true}', "no number"),
        ('{"score": null}', "no score"),
        ('{"score": 1, "hits": "a"}', "hits must be a list"),
        ('{"score": 1, "misses": {}}', "misses must be a list"),
        ('{"score": 1, "reasoning": 3}', "reasoning must be a text"),
        ('{"score": 1, "details": []}', "details must be an object"),
        ('{"assertions": []}', "no score"),
        ('{"assertions": [{"text": "a"}]}', "passed"),
        ('{"score": 1, "assertions": {}}', "assertions must be a list"),
    ],
)
async def test_anything_else_is_an_error_and_no_zero(text: str, words: str) -> None:
    score = await printing(text)
    assert (score.value, score.verdict) == (None, "error")
    assert words in (score.error or "")


async def test_exit_codes() -> None:
    score = await printing("boom", exit_code=3, stderr=b"one\ntwo\n")
    assert score.error == "the program ended with exit code 3: one\ntwo"
    assert (await printing("", exit_code=137)).error == "the program ended with exit code 137 (signal 9)"
    score = await printing({"score": 1}, exit_code=1, stderr=b"Traceback")  # it crashed after it had said something
    assert (score.value, score.error) == (None, "the program ended with exit code 1: Traceback")
    killed = await printing({"score": 1}, exit_code=139)  # whatever it had said by then
    assert killed.error == "the program ended with exit code 139 (signal 11)"
    assert (await printing({"score": 1}, exit_code=None, stderr=b"so far")).error == (
        "the program took more than 20 s and was stopped: so far"
    )


SCORED = [
    '{"score": 1}',
    'loading\n{"score": 1}\n',
    '{"score": 1}\ngoodbye\n',
    '{"score": "x"}',
    '[{"score": 1}]',
    '{"score": 1',
    'loading\n  {"score": 1',
    '{"assertions": [{"text": "a", "passed": true}]}',
]


@pytest.mark.parametrize("text", SCORED)
@pytest.mark.parametrize("code", [1, 2, 120, 126, 137, 139, 143, None])
async def test_a_score_of_a_program_that_failed_does_not_count(text: str, code: int | None) -> None:
    for kind in ("code_judge", "code-grader", "script", "command"):
        for stderr in (b"", b"Traceback"):
            score = await printing(text, exit_code=code, stderr=stderr, type=kind)
            assert (score.value, score.verdict) == (None, "error")
            assert ("took more than" if code is None else f"exit code {code}") in (score.error or "")
            assert "Traceback" in (score.error or "") or not stderr


async def test_a_score_that_does_not_count_is_spoken_of() -> None:
    score = await printing({"score": 1}, exit_code=1, type="script")
    assert score.error == "the program ended with exit code 1, although it had printed a score: it does not count"
    score = await printing({"error": "no database"}, exit_code=1, type="script")  # no score: these are its last words
    assert score.error == """the program ended with exit code 1: '{"error": "no database"}'"""
    assert (await printing("no database\n", exit_code=2)).error == "the program ended with exit code 2: 'no database'"


@pytest.mark.parametrize("text", ['result: {"score": 0}', "done {'score': 0.0}", 'ok: {"assertions": []}'])
async def test_a_score_within_a_line_is_no_plain_text(text: str) -> None:
    for code in (0, 1):
        assert (await printing(text, exit_code=code, type="script")).error is not None


@pytest.mark.parametrize("text", ["0", "0.2\n", ".5", "0.0", "00", "false", "null", "NaN"])
async def test_a_value_below_1_is_no_success(text: str) -> None:
    score = await printing(text, type="code-grader")
    assert score.error == f"the program printed no JSON object: '{text.strip()}'"
    for fine in ("1", "3", "true", "0 errors", "1.0"):
        assert (await printing(fine, type="code-grader")).value == 1


CRASHES = {
    "exit": "print('{\"score\": 1}'); raise SystemExit(1)",
    "exit without flushing": "print('{\"score\": 1}', flush=True); import os; os._exit(1)",
    "error": "print('{\"score\": 1}'); 1 / 0",
    "error at the end": "import atexit; atexit.register(lambda: __import__('os')._exit(3)); print('{\"score\": 1}', flush=True)",
    "signal": "print('{\"score\": 1}', flush=True); import os; os.kill(os.getpid(), 9)",
    "polite signal": "print('{\"score\": 1}', flush=True); import os; os.kill(os.getpid(), 15)",
}


@pytest.mark.parametrize("how", CRASHES)
@pytest.mark.parametrize("kind", ["code_judge", "script"])
async def test_real_programs_that_print_a_score_and_fail(kind: str, how: str, scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(CRASHES[how])
    for script in ("python3 judge.py", ["python3", "judge.py"], "true && python3 judge.py", "exec python3 judge.py"):
        score = await judged({"type": kind, "script": script}, scripts, tmp_path)
        assert (score.value, score.verdict) == (None, "error")
        assert "exit code" in (score.error or "")
    assert scripts.warm_runs == 2


async def test_real_programs_that_print_a_score_and_never_end(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("print('{\"score\": 1}', flush=True); import time; time.sleep(60)")
    for script in ("python3 judge.py", "true && python3 judge.py"):
        score = await judged({"type": "script", "script": script}, scripts, tmp_path, seconds=1.0)
        assert score.value is None
        assert "took more than 1 s" in (score.error or "")


async def test_long_errors_are_cut_at_their_beginning() -> None:
    score = await printing("", exit_code=1, stderr=b"a" * 5000 + b"the end")
    assert score.error is not None
    assert score.error.endswith("the end")
    assert len(score.error) <= 2100


async def test_later_programs_may_answer_with_their_exit_code() -> None:
    later: dict[str, Any] = {"type": "code-grader"}
    score = await printing("has 5 pages\n", **later)
    assert (score.value, score.hits) == (1.0, ("has 5 pages",))
    score = await printing("has 2 pages\n", exit_code=1, **later)
    assert (score.value, score.misses) == (0.0, ("has 2 pages",))
    assert (await printing("", **later)).hits == ("exit code 0",)
    assert (await printing("", exit_code=1, **later)).misses == ("exit code 1",)
    assert (await printing("0.9", exit_code=1, **later)).value == 0  # a number is no object
    assert (await printing("fine\n", stderr=b"a warning\n", **later)).value == 1
    for text in ("", "has 2 pages\n"):
        assert (await printing(text, exit_code=1, stderr=b"Traceback", **later)).error is not None
        assert (await printing(text, exit_code=127, **later)).error is not None
        assert (await printing(text, exit_code=137, **later)).error is not None
    assert (await printing('{"score": 1', **later)).error is not None
    assert (await printing("has 5 pages\n")).error is not None


@pytest.mark.parametrize("lines", ["{\n" * 300_000, '{"a":\n' * 100_000, "{" * 500_000, '{"a": 1}\n' * 100_000])
def test_hostile_output_is_read_quickly(lines: str) -> None:
    last_object(lines)
    assert last_object(lines + '\n{"score": 1}') == {"score": 1}


async def test_objects_are_whole_or_none(scripts: Scripts, tmp_path: Path) -> None:
    """Of very long output the middle is not kept, and what is left must not be taken for what was printed."""
    (tmp_path / "long.py").write_text('print("""{"score": 1, "details": {"x": "%s"}}""" % ("y" * 12_000_000))')
    score = await judged({"script": "python3 long.py"}, scripts, tmp_path)
    assert score.value is None
    assert "looked for in the last 1,048,576 characters" in (score.error or "")
    inner = '{"score": 0.5}'
    cut = f'{{"score": 1, "details": [{inner}, "{"x" * (MAX_CHARACTERS - len(inner) - 6)}"]}}'
    assert cut[-MAX_CHARACTERS:].startswith(inner)
    assert last_object(cut) is None
    assert last_object(f"{cut}\n{inner}") == {"score": 0.5}


@given(st.text(), st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=3))
def test_an_object_on_the_last_line_is_always_found(before: str, value: dict[str, Any]) -> None:
    before = before.replace("{", "(")
    assert last_object(f"{before}\n{json.dumps(value)}") == value


@given(
    st.dictionaries(
        st.sampled_from(["score", "hits", "misses", "reasoning", "details", "assertions"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=5,
        ),
    )
)
def test_whatever_is_said_is_a_score_or_an_error(value: dict[str, Any]) -> None:
    try:
        found = said(value, "it")
    except GraderError:
        return
    assert 0 <= found["score"] <= 1


# --- Real programs


async def test_the_judge_of_the_example_in_python(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "check-output.py").write_text(
        "import json, sys\n"
        "data = json.load(sys.stdin)\n"
        "expected = next(m['content']['decisionCode'] for m in data['expected_output'] if isinstance(m['content'], dict))\n"
        "actual = json.loads(data['answer']).get('decisionCode')\n"
        "hits = [f'decision matches: {expected}'] if expected == actual else []\n"
        "json.dump({'score': len(hits), 'hits': hits, 'misses': [], 'reasoning': 'compared'}, sys.stdout)\n"
    )
    for command in ("python3 check-output.py", ["python3", "check-output.py"]):
        score = await judged({"script": command, "cwd": "."}, scripts, tmp_path)
        assert (score.value, score.hits, score.reasoning) == (1.0, ("decision matches: CLEAR",), "compared")
    assert scripts.warm_runs == 2


async def test_hostile_programs(scripts: Scripts, tmp_path: Path) -> None:
    big = {"expected_output": ({"role": "assistant", "content": "x" * (4 << 20)},)}
    score = await judged({"script": "echo '{\"score\": 1}'"}, scripts, tmp_path, **big)
    assert score.value == 1.0
    score = await judged({"script": "exec 0<&-; sleep 0.1; echo '{\"score\": 0.5}'"}, scripts, tmp_path, **big)
    assert score.value == 0.5
    loud = "head -c 40000000 /dev/zero | tr '\\0' 'x'; echo; echo '{\"score\": 1}'"
    assert (await judged({"script": loud}, scripts, tmp_path)).value == 1.0
    score = await judged({"script": "trap '' TERM; sleep 60 & sleep 60"}, scripts, tmp_path, seconds=0.5)
    assert score.error is not None
    assert "0.5 s" in score.error
    assert "can't be started" in ((await judged({"script": ["./no"]}, scripts, tmp_path)).error or "")
    assert "exit code 127" in ((await judged({"script": "no-such-thing"}, scripts, tmp_path)).error or "")
    assert "exit code 137" in ((await judged({"script": "kill -9 $$"}, scripts, tmp_path)).error or "")


# --- Steps


async def test_a_run_is_one_step_and_never_repeated(scripts: Scripts, tmp_path: Path) -> None:
    count = "echo x >> runs; echo '{\"score\": 1}'"
    first = MemoryContext()
    await judged({"script": count}, scripts, tmp_path, context=first)
    assert [(step.kind, step.output["score"]) for step in first.steps] == [("grade", 1.0)]
    again = MemoryContext(first.journal)
    assert (await judged({"script": count}, scripts, tmp_path, context=again)).value == 1.0
    assert (tmp_path / "runs").read_text() == "x\n"


async def test_a_program_that_broke_is_run_again(scripts: Scripts, tmp_path: Path) -> None:
    once = "test -e here && echo '{\"score\": 1}' && exit; touch here; exit 1"
    context = MemoryContext()
    assert (await judged({"script": once}, scripts, tmp_path, context=context)).error is not None
    assert (await judged({"script": once}, scripts, tmp_path, context=MemoryContext(context.journal))).value == 1.0


# --- Entries


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "script is required"),
        ({"script": ""}, "script: must not be empty"),
        ({"script": []}, "script: must not be empty"),
        ({"script": ["a", 1]}, "must be a line for sh, or a list"),
        ({"script": {"a": 1}}, "must be a line for sh, or a list"),
        ({"script": "x", "command": "y"}, "is the same key"),
        ({"script": "x", "target": "yes"}, "must be true, or a mapping with max_calls"),
        ({"script": "x", "target": {"max_calls": -1}}, "must be true, or a mapping with max_calls"),
    ],
)
def test_wrong_entries(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        graders_of({"type": "code_judge", **entry})


# --- The judge, for programs


ASK = """
import json, os, sys, urllib.error, urllib.request
url, token = os.environ["AGENTV_TARGET_PROXY_URL"], os.environ["AGENTV_TARGET_PROXY_TOKEN"]
def call(path, body=None, token=token):
    request = urllib.request.Request(url + path, data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
"""


async def proxied(scripts: Scripts, folder: Path, body: str, **more: Any) -> tuple[Score, ScriptedModel]:
    (folder / "ask.py").write_text(ASK + body)
    model = ScriptedModel(
        lambda request: f"said {request.messages[-1]['content']}", usage=Usage(calls=1, input_tokens=7)
    )
    target = more.pop("target", True)
    judges = NamedJudges(model, frozenset((None, "other")))
    score = await judged({"script": "python3 ask.py", "target": target}, scripts, folder, judges=judges, **more)
    return score, model


async def test_a_program_may_ask_the_judge(scripts: Scripts, tmp_path: Path) -> None:
    body = """
info = call("/info")
one = call("/invoke", {"question": "q1", "systemPrompt": "s"})
two = call("/invokeBatch", {"requests": [{"question": "q2"}, {"question": "q3", "provider": "other"}]})
assert os.environ["AGENTV_PROVIDER_PROXY_URL"] == url
assert os.environ["AGENTV_PROVIDER_PROXY_TOKEN"] == os.environ["AGENTV_TARGET_PROXY_TOKEN"]
wrong = [call("/invoke", {"question": ""})[0], call("/invoke", {"question": "q", "target": "nobody"})[0],
    call("/invoke", [1])[0], call("/info", token="no")[0], call("/invoke", {"question": "q4"})[0]]
print(json.dumps({"score": 1, "details": {"info": info, "one": one, "two": two, "wrong": wrong}}))
"""
    score, model = await proxied(scripts, tmp_path, body, target={"max_calls": 3})
    assert score.error is None
    assert score.details is not None
    assert score.details["info"] == [
        200,
        {
            "targetName": "judge",
            "maxCalls": 3,
            "callCount": 0,
            "availableTargets": ["judge"],
            "providerLabel": "judge",
            "availableProviderLabels": ["judge"],
        },
    ]
    assert score.details["one"] == [
        200,
        {
            "output": [{"role": "assistant", "content": "said q1"}],
            "rawText": "said q1",
            "tokenUsage": {"input": 7, "output": 0, "cached": 0},
        },
    ]
    assert [each["rawText"] for each in score.details["two"][1]["responses"]] == ["said q2", "said q3"]
    assert score.details["wrong"] == [400, 404, 400, 401, 429]
    assert score.details["target_calls"] == 3
    assert [request.messages[0]["role"] for request in model.requests] == ["system", "user", "user"]


async def test_calls_of_the_judge_are_not_paid_twice(scripts: Scripts, tmp_path: Path) -> None:
    body = """
import random
names = ["a", "b", "a"]; random.shuffle(names)
print(json.dumps({"score": 1, "hits": sorted(call("/invoke", {"question": name})[1]["rawText"] for name in names)}))
"""
    dying = MemoryContext(crash=CrashPoint(1, "before_recording"))
    first, second = MemoryContext(), MemoryContext
    with pytest.raises(Crash):
        await proxied(scripts, tmp_path, body, context=dying)
    score, model = await proxied(scripts, tmp_path, body, context=first)
    assert len(model.requests) == 3
    journal = {place: step for place, step in first.journal.items() if step.kind == "model"}
    assert len(journal) == 3
    again, model = await proxied(scripts, tmp_path, body, context=second(journal))
    assert model.requests == []
    assert again.hits == score.hits == ("said a", "said a", "said b")


async def test_what_a_simulated_judge_said_is_known_of_the_score(scripts: Scripts, tmp_path: Path) -> None:
    body = 'print(json.dumps({"score": 1, "hits": [call("/invoke", {"question": "q"})[1]["rawText"]]}))'
    context = MemoryContext()
    for used in (context, MemoryContext(context.journal)):
        (tmp_path / "ask.py").write_text(ASK + body)
        model = ScriptedModel(["made up"])
        score = await judged(
            {"script": "python3 ask.py", "target": True}, scripts, tmp_path, judges=NamedJudges(model), context=used
        )
        assert (score.hits, score.usage.simulated_calls, score.simulated) == (("made up",), 1, True)


async def test_a_zero_that_a_program_made_of_an_outage_is_no_score(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(
        ASK + 'print(json.dumps({"score": float(call("/invoke", {"question": "q"})[0] == 200)}))'
    )
    entry = {"script": "python3 ask.py", "target": True}
    for cause in (Cause.RATE_LIMIT, Cause.OVER_BUDGET):
        model = ScriptedModel([ItemError(cause, "x")])
        with pytest.raises(ItemError) as raised:
            await judged(entry, scripts, tmp_path, judges=NamedJudges(model))
        assert raised.value.cause is cause
    refused = ItemError(Cause.MODEL_REFUSED, "no such model")  # which is for the program to say something about
    assert (await judged(entry, scripts, tmp_path, judges=NamedJudges(ScriptedModel([refused])))).value == 0.0


async def test_calls_that_were_refused_do_not_count(scripts: Scripts, tmp_path: Path) -> None:
    body = """
found = [call("/invoke", {"question": "q", "target": "nobody"})[0] for _ in range(3)]
found.append(call("/invoke", {"question": "q"})[0])
found.append(call("/invokeBatch", {"requests": [{"question": "q"}] * 3})[0])
print(json.dumps({"score": 1, "details": {"found": found}}))
"""
    score, _ = await proxied(scripts, tmp_path, body, target={"max_calls": 2})
    assert score.details == {"found": [404, 404, 404, 200, 429], "target_calls": 1}


async def test_the_server_is_gone_afterwards(scripts: Scripts, tmp_path: Path) -> None:
    score, _ = await proxied(scripts, tmp_path, 'print(json.dumps({"score": 1, "hits": [url]}))')
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"{score.hits[0]}/info")
