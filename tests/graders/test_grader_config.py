"""Lists of graders as files hold them."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.graders.config import grader_types, normal_entries, parse_graders
from manyhands.graders.protocol import Candidate
from manyhands.graders.registry import ALIASES, BUILTIN, spellings_of
from manyhands.io.locations import Location
from manyhands.io.yaml_files import parse_source
from manyhands.testing.grader_doubles import FILE, grade, graders_of

CALL = {"tool": "search", "args": {"camelCase": 1, "kebab-case": {"Inner-Key": 2}}}


def normal(*entries: Json, notices: list[str] | None = None) -> list[dict[str, Any]]:
    said = [] if notices is None else notices
    return normal_entries(list(entries), Location(FILE), folder=Path(), notices=said.append)


def problem(*entries: Json, folder: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        graders_of(*entries, folder=folder)
    return str(caught.value)


# --- Names of kinds and keys


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [
        ("tool_trajectory", "tool_trajectory"),
        ("tool-trajectory", "tool_trajectory"),
        ("toolTrajectory", "tool_trajectory"),
        ("is-json", "is_json"),
        ("isJson", "is_json"),
        ("icontains-all", "icontains_all"),
    ],
)
def test_kinds_in_every_spelling(spelled: str, kind: str) -> None:
    assert normal({"type": spelled, "value": ["x"]} if "contains" in kind else {"type": spelled})[0]["type"] == kind


def test_keys_in_every_spelling() -> None:
    snake = normal({"type": "execution_metrics", "max_tool_calls": 3, "exploration_tolerance": 0.1})
    assert snake == normal({"type": "execution-metrics", "maxToolCalls": 3, "explorationTolerance": 0.1})
    assert snake == normal({"type": "executionMetrics", "max-tool-calls": 3, "exploration-tolerance": 0.1})


def test_data_is_not_respelled() -> None:
    entry = {"type": "tool_trajectory", "mode": "any_order", "minimums": {"someTool": 1, "other-tool": 2}}
    assert normal(entry) == [entry]
    inner = {"type": "tool-trajectory", "mode": "exact", "argsMatch": ["camelCase"], "expected": [CALL]}
    assert normal(inner) == [
        {"type": "tool_trajectory", "mode": "exact", "args_match": ["camelCase"], "expected": [CALL]}
    ]


def test_keys_within_entries_and_composites() -> None:
    found = normal(
        {
            "type": "composite",
            "evaluators": [
                {"type": "tool-trajectory", "mode": "exact", "expected": [{"tool": "a", "maxDurationMs": 5}]},
                {"type": "fieldAccuracy", "fields": [{"path": "a", "match": "date", "formats": ["DD/MM/YYYY"]}]},
            ],
            "aggregator": {"type": "weighted-average", "weights": {"camelName": 2}},
        }
    )
    assert found == [
        {
            "type": "composite",
            "assert": [
                {"type": "tool_trajectory", "mode": "exact", "expected": [{"tool": "a", "max_duration_ms": 5}]},
                {"type": "field_accuracy", "fields": [{"path": "a", "match": "date", "formats": ["DD/MM/YYYY"]}]},
            ],
            "aggregator": {"type": "weighted-average", "weights": {"camelName": 2}},
        }
    ]


def test_one_notice_for_each_obsolete_name() -> None:
    notices: list[str] = []
    member = {"type": "composite", "evaluators": [{"type": "is_json"}]}
    graders_of(member, member, {"type": "composite", "assert": [member]}, notices=notices)
    assert notices == ["checks.yaml: 'evaluators' is an obsolete name of 'assert'"]


def test_plain_strings_become_one_rubrics_grader() -> None:
    found = normal("is polite", {"type": "is_json"}, "names the town")
    rubrics = {"type": "rubrics", "weight": 2, "criteria": ["is polite", "names the town"]}
    assert found == [rubrics, {"type": "is_json"}]
    assert problem(" ") == "checks.yaml: [0]: a rubric must not be empty"
    for text in ("is_json", "is-json", " contains ", "llm-grader"):
        said = f"a text is a rubric, and {text!r} a kind of grader; did you mean {{type: {text.strip()}}}?"
        assert problem(text) == f"checks.yaml: [0]: {said}"


# --- Names of graders


def test_names_of_graders_without_one() -> None:
    graders = graders_of(
        {"type": "contains", "value": "CLEAR"},
        {"type": "equals", "value": 5},
        {"type": "regex", "value": "a very long pattern, longer than thirty characters"},
        {"type": "is_json"},
        {"type": "latency", "threshold": 5},
        {"type": "contains_any", "value": ["a", "b\nc"]},
        {"type": "contains", "value": "x" * 200},
    )
    assert [grader.name for grader in graders] == [
        "contains-CLEAR",
        "equals-5",
        "regex-a very long pattern, longer th",
        "is_json",
        "latency",
        "contains_any-a,b c",
        "contains-" + "x" * 50 + "…",
    ]


def test_names_are_different_and_given_ones_come_first() -> None:
    graders = graders_of(
        {"type": "is_json"},
        {"type": "is_json"},
        {"type": "is_json", "name": "is_json"},
        {"type": "latency", "threshold": 5, "name": "is_json"},
    )
    assert [grader.name for grader in graders] == ["is_json-2", "is_json-3", "is_json", "is_json-4"]


# --- What is wrong


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "contians", "value": "x"}, "[0].type: unknown kind of grader 'contians'; did you mean contains?"),
        ({"type": 5}, "[0].type: must be the name of a kind of grader, not 5"),
        ({"value": "x"}, "[0]: type is required"),
        (5, "[0]: a grader is a mapping with a type, or a text that is a rubric, not 5"),
        ({"type": "contains", "value": "x", "wieght": 2}, "[0].wieght: unknown key; did you mean weight?"),
        ({"type": "contains", "vaule": "x"}, "[0].vaule: unknown key; did you mean value?"),
        ({"type": "contains"}, "[0]: value is required"),
        ({"type": "contains", "value": ""}, "[0].value: must not be empty, not ''"),
        ({"type": "contains", "value": None}, "[0].value: must be text, not None"),
        (
            {"type": "contains", "value": ["a"]},
            "[0].value: must be one text; for several use contains_any or contains_all",
        ),
        ({"type": "contains_any", "value": "a"}, "[0].value: must be a list of texts, not 'a'"),
        ({"type": "contains_any", "value": []}, "[0].value: must not be empty, not []"),
        ({"type": "is_json", "value": "x"}, "[0].value: unknown key"),
        ({"type": "is_json", "weight": -1}, "[0].weight: must be 0 or more, not -1"),
        ({"type": "is_json", "weight": float("inf")}, "[0].weight: must be a number, not inf"),
        ({"type": "is_json", "weight": float("nan")}, "[0].weight: must be a number, not nan"),
        ({"type": "is_json", "weight": 10**400}, "[0].weight: must be a number, not 1000"),
        ({"type": "is_json", "weight": True}, "[0].weight: must be a number, not True"),
        ({"type": "is_json", "required": 0}, "[0].required: must be true, or a number above 0 and up to 1, not 0"),
        ({"type": "is_json", "required": 1.5}, "[0].required: must be true, or a number above 0 and up to 1, not 1.5"),
        (
            {"type": "is_json", "required": "yes"},
            "[0].required: must be true, or a number above 0 and up to 1, not 'yes'",
        ),
        ({"type": "is_json", "negate": 3}, "[0].negate: must be true or false (or yes, no, on, off, 1, 0), not 3"),
        ({"type": "is_json", "name": ""}, "[0].name: must not be empty, not ''"),
        ({"type": "is_json", "is-json": 1}, "[0].is-json: unknown key"),
        ({"type": "latency", "threshold": 1, "threshold_ms": 2}, "[0].threshold_ms: is the same key as threshold"),
        ({"type": "latency", "threshold": 1, "Threshold": 2}, "[0].Threshold: unknown key"),
        ({"type": "composite", "assert": "x"}, "[0].assert: must be a list of graders, not 'x'"),
        ({"type": "composite", "assert": []}, "[0].assert: must not be empty, not []"),
        ({"type": "composite", "assert": [{"type": "equals"}]}, "[0].assert[0]: value is required"),
        ({"type": "composite", "evaluators": [{"type": "nothing"}]}, "[0].evaluators[0].type: unknown kind"),
        ({"include": "nowhere", "weight": 2}, "[0].weight: nothing may stand beside include"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(entry: Json, message: str) -> None:
    assert problem(entry).startswith(f"checks.yaml: {message}")


def test_all_entries_are_looked_at() -> None:
    kinds = {"type": "contians", "value": "x"}, {"type": "is_json"}, {"type": "equals", "value": "x", "vlaue": "y"}, 5
    assert [line.split(":")[1].strip() for line in problem(*kinds).split("\n")] == [
        "[0].type", "[2].vlaue", "[3]",
    ]  # fmt: skip
    inner = {"type": "contains"}, {"type": "latency", "threshold": -1}
    values = {"type": "contains"}, {"type": "is_json"}, {"type": "composite", "assert": list(inner)}
    assert [line.split(":")[1].strip() for line in problem(*values).split("\n")] == [
        "[0]", "[2].assert[0]", "[2].assert[1].threshold",
    ]  # fmt: skip


def test_a_list_is_expected() -> None:
    for value in ("is_json", {"type": "is_json"}, None):
        with pytest.raises(UserError, match=r"^checks\.yaml: assert: must be a list of graders, not "):
            parse_graders(value, Location(FILE, ("assert",)), folder=Path(), notices=print)


def test_composites_nested_without_end() -> None:
    entry: dict[str, Any] = {"type": "is_json"}
    for _ in range(30):
        entry = {"type": "composite", "assert": [entry]}
    assert problem(entry).endswith("composites are nested more than 20 deep")


def test_messages_name_lines() -> None:
    text = "assert:\n  - type: contains\n    value: x\n  - type: is_json\n    weight: -2\n"
    source = parse_source(text, FILE)
    with pytest.raises(UserError, match=r"^checks\.yaml, line 5: assert\[1\]\.weight: must be 0 or more, not -2$"):
        parse_graders(source.value["assert"], source.location.at("assert"), folder=Path(), notices=print)


# --- Included files


def test_included_files(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "format.yaml").write_text("assert:\n  - type: is-json\n  - include: deeper.yml\n")
    (tmp_path / "shared" / "deeper.yml").write_text("- type: contains\n  value: x\n")
    templates = tmp_path / ".agentv" / "templates"
    templates.mkdir(parents=True)
    (templates / "polite.yml").write_text("assertions:\n- type: composite\n  assert:\n  - include: ./more.yaml\n")
    (templates / "more.yaml").write_text("- {type: equals, value: y}\n")
    folder = tmp_path / "evals"
    folder.mkdir()
    names = [
        each.name for each in graders_of({"include": "../shared/format.yaml"}, {"include": "polite"}, folder=folder)
    ]
    assert names == ["is_json", "contains-x", "composite"]


def test_problems_of_included_files(tmp_path: Path) -> None:
    (tmp_path / "self.yaml").write_text("- include: self.yaml\n")
    (tmp_path / "wrong.yaml").write_text("# comment\n- type: composite\n  assert:\n  - {type: contains}\n")
    (tmp_path / "other.yaml").write_text("tests: []\n")
    path = tmp_path / "wrong.yaml"
    assert problem({"include": "wrong.yaml"}, folder=tmp_path) == f"{path}, line 4: [0].assert[0]: value is required"
    assert problem({"include": "self.yaml"}, folder=tmp_path).endswith("self.yaml includes itself")
    assert "must be a list of graders" in problem({"include": "other.yaml"}, folder=tmp_path)
    assert "there is no file" in problem({"include": "./missing.yaml"}, folder=tmp_path)
    assert "there is no missing.yaml in a folder .agentv/templates" in problem({"include": "missing"}, folder=tmp_path)
    assert "must be the name of a file" in problem({"include": 5}, folder=tmp_path)


# --- Normalising, by properties

_WORDS = st.sampled_from(["value", "camelCase", "kebab-case", "x"])
_DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(string.ascii_letters, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=8,
)
_COMMON = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(string.ascii_letters, min_size=1, max_size=5),
        "weight": st.floats(0, 10) | st.integers(0, 10),
        "required": st.booleans() | st.floats(0.1, 1),
        "negate": st.booleans(),
    },
)
_TEXT = st.text(string.ascii_lowercase + " ", min_size=1, max_size=8)
_RULES = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["contains", "icontains", "starts_with", "equals"]), "value": _TEXT}
    ),
    st.fixed_dictionaries({"type": st.just("contains_any"), "value": st.lists(_TEXT, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"type": st.just("is_json")}),
    st.fixed_dictionaries(
        {"type": st.just("token_usage"), "max_total": st.integers(0, 9), "max_input": st.integers(0, 9)}
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_trajectory"),
            "mode": st.sampled_from(["exact", "in_order"]),
            "args_match": st.sampled_from(["exact", "superset", "ignore"]),
            "expected": st.lists(
                st.fixed_dictionaries({"tool": _TEXT, "args": _DATA}, optional={"max_duration_ms": st.integers(0, 9)}),
                min_size=1,
                max_size=3,
            ),
        }
    ),
)
_ENTRY = st.builds(lambda common, rule: {**common, **rule}, _COMMON, _RULES)
_ENTRIES = st.recursive(
    _ENTRY,
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("composite"), "assert": st.lists(inner, min_size=1, max_size=3)}
    ),
    max_leaves=6,
)


def _camel(word: str) -> str:
    first, *others = word.split("_")
    return first + "".join(other.capitalize() for other in others)


def _respelled(entry: dict[str, Any], spell: Any) -> dict[str, Any]:
    """Of an entry in its normal spelling, one whose kind and keys are spelled otherwise, its data left as it is."""
    found = {spell(key): value for key, value in entry.items()}
    found[spell("type")] = spell(entry["type"])
    if "assert" in entry:
        found["assert"] = [_respelled(member, spell) for member in entry["assert"]]
    if "expected" in entry:
        found["expected"] = [{spell(key): value for key, value in call.items()} for call in entry["expected"]]
    return found


@given(st.lists(_ENTRIES, max_size=4))
def test_normal_data_stays_as_it_is(entries: list[dict[str, Any]]) -> None:
    assert normal(*entries) == entries
    assert normal(*normal(*entries)) == entries


@given(st.lists(_ENTRIES, max_size=4))
def test_spellings_are_equal(entries: list[dict[str, Any]]) -> None:
    for spell in (_camel, lambda word: word.replace("_", "-")):
        assert normal(*(_respelled(entry, spell) for entry in entries)) == entries


@given(st.lists(_ENTRIES, min_size=1, max_size=4))
def test_normal_data_gives_the_same_graders(entries: list[dict[str, Any]]) -> None:
    first, second = graders_of(*entries), graders_of(*normal(*entries))
    assert [(each.name, each.type) for each in first] == [(each.name, each.type) for each in second]
    assert len({each.name for each in first}) == len(first)


# --- What else is known about kinds


def test_other_names_lead_to_kinds() -> None:
    assert set(ALIASES.values()) <= set(BUILTIN)
    assert not set(ALIASES) & set(BUILTIN)
    assert spellings_of("code_grader") == ["code_grader", "code-grader", "script", "command"]
    for kind in BUILTIN:
        assert {kind, kind.replace("_", "-")} <= set(spellings_of(kind))


def test_schemas_of_all_kinds() -> None:
    types = grader_types()
    assert set(types) == set(BUILTIN)
    assert types["contains"]["required"] == ["type", "value"]
    assert {"type", "name", "weight", "required", "min_score", "preprocessors", "negate", "value"} == set(
        types["contains"]["properties"]
    )
    assert "tool" in types["tool_trajectory"]["$defs"]["ExpectedCall"]["properties"]
    assert "assert" in types["composite"]["properties"]


async def test_numbers_are_taken_as_text() -> None:
    assert (await grade({"type": "contains", "value": 12}, "a 12 b")).value == 1
    assert (await grade({"type": "equals", "value": 1.5}, Candidate("t", "1.5"))).value == 1
    assert (await grade({"type": "equals", "value": True}, "true")).value == 1
    assert (await grade({"type": "equals", "value": 10**20}, str(10**20))).value == 1
