"""The keys of eval files: what they are called, were called and will be called, and what their values must be.

Names of all versions of the format are understood. Keys may be written
``expected_output``, ``expectedOutput`` or ``expected-output``. What stands below the keys declared here is the person's own data and stays
as it is.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, WithJsonSchema

from manyhands.core.settings import Flag, Text, number, whole
from manyhands.graders.preprocessors import PreprocessorEntry
from manyhands.io.keys import Entry, key

STRATEGIES = ("pass_at_k", "mean", "confidence_interval")
REFERENCE = "x-definition"
"""In schemas of fields: the name of a definition that ``schema_export`` makes."""
DEPRECATED: dict[str, Any] = {"deprecated": True}
"""Of keys at places that are older than the format's present version."""
_NAME = re.compile(r"[a-z0-9-]{1,64}")


def _texts(value: Any) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError("must be a list of texts, or one text")
    return tuple(dict.fromkeys(words))


def _ids(value: Any) -> tuple[str | int | float, ...]:
    ids = value if isinstance(value, (list, tuple)) else [value]
    if not all((isinstance(each, str) and each.strip()) or type(each) in (int, float) for each in ids):
        raise ValueError("must be a list of ids, or one id")
    return tuple(ids)


def _eval_name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("must be 1 to 64 lower-case letters, digits and hyphens")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a mapping")
    return value


def _argv(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and value.strip():
        return ("sh", "-c", value)
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(word, str) for word in value):
        raise ValueError("must be a command: a text, or a list of words")
    return tuple(value)


_MESSAGES = {"anyOf": [{"type": "string"}, {REFERENCE: "Message"}, {"type": "array"}, {"type": "object"}]}
_GRADERS = {"type": "array", "items": {REFERENCE: "Grader"}}
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_ID = {"type": ["string", "number"]}
_TURNS = {"type": "array", "minItems": 1, "items": {REFERENCE: "TurnBlock"}}
_IDS = {"anyOf": [_ID, {"type": "array", "items": _ID}]}

Texts = Annotated[tuple[str, ...], BeforeValidator(_texts), WithJsonSchema(_TEXTS)]
Mapped = Annotated[dict[str, Any], BeforeValidator(_mapping)]
Argv = Annotated[tuple[str, ...], BeforeValidator(_argv), WithJsonSchema(_TEXTS)]
Ids = Annotated[tuple[str | int | float, ...], BeforeValidator(_ids), WithJsonSchema(_IDS)]
Graders = Annotated[Any, WithJsonSchema(_GRADERS)]
"""A list of graders, which ``manyhands.graders.config`` checks."""
Messages = Annotated[Any, WithJsonSchema(_MESSAGES)]
"""What ``messages`` checks."""


ASIDE = "x-"
"""Keys that begin with this mean nothing."""


class Block(Entry):
    """A mapping of an eval file, of a targets file or of a configuration."""

    aside: ClassVar = ASIDE
    _spelled_graders: ClassVar = {"evaluators": "assert", "assertions": "assert"}


class HookBlock(Block):
    """A command that runs before or after tests."""

    spellings: ClassVar = {"command": "script"}

    script: Argv = key(..., "The command: a line for sh, or a list of words.")
    timeout_ms: Annotated[float, number(above=0)] | None = key(
        None, "Milliseconds that it may take; 60000 without it, 30000 after tests."
    )
    cwd: Text | None = key(None, "Where it runs; relative to the eval file, whose folder it is without this.")


class WorkspaceBlock(Block):
    """The folder in which targets work."""

    beyond: ClassVar = dict.fromkeys(
        ("docker", "repos", "isolation", "hooks"), "use template and the hooks before_all … after_each"
    )

    template: Text | None = key(
        None, "Folder that is copied; relative to the eval file. Without one the workspace is empty."
    )
    before_all: HookBlock | None = key(
        None, "Runs once, before all tests, in the copy of which all workspaces are copies."
    )
    after_all: HookBlock | None = key(None, "Runs once, when all tests have ended.")
    before_each: HookBlock | None = key(None, "Runs before each test, in its workspace.")
    after_each: HookBlock | None = key(None, "Runs after each test, when it is graded.")
    entries: ClassVar = dict.fromkeys(("before_all", "after_all", "before_each", "after_each"), HookBlock)


