"""Graders of the ``trajectory:`` kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.graders.config import normal_entries
from manyhands.graders.protocol import Candidate, Score, ToolUse
from manyhands.graders.registry import spellings_of
from manyhands.graders.trajectory.steps import like, steps_of
from manyhands.io.locations import Location
from manyhands.testing.agent_doubles import ScriptedModel
from manyhands.testing.grader_doubles import FILE, NamedJudges, grade, graders_of, make_grading

Call = str | tuple[str, Json]


def did(*calls: Call) -> Candidate:
    uses = [ToolUse(call) if isinstance(call, str) else ToolUse(*call) for call in calls]
    return Candidate("t", "done", output=[], tool_uses=uses)


async def held(kind: str, value: Any, candidate: Candidate) -> float | None:
    """The score, of which one line says why."""
    score = await grade({"type": f"trajectory:{kind}", "value": value}, candidate)
    assert len(score.hits) + len(score.misses) == 1
    return score.value


async def refused(kind: str, value: Any, candidate: Candidate) -> float | None:
    """The score of the opposite, which may be said in two ways."""
    one = await grade({"type": f"not-trajectory:{kind}", "value": value}, candidate)
    other = await grade({"type": f"trajectory:{kind}", "value": value, "negate": True}, candidate)
    assert (one.value, one.hits, one.misses) == (other.value, other.hits, other.misses)
    return one.value


def problem(kind: str, value: Any) -> str:
    with pytest.raises(UserError) as caught:
        graders_of({"type": f"trajectory:{kind}", "value": value})
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{FILE}: [0].")


# --- Tools used


@pytest.mark.parametrize(
    ("value", "calls", "expected", "opposite"),
    [
        ("search", "search", 1, 0),
        ("SEARCH", "search", 1, 0),
        ("sea*", "search", 1, 0),
        ("s?arch", "search", 1, 0),
        ("search", "research", 0, 1),
        ("search", "", 0, 1),
        (["a", "b"], "b x a", 1, 0),
        (["a", "b"], "a", 0, 0),  # neither are all of them there, nor none
        (["a", "b"], "x", 0, 1),
        ({"name": "a"}, "a", 1, 0),
        ({"name": "a", "min": 2}, "a", 0, 1),
        ({"name": "a", "min": 2}, "a b a", 1, 0),
        ({"pattern": "a*", "max": 2}, "a ab abc", 0, 1),
        ({"pattern": "a*", "max": 2}, "a ab", 1, 0),
        ({"pattern": "a*", "max": 2}, "b", 0, 1),  # once at least, unless min says 0
        ({"pattern": "a*", "min": 0, "max": 2}, "b", 1, 0),
        ({"name": "a", "max": 0}, "b", 1, 0),
        ({"name": "a", "max": 0}, "a", 0, 1),
        ({"name": "zzz", "pattern": "a"}, "a", 1, 0),
        ({"name": "a[1]"}, "a[1]", 1, 0),
        ({"name": "a.c"}, "abc", 0, 1),
        ({"name": "a", "type": "tool"}, "a", 1, 0),
    ],
)
async def test_tools_used(value: Any, calls: str, expected: float, opposite: float) -> None:
    assert await held("tool-used", value, did(*calls.split())) == expected
    assert await refused("tool-used", value, did(*calls.split())) == opposite


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "value: must be a tool's name, a list of them, or a mapping with name or pattern, not None"),
        ("", "value: must be a tool's name"),
        ([], "value: must be a tool's name"),
        (["a", 3], "value: must be a tool's name"),
        ({"min": 2}, "value: name or pattern is required"),
        ({"name": "a", "min": -1}, "value.min: must be a whole number of 0 or more, not -1"),
        ({"name": "a", "max": 1.5}, "value.max: must be a whole number of 0 or more, not 1.5"),
        ({"name": "a", "min": True}, "value.min: must be a whole number of 0 or more, not True"),
        ({"name": "a", "min": 3, "max": 2}, "value.max: must be at least min, which is 3, not 2"),
        ({"name": "a", "type": "message"}, "value.type: must be of tool, command here, not message"),
        ({"name": "a", "type": "tol"}, "value.type: must be one of tool, command, message"),
        ({"nam": "a"}, "value.nam: unknown key; did you mean name?"),
    ],
)
def test_values_of_tools_used_that_can_not_be_meant(value: Any, message: str) -> None:
    assert problem("tool-used", value).startswith(message)


# --- Sequences


@pytest.mark.parametrize(
    ("steps", "calls", "in_order", "exact"),
    [
        ("a b", "a b", 1, 1),
        ("a b", "a x b", 1, 0),
        ("a b", "b a", 0, 0),
        ("a b", "a b b", 1, 0),
        ("a a", "a", 0, 0),
        ("a b a", "a b x a", 1, 0),
        ("a", "", 0, 0),
        ("read* write", "readFile write", 1, 1),
    ],
)
async def test_sequences(steps: str, calls: str, in_order: float, exact: float) -> None:
    candidate, wanted = did(*calls.split()), steps.split()
    assert await held("tool-sequence", wanted, candidate) == in_order
    assert await held("tool-sequence", {"steps": wanted}, candidate) == in_order
    assert (
        await held("tool-sequence", {"mode": "in_order", "steps": [{"name": each} for each in wanted]}, candidate)
        == in_order
    )
    assert await held("tool-sequence", {"mode": "exact", "steps": wanted}, candidate) == exact
    assert await refused("tool-sequence", wanted, candidate) == 1 - in_order
    assert await refused("tool-sequence", {"mode": "exact", "steps": wanted}, candidate) == 1 - exact


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a", "value: must be a list of tools, or a mapping with steps"),
        ([], "value: must not be empty"),
        ({"mode": "exact"}, "value: steps is required"),
        ({"steps": []}, "value.steps: must not be empty"),
        ({"steps": "a"}, "value.steps: must be a list"),
        ({"mode": "exakt", "steps": ["a"]}, "value.mode: must be in_order or exact, not "),
        (["a", {"pattern": ""}], "value[1].pattern: must not be empty"),
        ({"steps": ["a", {"type": "tool"}]}, "value.steps[1]: name or pattern is required"),
        ({"steps": ["a", 3]}, "value.steps[1]: must be a tool's name, or a mapping with name or pattern, not 3"),
    ],
)
def test_sequences_that_can_not_be_meant(value: Any, message: str) -> None:
    assert problem("tool-sequence", value).startswith(message)


_TOOLS = st.lists(st.sampled_from("abc"), max_size=6)


@given(_TOOLS.filter(bool), _TOOLS)
async def test_in_order_is_to_be_a_subsequence(wanted: list[str], calls: list[str]) -> None:
    rest = iter(calls)
    assert await held("tool-sequence", wanted, did(*calls)) == float(all(tool in rest for tool in wanted))
    assert await held("tool-sequence", {"mode": "exact", "steps": wanted}, did(*calls)) == float(wanted == calls)


@given(_TOOLS, st.integers(0, 4), st.integers(0, 4))
async def test_numbers_of_times(calls: list[str], least: int, more: int) -> None:
    value = {"name": "a", "min": least, "max": least + more}
    expected = float(least <= calls.count("a") <= least + more)
    assert await held("tool-used", value, did(*calls)) == expected
    assert await refused("tool-used", value, did(*calls)) == 1 - expected
    assert await held("step-count", {**value, "type": "tool"}, did(*calls)) == expected


# --- Arguments

CATS = {"query": "cats", "limit": 10, "filter": {"lang": "en", "tags": ["a", "b"]}}


@pytest.mark.parametrize(
    ("value", "given", "expected"),
    [
        ({"args": {"query": "cats"}}, CATS, 1),
        ({"arguments": {"query": "cats"}}, CATS, 1),
        ({"args": {"query": "dogs"}}, CATS, 0),
        ({"args": {"query": "cats", "page": 1}}, CATS, 0),
        ({"args": {"filter": {"lang": "en"}}}, CATS, 1),
        ({"args": {"filter": {"tags": ["a"]}}}, CATS, 0),  # lists whole, item by item
        ({"args": {"filter": {"tags": ["a", "b"]}}}, CATS, 1),
        ({"args": {"limit": 10.0}}, CATS, 1),
        ({"args": {"limit": "10"}}, CATS, 0),
        ({"args": {}}, CATS, 1),
        ({"args": CATS, "mode": "exact"}, CATS, 1),
        ({"args": {"query": "cats"}, "mode": "exact"}, CATS, 0),
        ({"args": {"query": "cats"}, "mode": "exact", "ignore": ["limit", "filt*"]}, CATS, 1),
        ({"args": {"query": "cats"}, "mode": "exact", "ignore": "limit"}, CATS, 0),
        ({"args": {"query": "cats"}, "mode": "exact", "ignore": "filter", "defaults": {"limit": 10}}, CATS, 1),
        ({"args": {"query": "cats"}, "mode": "exact", "ignore": "filter", "defaults": {"limit": 20}}, CATS, 0),
        ({"args": {"limit": 10}, "defaults": {"limit": 10}}, CATS, 1),  # what is asked for is never left out
        ({"args": {}, "mode": "exact"}, None, 1),
        ({"args": {"a": 1}}, '{"a": 1, "b": 2}', 1),
        ({"args": "cats"}, "cats", 1),
        ({"args": None}, {}, 0),
    ],
)
async def test_arguments(value: dict[str, Any], given: Json, expected: float) -> None:
    candidate = did("other", ("search", {"query": "birds"}), ("search", given))
    assert await held("tool-args-match", {"name": "search", **value}, candidate) == expected
    assert await refused("tool-args-match", {"pattern": "sea*", **value}, candidate) == 1 - expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("search", "value: must be a mapping, not "),
        ({"args": {}}, "value: name or pattern is required"),
        ({"name": "a"}, "value: args is required"),
        ({"name": "a", "args": {}, "mode": "loose"}, "value.mode: must be partial or exact, not "),
        ({"name": "a", "args": {}, "ignore": [""]}, "value.ignore: must be a text or a list of texts"),
        ({"name": "a", "args": {}, "defaults": ["x"]}, "value.defaults: must be a mapping"),
    ],
)
def test_arguments_that_can_not_be_meant(value: Any, message: str) -> None:
    assert problem("tool-args-match", value).startswith(message)


_ARGS = st.dictionaries(
    st.sampled_from("abcd"), st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2), max_size=4
)


@given(_ARGS, _ARGS)
async def test_what_is_exact_is_partial_too(expected: dict[str, Any], actual: dict[str, Any]) -> None:
    candidate = did(("t", actual))
    exact = await held("tool-args-match", {"name": "t", "args": expected, "mode": "exact"}, candidate)
    partial = await held("tool-args-match", {"name": "t", "args": expected}, candidate)
    assert exact == float(expected == actual)
    assert partial == float(
        expected.items() <= actual.items() if not any(map(_is_list, expected.values())) else _sub(expected, actual)
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _sub(expected: dict[str, Any], actual: dict[str, Any]) -> bool:
    return all(name in actual and actual[name] == value for name, value in expected.items())


def test_what_is_data_is_not_respelled() -> None:
    entry = {"type": "trajectory:tool-args-match", "value": {"name": "t", "arguments": {"camelCase": {"Inner-Key": 1}}}}
    (normal,) = normal_entries([entry], Location(FILE), folder=Path(), notices=lambda text: None)
    assert normal == {
        "type": "trajectory:tool_args_match",
        "value": {"name": "t", "args": {"camelCase": {"Inner-Key": 1}}},
    }
    assert normal_entries([normal], Location(FILE), folder=Path(), notices=lambda text: None) == [normal]


# --- Counts of steps

TALK = Candidate(
    "t",
    "done",
    output=[
        {"role": "assistant", "content": "let me see", "tool_calls": [{"tool": "search"}, {"tool": "shell"}]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "thinking", "metadata": {"codex.item.type": "reasoning"}},
        {"role": "assistant", "content": "", "tool_calls": [{"tool": "search"}]},
        {"role": "assistant", "content": "done"},
    ],
    tool_uses=[ToolUse("search"), ToolUse("shell", {"command": ["pytest", "-q"]}), ToolUse("search")],
)


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ({}, 6),
        ({"type": "tool"}, 2),
        ({"type": "command"}, 1),
        ({"type": ["tool", "command"]}, 3),
        ({"type": "message"}, 2),
        ({"type": "reasoning"}, 1),
        ({"type": "span"}, 0),
        ({"type": "search"}, 0),
        ({"type": "tool", "name": "search"}, 2),
        ({"type": "command", "pattern": "pytest*"}, 1),
        ({"type": "command", "pattern": "shell"}, 1),
        ({"pattern": "nothing"}, 0),
    ],
)
async def test_counts_of_steps(what: dict[str, Any], count: int) -> None:
    assert await held("step-count", {**what, "min": count, "max": count}, TALK) == 1
    assert await held("step-count", {**what, "min": count + 1}, TALK) == 0
    assert await held("step-count", {**what, "max": count}, TALK) == 1
    assert await refused("step-count", {**what, "max": count}, TALK) == 0
    if count:
        assert await held("step-count", {**what, "max": count - 1}, TALK) == 0


def test_the_order_of_steps() -> None:
    steps = steps_of(TALK)
    assert steps is not None
    assert [step.kind for step in steps] == ["message", "tool", "command", "reasoning", "tool", "message"]
    assert steps[2].names == ("pytest -q", "shell", "pytest")


def test_counts_that_can_not_be_meant() -> None:
    assert problem("step-count", {"type": "tool"}).startswith("value: min or max is required")
    assert problem("step-count", {"min": 2, "max": 1}).startswith("value.max: must be at least min, which is 2, not 1")
    assert problem("step-count", 3).startswith("value: must be a mapping")
    notices: list[str] = []
    graders_of({"type": "trajectory:step-count", "value": {"type": "span", "max": 0}}, notices=notices)
    assert "has no steps of the kind span" in notices[0]


@pytest.mark.parametrize("value", ["pytest", "pytest*", "shell"])
async def test_a_command_is_found_by_what_it_runs_and_by_its_tool(value: str) -> None:
    assert await held("tool-used", value, TALK) == 1
    assert await held("tool-sequence", ["search", value, "search"], TALK) == 1


# --- Whether the goal was reached


@pytest.mark.parametrize("value", ["find it", {"goal": "find it"}])
@pytest.mark.parametrize(("negate", "expected"), [(False, 0.9), (True, 0.1)])
async def test_goals(value: Any, negate: bool, expected: float) -> None:
    model = ScriptedModel([dumps({"score": 0.9, "hits": ["found"], "misses": [], "reasoning": "so"}).decode()])
    kind = "not-trajectory:goal-success" if negate else "trajectory:goal-success"
    (grader,) = graders_of({"type": kind, "value": value, "provider": "judge"})
    score = await grader.grade(TALK, make_grading(judges=NamedJudges(model, frozenset(("judge",)))))
    assert (score.value, score.type) == (expected, "trajectory:goal_success")
    told = str(model.requests[0].messages)
    assert all(part in told for part in ("find it", "1. message", "3. command: pytest -q", "2. tool: search"))


def test_goals_that_can_not_be_meant() -> None:
    assert problem("goal-success", "").startswith("value: must be a text, or a mapping with goal")
    assert problem("goal-success", {"gaol": "x"}).startswith("value.gaol: unknown key; did you mean goal?")


# --- What holds for all of them

VALUES: dict[str, Any] = {
    "tool-used": "a",
    "tool-sequence": ["a"],
    "tool-args-match": {"name": "a", "args": {}},
    "step-count": {"max": 3},
    "goal-success": "x",
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("prefix", ["", "not-", "not_"])
async def test_what_nobody_knows_is_a_miss_either_way(kind: str, prefix: str) -> None:
    score: Score = await grade({"type": f"{prefix}trajectory:{kind}", "value": VALUES[kind]}, Candidate("t", "text"))
    if kind == "goal-success" and prefix:  # its opposite is 1 − score
        return
    assert (score.value, score.misses) == (0, ("no data about tool calls",))


@pytest.mark.parametrize("kind", VALUES)
async def test_a_trace_that_only_counts_is_not_enough(kind: str) -> None:
    score = await grade(
        {"type": f"trajectory:{kind}", "value": VALUES[kind]}, Candidate("t", "", trace={"event_count": 2})
    )
    assert score.value is None
    assert score.error is not None
    assert "only counts" in score.error
    none = await grade({"type": "trajectory:tool-used", "value": "a"}, Candidate("t", "", trace={"event_count": 0}))
    assert none.value == 0


@pytest.mark.parametrize("kind", VALUES)
async def test_weights_and_minimums_at_every_depth(kind: str) -> None:
    if kind == "goal-success":
        return
    entry = {"type": f"not-trajectory:{kind}", "value": VALUES[kind], "required": True, "weight": 3, "min_score": 0.5}
    composite = {"type": "composite", "assert": [entry, {"type": "contains", "value": "done", "weight": 1}]}
    score = await grade({"type": "composite", "assert": [composite]}, did("a"))
    assert score.value == 0
    assert "0 is below the required 0.5" in score.misses[0]


@pytest.mark.parametrize(
    ("spelled", "near"),
    [
        ("trajectory:tool-usd", "trajectory:tool-used"),
        ("trajectory:sequence", "trajectory:tool-sequence"),
        ("trajectory:zzz", "trajectory:"),
        ("not-trajectory:goal-sucess", "trajectory:goal-success"),
    ],
)
def test_unknown_kinds_name_the_nearest(spelled: str, near: str) -> None:
    with pytest.raises(UserError, match=f"unknown kind of grader .*did you mean {near}"):
        graders_of({"type": spelled, "value": "x"})


@pytest.mark.parametrize("spelled", ["trajectory:tool-used", "trajectory:tool_used", "trajectory:toolUsed"])
async def test_spellings(spelled: str) -> None:
    score = await grade({"type": spelled, "value": "a"}, did("a"))
    assert (score.type, score.name, score.value) == ("trajectory:tool_used", "trajectory:tool_used-a", 1)
    assert {"trajectory:tool-used", "trajectory:tool_used"} == set(spellings_of("trajectory:tool_used"))


@given(st.text(max_size=8))
def test_a_name_is_like_itself_and_like_anything(name: str) -> None:
    assert like(name, "*")
    if not set(name) & set("*?"):
        assert like(name, name)
        assert like(name.upper(), name) or len(name.upper()) != len(name) or name.upper().lower() != name.lower()


# --- not- before other kinds


@pytest.mark.parametrize(
    ("entry", "answer", "expected"),
    [
        ({"type": "not-contains", "value": "error"}, "all well", 1),
        ({"type": "not-contains", "value": "error"}, "an error", 0),
        ({"type": "not_icontains_any", "value": ["a", "b"]}, "xyz", 1),
        ({"type": "notIsJson"}, "{}", 0),
        ({"type": "not-regex", "value": "\\d"}, "no digits", 1),
        ({"type": "not-equals", "value": "x", "negate": True}, "y", 1),  # said twice, meant once
    ],
)
async def test_the_opposite_of_other_kinds(entry: dict[str, Any], answer: str, expected: float) -> None:
    assert (await grade(entry, answer)).value == expected


def test_senses_that_contradict_each_other() -> None:
    with pytest.raises(UserError, match=r"\[0\]\.negate: contradicts the kind not-contains"):
        graders_of({"type": "not-contains", "value": "x", "negate": False})
    with pytest.raises(UserError, match=r"unknown kind of grader .contans.*did you mean contains"):
        graders_of({"type": "not-contans", "value": "x"})


def test_a_program_may_be_called_not_something(tmp_path: Path) -> None:
    folder = tmp_path / ".agentv" / "assertions"
    folder.mkdir(parents=True)
    (folder / "not-empty.py").write_text("print('{\"score\": 1}')\n")
    (entry,) = normal_entries([{"type": "not-empty"}], Location(FILE), folder=tmp_path, notices=lambda text: None)
    assert entry == {"type": "not-empty"}
    (entry,) = normal_entries([{"type": "not-not-empty"}], Location(FILE), folder=tmp_path, notices=lambda text: None)
    assert entry == {"type": "not-empty", "negate": True}
