"""Tests of an eval file as the journal holds them, and faults in late lines of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps, loads
from manyhands.io.locations import Location
from manyhands.io.search_paths import SearchPath
from manyhands.workloads.evals.evalfile.contents import Conversation, Hook, Test, Trials, Turn, Workspace
from manyhands.workloads.evals.evalfile.loading import load_evals
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.settings import EvalSpec

TEXTS = st.text(max_size=12)
NAMES = st.text(min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(NAMES, JSON, max_size=3)
MESSAGES = st.lists(OBJECTS, max_size=3).map(tuple)
WORDS = st.lists(NAMES, max_size=3).map(tuple)
PATHS = st.from_regex(r"/[a-z]{1,5}(/[a-z. é]{1,5}x){0,2}", fullmatch=True).map(Path)
HOOKS = st.builds(Hook, argv=WORDS, folder=PATHS, seconds=st.none() | st.floats(0.1, 1e6))
WORKSPACES = st.builds(
    Workspace,
    template=st.none() | PATHS,
    before_all=st.none() | HOOKS,
    after_all=st.none() | HOOKS,
    before_each=st.none() | HOOKS,
    after_each=st.none() | HOOKS,
)
TRIALS = st.builds(
    Trials,
    count=st.integers(1, 99),
    strategy=st.sampled_from(("pass_at_k", "mean")),
    cost_limit_usd=st.none() | st.floats(0.1, 9),
)
CONVERSATIONS = st.builds(
    Conversation,
    turns=st.lists(st.builds(Turn, MESSAGES, MESSAGES, MESSAGES), min_size=1, max_size=3).map(tuple),
    aggregation=st.sampled_from(("mean", "min", "max")),
    on_turn_failure=st.sampled_from(("continue", "stop")),
    window_size=st.none() | st.integers(1, 9),
)
LINES = st.integers(1, 10**6)
FIELDS = st.lists(NAMES | st.integers(0, 9), max_size=3).map(tuple)
LOCATIONS = st.builds(lambda file, path, line: Location(file, path, {path: line}), TEXTS, FIELDS, LINES)
FULL = st.builds(
    Test,
    id=NAMES,
    input=MESSAGES,
    location=LOCATIONS,
    criteria=TEXTS,
    expected_output=MESSAGES,
    graders=MESSAGES,
    default_grader=st.none() | NAMES,
    metadata=OBJECTS,
    conversation_id=st.none() | NAMES,
    tags=WORDS,
    targets=st.none() | WORDS,
    trials=st.none() | TRIALS,
    threshold=st.none() | st.floats(0, 1),
    references=st.dictionaries(NAMES, PATHS, max_size=2),
    guideline_files=st.lists(PATHS, max_size=2).map(tuple),
    guidelines=TEXTS,
    workspace=st.none() | WORKSPACES,
    depends_on=WORDS,
    on_dependency_failure=st.sampled_from(("skip", "fail", "run")),
    conversation=st.none() | CONVERSATIONS,
    variables=WORDS,
    task=OBJECTS,
)


def test_nothing_of_a_test_is_forgotten_here() -> None:
    assert set(Test.__slots__) == {
        *("id", "input", "location", "criteria", "expected_output", "graders", "default_grader", "metadata", "tags"),
        *(
            "conversation_id",
            "targets",
            "trials",
            "threshold",
            "references",
            "guideline_files",
            "guidelines",
            "workspace",
            "depends_on",
            "on_dependency_failure",
            "conversation",
            "variables",
            "task",
            "secrets",  # never recorded: see test_environment_in_tests
            "pictures",  # kept as artifacts, to which the input refers: see test_pictures_in_inputs
        ),
    }


@given(FULL)
def test_every_test_survives_json(test: Test) -> None:
    assert Test.from_json(loads(dumps(test.to_json()))) == test


def test_a_test_knows_the_lines_of_its_fields(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("tests:\n  - id: a\n    criteria: c\n    input: i\n    tags: [x]\n")
    (file,) = load_evals([tmp_path / "x.yaml"], SearchPath.of(tmp_path), notices=lambda _: None)
    assert str(file.tests[0].location.at("tags")) == "x.yaml, line 5: tests[0].tags"


def lines(folder: Path, count: int, changes: dict[int, str]) -> Path:
    """An eval file with so many tests; ``changes``: what stands in other lines, by their numbers."""
    made = (json.dumps({"id": f"t{number}", "input": "i"}) for number in range(1, count + 1))
    path = folder / "suite.jsonl"
    path.write_text("".join(f"{changes.get(number, text)}\n" for number, text in enumerate(made, 1)))
    (folder / "suite.yaml").write_text("assert: [{type: contains, value: x}]\n")
    (folder / "targets.yaml").write_text("targets: [{name: m, provider: mock, response: x}]\n")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "new", "input": ', "suite.jsonl, line 900: not JSON"),
        ('{"id": "t7", "input": "i"}', "suite.jsonl, line 900: id: 't7' is the id of another test too, in line 7"),
        ('{"id": "new", "inptu": "i"}', "suite.jsonl, line 900: input is required"),
        ('{"id": "new", "input": "i", "execution": {"target": "none"}}', "suite.jsonl, line 900: "),
    ],
)
async def test_a_fault_in_a_late_line_is_found_before_anything_is_made(tmp_path: Path, text: str, message: str) -> None:
    path = lines(tmp_path, 1000, {900: text})
    given = {"eval_files": [str(path)], "targets": str(tmp_path / "targets.yaml"), "data_dir": str(tmp_path / "data")}
    with pytest.raises(UserError) as caught:
        await open_eval(EvalSpec.make({**given, "run_name": "r"}), resume=False, notice=print, environ={})
    assert message in str(caught.value)
    assert not (tmp_path / "data").exists()
