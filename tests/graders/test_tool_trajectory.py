"""``tool_trajectory`` in all modes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.graders.protocol import Candidate, Score, ToolUse
from manyhands.graders.trajectory.tool_calls import max_pairs
from manyhands.testing.grader_doubles import grade, graders_of

Call = str | tuple[str, Json] | tuple[str, Json, float | None]


def uses(calls: list[Call]) -> list[ToolUse]:
    return [
        ToolUse(call) if isinstance(call, str) else ToolUse(call[0], call[1], None, call[2] if len(call) > 2 else None)
        for call in calls
    ]


async def held(calls: list[Call], **entry: Any) -> Score:
    return await grade({"type": "tool_trajectory", **entry}, Candidate("t", "", output=[], tool_uses=uses(calls)))


def tools(names: str) -> list[dict[str, str]]:
    return [{"tool": name} for name in names]


@pytest.mark.parametrize(
    ("minimums", "calls", "expected"),
    [
        ({"a": 1}, "a", 1),
        ({"a": 2}, "aba", 1),
        ({"a": 2, "b": 2}, "aba", 0.5),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "ab", 0.5),
        ({"a": 0}, "", 1),
        ({}, "ab", 1),
        ({"x": 1}, "ab", 0),
    ],
)
async def test_any_order(minimums: dict[str, int], calls: str, expected: float) -> None:
    assert (await held(list(calls), mode="any_order", minimums=minimums)).value == expected


@pytest.mark.parametrize(
    ("expected", "calls", "in_order", "exact", "superset", "subset"),
    [
        ("ab", "ab", 1, 1, 1, 1),
        ("ab", "axb", 1, 1 / 3, 1, 2 / 3),
        ("ab", "ba", 1 / 2, 0, 1, 1),
        ("ab", "abxx", 1, 1 / 2, 1, 1 / 2),
        ("ab", "a", 1 / 2, 1 / 2, 1 / 2, 1),
        ("abc", "ac", 2 / 3, 1 / 3, 2 / 3, 1),
        ("aa", "a", 1 / 2, 1 / 2, 1 / 2, 1),
        ("a", "aaa", 1, 1 / 3, 1, 1),
        ("ab", "", 0, 0, 0, 1),
        ("ab", "xy", 0, 0, 0, 0),
    ],
)
async def test_modes(expected: str, calls: str, in_order: float, exact: float, superset: float, subset: float) -> None:
    values = {"in_order": in_order, "exact": exact, "superset": superset, "subset": subset}
    for mode, value in values.items():
        score = await held(list(calls), mode=mode, expected=tools(expected))
        assert score.value == pytest.approx(value), mode


async def test_no_calls_expected() -> None:
    assert (await held([], mode="exact", expected=[])).value == 1
    assert (await held(["a"], mode="exact", expected=[])).value == 0
    assert (await held([], mode="subset", expected=[])).value == 1
    assert (await held(["a"], mode="subset", expected=[])).value == 0


async def test_a_call_with_other_arguments_is_used_up() -> None:
    expected = [{"tool": "a", "args": {"x": 1}}, {"tool": "b"}]
    assert (await held([("a", {"x": 2}), ("a", {"x": 1}), "b"], mode="in_order", expected=expected)).value == 0.5
    twice = [{"tool": "a", "args": {"x": 1}}, {"tool": "a", "args": {"x": 2}}]
    assert (await held([("a", {"x": 2}), ("a", {"x": 1})], mode="in_order", expected=twice)).value == 0
    assert (await held([("a", {"x": 9}), ("a", {"x": 2})], mode="in_order", expected=twice)).value == 0.5


async def test_a_missing_call_uses_up_nothing() -> None:
    score = await held(["a", "c", "d"], mode="in_order", expected=tools("abcd"))
    assert score.value == 0.75
    assert score.misses == ("b not called any more",)


async def test_superset_finds_the_best_matching() -> None:
    """Taken in their order, the first would get the only call that the second can have."""
    expected = [{"tool": "a"}, {"tool": "a", "args": {"x": 1}}]
    score = await held([("a", {"x": 1}), ("a", {"x": 2})], mode="superset", expected=expected)
    assert score.value == 1


@pytest.mark.parametrize(
    ("match", "expected", "actual", "fits"),
    [
        ("exact", {"x": 1}, {"x": 1}, True),
        ("exact", {"x": 1}, {"x": 1.0}, True),
        ("exact", {"x": 1}, {"x": True}, False),
        ("exact", {"x": 1}, {"x": 1, "y": 2}, False),
        ("exact", {"x": [1, {"y": None}]}, {"x": [1, {"y": None}]}, True),
        ("exact", {}, None, True),
        ("exact", {"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ("exact", "text", "text", True),
        ("superset", {"x": 1}, {"x": 1, "y": 2}, True),
        ("superset", {"x": 1}, {"x": 2, "y": 2}, False),
        ("superset", {"x": 1, "z": 1}, {"x": 1}, False),
        ("superset", {"x": {"y": 1}}, {"x": {"y": 1, "z": 2}}, False),
        ("superset", [1], [1, 2], False),
        ("subset", {"x": 1, "y": 2}, {"x": 1}, True),
        ("subset", {"x": 1, "y": 2}, {"x": 1, "z": 1}, False),
        ("subset", {"x": 1}, {"x": 2}, False),
        ("subset", {"x": 1}, {}, True),
        ("ignore", {"x": 1}, {"y": 2}, True),
        (["x"], {"x": 1, "y": 1}, {"x": 1, "y": 2}, True),
        (["x"], {"x": 1}, {"x": 2}, False),
        (["x"], {"x": 1}, {}, False),
        (["z"], {"x": 1}, {"x": 2}, True),
        (["a.b[0]"], {"a": {"b": [1, 2]}}, {"a": {"b": [1, 9]}}, True),
        (["a.b"], {"a": {"b": 1}}, {"a": 1}, False),
        (["x"], {"x": None}, {}, False),
        ([], {"x": 1}, {"x": 2}, True),
        ("exact", "any", {"x": 2}, True),
        ("exact", None, {"x": 2}, True),
    ],
)
async def test_arguments(match: Json, expected: Json, actual: Json, fits: bool) -> None:
    for entry in (
        {"args_match": match, "expected": [{"tool": "a", "args": expected}]},
        {"args_match": "exact", "expected": [{"tool": "a", "args": expected, "argsMatch": match}]},
    ):
        assert (await held([("a", actual)], mode="exact", **entry)).value == float(fits)


@pytest.mark.parametrize(
    ("mode", "calls", "value"),
    [
        ("exact", [("a", {}, 5)], 1),
        ("exact", [("a", {}, 6)], 0.5),
        ("exact", [("a", {}, None)], 1),
        ("exact", [("b", {}, 1)], 0),
        ("exact", [("a", {}, 5), "b"], 2 / 3),
        ("in_order", ["b", ("a", {}, 5)], 1),
        ("in_order", ["b", ("a", {}, 5.5)], 0.5),
        ("in_order", [], 0),
    ],
)
async def test_limits_of_single_calls(mode: str, calls: list[Call], value: float) -> None:
    score = await held(calls, mode=mode, expected=[{"tool": "a", "maxDurationMs": 5}])
    assert score.value == pytest.approx(value)
    unmeasured = any(isinstance(call, tuple) and call[2:] == (None,) for call in calls)
    assert ("no duration is known: a" in (score.reasoning or "")) == unmeasured


def test_limits_where_they_are_not_checked() -> None:
    notices: list[str] = []
    entry = {"type": "tool_trajectory", "mode": "subset", "expected": [{"tool": "a", "max_duration_ms": 5}]}
    graders_of(entry, notices=notices)
    place = "checks.yaml: [0].expected[0].max_duration_ms"
    assert notices == [f"{place}: is checked in the modes in_order and exact only"]


async def test_without_data() -> None:
    entry = {"type": "tool_trajectory", "mode": "subset", "expected": tools("a")}
    score = await grade(entry, Candidate("t", ""))
    assert (score.value, score.misses) == (0, ("no data about tool calls",))
    assert (await grade(entry, Candidate("t", "", trace={"event_count": 0}))).value == 1
    counted = Candidate("t", "", trace={"event_count": 2, "tool_calls_by_name": {"a": 2}})
    assert (await grade(entry, counted)).verdict == "error"
    any_order = {"type": "tool_trajectory", "mode": "any_order", "minimums": {"a": 2}}
    assert (await grade(any_order, counted)).value == 1
    assert (await grade(any_order, Candidate("t", ""))).value == 0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "[0]: mode is required"),
        ({"mode": "sorted"}, "[0].mode: must be one of any_order, in_order, exact, subset, superset, not 'sorted'"),
        ({"mode": "any_order"}, "[0]: minimums is required in the mode any_order"),
        ({"mode": "exact"}, "[0]: expected is required in the mode exact"),
        ({"mode": "in_order", "expected": []}, "[0].expected: must not be empty in the mode in_order"),
        ({"mode": "exact", "expected": ["a"]}, "[0].expected[0]: must be a mapping, not 'a'"),
        ({"mode": "exact", "expected": [{"args": 1}]}, "[0].expected[0]: tool is required"),
        (
            {"mode": "exact", "expected": [{"tool": "a", "tol": 1}]},
            "[0].expected[0].tol: unknown key; did you mean tool?",
        ),
        ({"mode": "exact", "expected": [], "args_match": "near"}, "[0].args_match: must be one of exact, superset, "),
        ({"mode": "exact", "expected": [], "args_match": ["a["]}, "[0].args_match: must be names with dots"),
        ({"mode": "any_order", "minimums": {"a": -1}}, "[0].minimums: must be a mapping of tools to whole numbers"),
        ({"mode": "any_order", "minimums": ["a"]}, "[0].minimums: must be a mapping of tools to numbers of calls"),
    ],
)
def test_settings_that_are_wrong(entry: dict[str, Json], message: str) -> None:
    with pytest.raises(UserError) as caught:
        graders_of({"type": "tool_trajectory", **entry})
    assert str(caught.value).startswith(f"checks.yaml: {message}")


_NAMES = st.text("abc", max_size=5)


@settings(deadline=None)
@given(_NAMES)
async def test_what_is_as_expected_scores_1(names: str) -> None:
    for mode in ("exact", "subset", *(("in_order", "superset") if names else ())):
        assert (await held(list(names), mode=mode, expected=tools(names))).value == 1


@settings(deadline=None)
@given(_NAMES, _NAMES)
async def test_bounds_between_modes(expected: str, made: str) -> None:
    scores = {}
    for mode in ("exact", "subset", *(("in_order", "superset") if expected else ())):
        score = await held(list(made), mode=mode, expected=tools(expected))
        assert score.value is not None
        assert 0 <= score.value <= 1
        assert len(score.hits) + len(score.misses) == _checked(mode, expected, made)
        scores[mode] = score.value
    if expected:
        assert max(scores["exact"], scores["in_order"]) <= scores["superset"]
    assert (scores["exact"] == 1) == (expected == made)
    if expected:
        walk = iter(made)
        assert (scores["in_order"] == 1) == all(name in walk for name in expected)


def _checked(mode: str, expected: str, made: str) -> int:
    return {"exact": max(len(expected), len(made)), "subset": len(made)}.get(mode, len(expected))


@settings(deadline=None)
@given(st.permutations("aabbcd"), st.text("abcd", min_size=1, max_size=4))
async def test_superset_does_not_depend_on_the_order_of_calls(made: list[str], expected: str) -> None:
    score = await held(list(made), mode="superset", expected=tools(expected))
    found = sum(min(expected.count(name), "aabbcd".count(name)) for name in set(expected))
    assert score.value == pytest.approx(found / len(expected))


@settings(deadline=None)
@given(_NAMES.filter(bool), st.text("abc", min_size=1, max_size=3))
async def test_calls_too_many_lower_the_exact_score(expected: str, more: str) -> None:
    score = await held(list(expected + more), mode="exact", expected=tools(expected))
    assert score.value == pytest.approx(len(expected) / len(expected + more))


def test_partners_are_changed_for_others() -> None:
    assert max_pairs([[0, 1], [0]]) == [1, 0]
    assert max_pairs([[0, 1], [0], [1, 2]]) == [1, 0, 2]
    assert max_pairs([[0], [0]]) == [0, None]
    assert max_pairs([[], [3]]) == [None, 3]
    assert max_pairs([]) == []


def _most(partners: list[list[int]], taken: frozenset[int] = frozenset()) -> int:
    """The size of a largest matching, by trying all."""
    if not partners:
        return 0
    first, *others = partners
    choices = [1 + _most(others, taken | {right}) for right in first if right not in taken]
    return max([_most(others, taken), *choices])


@given(st.lists(st.lists(st.integers(0, 4), unique=True), max_size=5))
def test_no_other_matching_is_larger(partners: list[list[int]]) -> None:
    pairs = max_pairs(partners)
    taken = [right for right in pairs if right is not None]
    assert len(set(taken)) == len(taken)
    assert all(right is None or right in partners[left] for left, right in enumerate(pairs))
    assert len(taken) == _most(partners)


def test_long_chains() -> None:
    """Each left one that comes pushes all earlier ones along."""
    count = 2000
    assert max_pairs([[index, index - 1] if index else [0] for index in range(count)]) == list(range(count))