class TrialsBlock(Block):
    """Repeated trials of each test."""

    count: Annotated[int, whole(1, 1000)] = key(..., "How often each test is tried.")
    strategy: Literal["pass_at_k", "mean", "confidence_interval"] = key("pass_at_k", "How the trials become one score.")
    cost_limit_usd: Annotated[float, number(above=0)] | None = key(
        None, "US dollars after which no further trial begins."
    )
    stop_early: Flag = key(True, "Whether no further trial begins once one has passed; with pass_at_k.")


class TestExecution(Block):
    """How a test is run."""

    __test__: ClassVar[bool] = False
    spellings: ClassVar = Block._spelled_graders
    obsolete: ClassVar = frozenset(("evaluators",))
    entries: ClassVar = {"trials": TrialsBlock}

    skip_defaults: Flag = key(False, "Whether the suite's input and graders are left out.")
    target: Text | None = key(None, "The target that answers this test.")
    targets: Texts | None = key(None, "The targets that answer this test.")
    trials: TrialsBlock | None = key(None, "Trials of this test.")
    assert_: Graders = key(None, "Obsolete place of the graders.", alias="assert", json_schema_extra=DEPRECATED)


class SuiteExecution(Block):
    """How the tests of a file are run."""

    spellings: ClassVar = {**Block._spelled_graders, "total_budget_usd": "budget_usd", "max_cost_usd": "budget_usd"}
    obsolete: ClassVar = frozenset(("evaluators",))
    entries: ClassVar = {"trials": TrialsBlock}

    target: Text | None = key(None, "The target that answers the tests.")
    targets: Texts | None = key(None, "The targets that answer the tests: every test goes to each of them.")
    trials: TrialsBlock | None = key(None, "Repeated trials of each test.")
    cache: Flag | None = key(None, "Whether answers may be taken from earlier runs.")
    cache_path: Text | None = key(None, "Where such answers are kept.")
    workers: Annotated[int, whole(1)] | None = key(None, "Tests in work at once.")
    threshold: Annotated[float, number(0, 1)] | None = key(None, "The score from which on a test passes.")
    budget_usd: Annotated[float, number(above=0)] | None = key(None, "US dollars that the run may cost.")
    fail_on_error: Flag | None = key(None, "Whether the run stops at the first test whose target fails.")
    assert_: Graders = key(None, "Obsolete place of the suite's graders.", alias="assert", json_schema_extra=DEPRECATED)


_OF_EACH_TEST = {
    **dict.fromkeys(
        ("mode", "turns", "aggregation", "on_turn_failure", "window_size"), "each test has turns of its own"
    ),
    **dict.fromkeys(("depends_on", "on_dependency_failure"), "each test says for itself what it depends on"),
}


class TurnBlock(Block):
    """One turn of a conversation."""

    spellings: ClassVar = {**Block._spelled_graders, "input_messages": "input", "expected_messages": "expected_output"}
    obsolete: ClassVar = frozenset(("evaluators", "input_messages", "expected_messages"))

    input: Messages = key(..., "What is said to the target: a text, an object, or parts.")
    expected_output: Messages = key(None, "What it should answer.")
    assert_: Graders = key(None, "The graders of its answer.", alias="assert")


class TestBlock(Block):
    """A test."""

    __test__: ClassVar[bool] = False
    spellings: ClassVar = {
        **Block._spelled_graders,
        "expected_outcome": "criteria",
        "input_messages": "input",
        "expected_messages": "expected_output",
    }
    obsolete: ClassVar = frozenset(("expected_outcome", "input_messages", "expected_messages", "evaluators"))
    entries: ClassVar = {"execution": TestExecution, "workspace": WorkspaceBlock}
    beyond: ClassVar = {"preprocessors": "they stand at the head of the file, or with a grader"}

    id: Annotated[Any, WithJsonSchema({"type": ["string", "number"]})] = key(
        ..., "What the test is called; unique in its file."
    )
    description: str | None = key(None, "For people.")
    criteria: Text | None = key(None, "What a good answer does, in words.")
    input: Messages = key(None, "What the target gets: a text, an object, or a list of messages.")
    input_files: Texts | None = key(None, "Files that go with an input that is a text.")
    expected_output: Messages = key(None, "What is expected: a text, an object, a list, or messages.")
    assert_: Graders = key(None, "The graders.", alias="assert")
    rubrics: Annotated[Any, WithJsonSchema({"type": "array"})] = key(None, "Rubrics, judged before all other graders.")
    execution: TestExecution | None = key(None, "How the test is run.")
    evaluator: Text | None = key(None, "The kind of grader where there is no list of graders.")
    conversation_id: Text | None = key(None, "Tests of one conversation share it.")
    metadata: Mapped | None = key(None, "Data of your own.")
    tags: Texts | None = key(None, "Words by which tests are chosen.")
    vars: Mapped | None = key(None, "Values for {{ name }} in this test.")
    threshold: Annotated[float, number(0, 1)] | None = key(None, "The score from which on this test passes.")
    workspace: WorkspaceBlock | None = key(None, "Where the target works; on top of the suite's.")
    depends_on: Ids | None = key(None, "Ids of tests of the file that end before this one begins.")
    on_dependency_failure: Literal["skip", "fail", "run"] = key(
        "skip", "What becomes of it if one of these has no score because of an error."
    )
    mode: Literal["conversation"] | None = key(None, "`conversation`: the test has turns.")
    turns: Annotated[Any, WithJsonSchema(_TURNS)] = key(
        None, "What is said to the target, one after the other, each answered before the next."
    )
    aggregation: Literal["mean", "min", "max"] | None = key(None, "How the turns' scores become one; mean without it.")
    on_turn_failure: Literal["continue", "stop"] | None = key(
        None, "Whether the conversation goes on after a turn below the limit; continue without it."
    )
    window_size: Annotated[int, whole(1)] | None = key(
        None, "Turns that the target is told of: the last two messages for each, besides the system's; all without it."
    )


class EvalBlock(Block):
    """An eval file."""

    spellings: ClassVar = {
        **Block._spelled_graders,
        "eval_cases": "tests",
        "evalcases": "tests",
        "cases": "tests",
        "suite": "dataset",
        "providers": "targets",
        "input_messages": "input",
    }
    obsolete: ClassVar = frozenset(("eval_cases", "evalcases", "cases", "evaluators", "input_messages"))
    entries: ClassVar = {"execution": SuiteExecution, "workspace": WorkspaceBlock}
    beyond: ClassVar = {**_OF_EACH_TEST, "prompts": "give each test its input"}

    schema_: str | None = key(None, "What kind of file this is.", alias="$schema")
    tests: Annotated[Any, WithJsonSchema({"type": ["string", "array"]})] = key(
        None, "The tests: a list, whose items may be file://PATH, or the path of a file that holds them."
    )
    name: Annotated[str, BeforeValidator(_eval_name)] | None = key(
        None, "Name of the suite: lower-case letters, digits, -."
    )
    description: str | None = key(None, "For people.")
    dataset: Text | None = key(None, "What results call the suite; without it, the file's name.")
    category: Text | None = key(None, "A heading of yours.")
    version: Annotated[Any, WithJsonSchema({"type": ["string", "number"]})] = key(None, "Version of the suite.")
    author: Annotated[Any, WithJsonSchema({})] = key(None, "Who wrote it.")
    license: str | None = key(None, "Its licence.")
    requires: Mapped | None = key(None, "What it needs; kept and not checked.")
    tags: Texts | None = key(None, "Tags of all its tests.")
    metadata: Mapped | None = key(None, "Data of your own.")
    execution: SuiteExecution | None = key(None, "How the tests are run.")
    target: Text | None = key(None, "Obsolete place of execution.target.", json_schema_extra=DEPRECATED)
    targets: Annotated[Any, WithJsonSchema({REFERENCE: "Targets"})] = key(None, "Targets of this file.")
    input: Messages = key(None, "Messages that go before each test's own.")
    assert_: Graders = key(None, "Graders of all tests, after each test's own.", alias="assert")
    evaluator: Text | None = key(None, "The kind of grader for tests that have no list of graders.")
    preprocessors: tuple[PreprocessorEntry, ...] | None = key(
        None, "Programs that turn files in answers into text, for all graders: a list with type and command."
    )
    vars: Mapped | None = key(None, "Values for {{ name }} in all tests.")
    threshold: Annotated[float, number(0, 1)] | None = key(None, "The score from which on a test passes.")
    workspace: WorkspaceBlock | None = key(None, "Where targets work.")
