"""The keys of eval files: their present, former and later names, and what their values must be.

Names of all versions of the format are understood. Keys may be written
``expected_output``, ``expectedOutput`` or ``expected-output``. What stands below the keys declared here is the person's own data and stays
as it is.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator

from manyhands.core.settings import Flag, Text, number, whole
from manyhands.graders.preprocessors import PreprocessorEntry
from manyhands.io.keys import Entry, Words, key
from manyhands.sandboxes.images.templates import checked_reference

REFERENCE = "x-definition"
"""In schemas of fields: the name of a definition that ``workloads.evals.schema`` makes."""
DEPRECATED: dict[str, Any] = {"deprecated": True}
"""In schemas of keys that stand where older versions of the format have them."""
NAME = re.compile(r"[a-z0-9-]{1,64}")
_COMMIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@~^+#-]{0,249}")
"""What git may be told to check out: nothing that it would take for an option, a range or a path."""


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


def _block_or_path(value: Any, block: ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, str) and value.strip() else block(value)


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


def _commit(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not _COMMIT.fullmatch(value) or ".." in value:
        raise ValueError("must be a commit, branch or tag")
    return value


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
"""Messages, or what becomes one, which ``evalfile.messages`` checks."""


class Block(Entry):
    """A mapping of an eval file, of a targets file or of a configuration."""

    aside: ClassVar = True
    _spelled_graders: ClassVar = {"evaluators": "assert", "assertions": "assert"}


class HookBlock(Block):
    """A command that runs before or after tests."""

    spellings: ClassVar = {"command": "script"}

    script: Argv | None = key(None, "The command: a line for sh, or a list of words.")
    timeout_ms: Annotated[float, number(above=0)] | None = key(
        None, "Time limit in milliseconds (default: 60000; 30000 for hooks that run after tests)."
    )
    cwd: Text | None = key(
        None, "Working directory, relative to the file in which the workspace stands (default: that file's folder)."
    )
    reset: Literal["none", "fast", "strict"] | None = key(
        None, "Put a shared workspace back before the hook: none, fast or strict (before_each and after_each)."
    )


class HooksBlock(Block):
    """Commands that run before and after tests."""

    entries: ClassVar = dict.fromkeys(("before_all", "before_each", "after_each", "after_all"), HookBlock)

    enabled: Flag | None = key(None, "Run the hooks (default: true).")
    before_all: HookBlock | None = key(None, "As before_all of the workspace.")
    before_each: HookBlock | None = key(None, "As before_each of the workspace.")
    after_each: HookBlock | None = key(None, "As after_each of the workspace.")
    after_all: HookBlock | None = key(None, "As after_all of the workspace.")


class RepoBlock(Block):
    """A git repository in a workspace."""

    spellings: ClassVar = {"base_commit": "commit"}
    beyond: ClassVar = {
        **dict.fromkeys(("source", "type"), "use repo"),
        "checkout": "use commit and ancestor",
        "clone": "use sparse for parts of a repository",
    }

    path: Text | None = key(None, "Where it is checked out, relative to the workspace.")
    repo: Text | None = key(None, "What is cloned: a URL, OWNER/NAME at GitHub, or the path of a local repository.")
    commit: Annotated[str, BeforeValidator(_commit)] | None = key(
        None, "Commit, branch or tag (default: the repository's HEAD)."
    )
    ancestor: Annotated[int, whole(0)] = key(0, "Number of first parents to go back from there.")
    sparse: Texts | None = key(None, "Folders that are checked out, and no others.")


def _image(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be the name of a container image")
    return checked_reference(value, files=True)


def _bytes(value: Any) -> int:
    size = _SIZE.fullmatch(str(value).strip().lower())
    found = 0 if size is None else int(float(size[1]) * 1024 ** " kmg".index(size[2] or " "))
    if found < 1:
        raise ValueError("must be a number of bytes, or one with k, m or g behind it, as in 4g")
    return found


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmg]?)(?:i?b)?")


class DockerBlock(Block):
    """The container in which an agent works on the test."""

    image: Annotated[str, BeforeValidator(_image)] = key(..., "Image of the container.")
    timeout: Annotated[float, number(above=0)] | None = key(
        None, "Time limit of programs that grade there, which are not supported."
    )
    memory: Annotated[int, BeforeValidator(_bytes), WithJsonSchema({"type": ["string", "integer"]})] | None = key(
        None, "Maximum memory, as in 4g; the target's own limit holds too."
    )
    cpus: Annotated[float, number(above=0)] | None = key(
        None, "Maximum number of processors; the target's own limit holds too."
    )


class RequirementsBlock(Block):
    """What must be installed."""

    required_commands: Texts | None = key(None, "Programs that must be on the path.")
    required_python_modules: Texts | None = key(None, "Modules that python3 must be able to import.")


class WorkspaceBlock(Block):
    """The folder in which targets work."""

    beyond: ClassVar = {
        "pool": "use mode: pooled or temp",
        **dict.fromkeys(("static", "static_path"), "use mode: static and path"),
    }

    template: Text | None = key(
        None,
        "Folder that is copied, relative to the eval file; a .code-workspace file stands for its folder. Without one the workspace is "
        "empty.",
    )
    before_all: HookBlock | None = key(
        None, "Runs once, before all tests, in the copy of which all workspaces are copies."
    )
    after_all: HookBlock | None = key(None, "Runs once, when all tests have ended.")
    before_each: HookBlock | None = key(None, "Runs before each test, in its workspace.")
    after_each: HookBlock | None = key(None, "Runs after each test, when it is graded.")
    hooks: HooksBlock | None = key(None, "The same hooks, in a mapping of their own.")
    repos: Annotated[Any, WithJsonSchema({"type": "array", "items": {REFERENCE: "RepoBlock"}})] = key(
        None, "Git repositories that are checked out in it."
    )
    isolation: Literal["shared", "per_test"] | None = key(
        None, "shared: one workspace for all tests, one after the other. per_test: one for each (default)."
    )
    mode: Literal["pooled", "temp", "static"] | None = key(
        None, "temp: in the run's folder (default). pooled: like it, and shared. static: the existing folder path."
    )
    path: Text | None = key(None, "With mode: static, the folder in which targets work, relative to the eval file.")
    docker: DockerBlock | None = key(
        None, "Container in which an agent works. Programs can't grade in it: a test with such graders is refused."
    )
    env: RequirementsBlock | None = key(None, "What must be installed.")
    entries: ClassVar = {
        **HooksBlock.entries,
        "hooks": HooksBlock,
        "docker": DockerBlock,
        "env": RequirementsBlock,
    }


NamedWorkspace = Annotated[
    WorkspaceBlock, WrapValidator(_block_or_path), WithJsonSchema({REFERENCE: "Workspace"}, mode="validation")
]
"""A workspace; or a text, the path of a file that holds one."""


class TargetRefBlock(Block):
    """A target that answers the tests of a file."""

    entries: ClassVar = {"hooks": HooksBlock}

    name: Text = key(..., "Name of the target in results.")
    use_target: Words | None = key(None, "Name of the target whose settings it has (default: its own name).")
    hooks: HooksBlock | None = key(None, "Commands that run before or after its tests.")


def _target_refs(value: Any) -> Any:
    given = value if isinstance(value, (list, tuple)) else [value]
    found = [{"name": each} if isinstance(each, str) else each for each in given]
    if not found or not all(isinstance(each, (dict, TargetRefBlock)) for each in found):
        raise ValueError("must be a list of names of targets, or of mappings with a name")
    return found


_TARGET_REFS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {REFERENCE: "TargetRef"}}]}
TargetRefs = Annotated[tuple[TargetRefBlock, ...], BeforeValidator(_target_refs), WithJsonSchema(_TARGET_REFS)]


class TrialsBlock(Block):
    """Repeated trials of each test."""

    count: Annotated[int, whole(1, 1000)] = key(..., "Number of trials of each test.")
    strategy: Literal["pass_at_k", "mean", "confidence_interval"] = key(
        "pass_at_k", "How the scores of the trials become one: pass_at_k, mean or confidence_interval."
    )
    cost_limit_usd: Annotated[float, number(above=0)] | None = key(
        None, "Cost of a test's trials in US dollars from which on no further one begins."
    )
    stop_early: Flag = key(True, "Begin no further trial once one has passed (with pass_at_k).")


class TestExecution(Block):
    """How a test is executed."""

    __test__: ClassVar[bool] = False
    spellings: ClassVar = Block._spelled_graders
    obsolete: ClassVar = frozenset(("evaluators",))
    entries: ClassVar = {"trials": TrialsBlock}

    skip_defaults: Flag = key(False, "Leave out the file's own input, its files and graders.")
    target: Text | None = key(None, "Target that answers this test.")
    targets: Texts | None = key(None, "Targets that answer this test.")
    trials: TrialsBlock | None = key(None, "Trials of this test.")
    threshold: Annotated[float, number(0, 1)] | None = key(None, "The same as threshold of the test.")
    assert_: Graders = key(None, "Obsolete: use assert of the test.", alias="assert", json_schema_extra=DEPRECATED)


class SuiteExecution(Block):
    """How the tests of a file are executed."""

    spellings: ClassVar = {**Block._spelled_graders, "total_budget_usd": "budget_usd", "max_cost_usd": "budget_usd"}
    obsolete: ClassVar = frozenset(("evaluators",))
    entries: ClassVar = {"trials": TrialsBlock, "targets": TargetRefBlock}

    target: Text | None = key(None, "Target that answers the tests.")
    targets: TargetRefs | None = key(
        None, "Targets that answer the tests, each every test: names, or mappings with name, use_target and hooks."
    )
    trials: TrialsBlock | None = key(None, "Repeated trials of each test.")
    cache: Flag | None = key(None, "Use answers of earlier runs from the cache.")
    cache_path: Text | None = key(None, "Folder of the cache, relative to the eval file.")
    workers: Annotated[int, whole(1)] | None = key(None, "Maximum concurrent tests.")
    threshold: Annotated[float, number(0, 1)] | None = key(
        None, "Minimum score of a test that passes, 0 to 1 (default: 0.8)."
    )
    budget_usd: Annotated[float, number(above=0)] | None = key(None, "Budget of the run in US dollars.")
    fail_on_error: Flag | None = key(None, "Stop the run at the first test whose target fails.")
    assert_: Graders = key(None, "Obsolete: use assert of the file.", alias="assert", json_schema_extra=DEPRECATED)


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

    input: Messages = key(..., "The user's message: a text, an object, or a list of parts.")
    expected_output: Messages = key(None, "The answer that is expected.")
    assert_: Graders = key(None, "Graders of the answer.", alias="assert")


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
        ..., "Name of the test, unique in its file."
    )
    description: Words | None = key(None, "A description for people.")
    criteria: Words | None = key(None, "What a good answer does, in words, for a judge.")
    input: Messages = key(None, "Input of the target: a text, an object, or a list of messages.")
    input_files: Texts | None = key(
        None, "Files that go with the input: before its text, or at the head of its first message of the user."
    )
    suite: Words | None = key(None, "Name of the suite that it comes from, for people.")
    expected_output: Messages = key(None, "The answer that is expected: a text, an object, a list, or messages.")
    assert_: Graders = key(None, "Graders of the answer.", alias="assert")
    rubrics: Annotated[Any, WithJsonSchema({"type": "array"})] = key(
        None, "Rubrics that a judge checks, before all other graders."
    )
    execution: TestExecution | None = key(None, "How the test is executed.")
    evaluator: Text | None = key(None, "Kind of grader that is used without a list of graders.")
    conversation_id: Text | None = key(None, "Name that tests of one conversation share, for results.")
    metadata: Mapped | None = key(None, "Data of your own.")
    tags: Texts | None = key(None, "Tags by which tests are chosen (--tag).")
    vars: Mapped | None = key(None, "Values for {{ name }} in this test.")
    threshold: Annotated[float, number(0, 1)] | None = key(None, "Minimum score with which this test passes, 0 to 1.")
    workspace: NamedWorkspace | None = key(
        None, "Workspace of the target, or the path of a file that holds it; what it doesn't say, the file's does."
    )
    depends_on: Ids | None = key(None, "Ids of tests of the same file that end before this one begins.")
    on_dependency_failure: Literal["skip", "fail", "run"] = key(
        "skip", "Action when a dependency has no score because of an error: skip, fail or run."
    )
    mode: Literal["conversation"] | None = key(None, "`conversation`: a test of several turns.")
    turns: Annotated[Any, WithJsonSchema(_TURNS)] = key(
        None, "Turns of the conversation, each answered before the next."
    )
    aggregation: Literal["mean", "min", "max"] | None = key(
        None, "How the scores of the turns become one: mean, min or max (default: mean)."
    )
    on_turn_failure: Literal["continue", "stop"] | None = key(
        None, "Action after a turn whose score is below the threshold: continue or stop (default: continue)."
    )
    window_size: Annotated[int, whole(1)] | None = key(
        None,
        "Maximum turns of history that the target is given, two messages each, besides the system's (default: all).",
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
        "grader_target": "judge_target",
        "input_messages": "input",
    }
    obsolete: ClassVar = frozenset(("eval_cases", "evalcases", "cases", "evaluators", "input_messages"))
    entries: ClassVar = {"execution": SuiteExecution, "workspace": WorkspaceBlock}
    beyond: ClassVar = _OF_EACH_TEST

    schema_: str | None = key(None, "The kind of file.", alias="$schema")
    tests: Annotated[Any, WithJsonSchema({"type": ["string", "array"]})] = key(
        None, "The tests: a list, whose items may be file://PATH, or the path of a file that holds them."
    )
    name: Words | None = key(None, "Name of the suite: lower-case letters, digits and hyphens.")
    description: Words | None = key(None, "A description for people.")
    dataset: Text | None = key(None, "Name of the suite in results (default: the file's name).")
    category: Text | None = key(None, "A category of your own.")
    version: Annotated[Any, WithJsonSchema({"type": ["string", "number"]})] = key(None, "Version of the suite.")
    author: Annotated[Any, WithJsonSchema({})] = key(None, "Author of the suite.")
    license: Words | None = key(None, "Licence of the suite.")
    requires: Mapped | None = key(None, "What the suite needs; not checked.")
    tags: Texts | None = key(None, "Tags of all tests.")
    metadata: Mapped | None = key(None, "Data of your own.")
    governance: Mapped | None = key(
        None, "What the suite is about in terms of risk and compliance; goes into the metadata of each test."
    )
    execution: SuiteExecution | None = key(None, "How the tests are executed.")
    target: Text | None = key(None, "Obsolete: use execution.target.", json_schema_extra=DEPRECATED)
    targets: Annotated[Any, WithJsonSchema({REFERENCE: "Targets"})] = key(None, "Targets that the file itself defines.")
    judge_target: Text | None = key(None, "Target that judges answers where the evaluated target names none.")
    input: Messages = key(None, "Messages that go before each test's own.")
    input_files: Texts | None = key(None, "Files that go with the input of each test that names none itself.")
    assert_: Graders = key(None, "Graders of all tests, after each test's own.", alias="assert")
    evaluator: Text | None = key(None, "Kind of grader for tests without a list of graders.")
    preprocessors: tuple[PreprocessorEntry, ...] | None = key(
        None, "Programs that turn files in answers into text, for all graders: a list with type and command."
    )
    vars: Mapped | None = key(None, "Values for {{ name }} in all tests.")
    threshold: Annotated[float, number(0, 1)] | None = key(
        None, "Minimum score of a test that passes, 0 to 1 (default: 0.8)."
    )
    workspace: NamedWorkspace | None = key(None, "Workspace of targets, or the path of a file that holds it.")


class ConfigExecution(Block):
    """Defaults of evaluations, below what eval files and the command line say."""

    idle: ClassVar = frozenset(
        (
            *("otel_file", "export_otel", "otel_backend", "otel_capture_content", "otel_group_turns"),
            *("pool_workspaces", "pool_slots"),
        )
    )

    verbose: Flag | None = key(None, "As --verbose.")
    keep_workspaces: Flag | None = key(None, "As --keep_workspaces.")
    trace_file: Text | None = key(
        None, "As --trace_file, relative to the folder of .agentv; {timestamp} stands for the time."
    )
    workers: Annotated[int, whole(1, 10_000)] | None = key(None, "As --workers.")
    max_retries: Annotated[int, whole(0)] | None = key(None, "As --max_retries.")
    agent_timeout: Annotated[float, number(above=0)] | None = key(None, "As --agent_timeout, in seconds.")
    agent_timeout_ms: Annotated[float, number(above=0)] | None = key(None, "The same in milliseconds.")


class ConfigHooks(Block):
    """Commands around a session."""

    before_session: Any = key(None, "No effect: commands that nobody typed are not run.")


class ConfigBlock(Block):
    """``.agentv/config.yaml``."""

    entries: ClassVar = {"execution": ConfigExecution, "hooks": ConfigHooks}
    idle: ClassVar = frozenset(("results", "projects", "results_by_project", "dashboard", "studio"))

    schema_: Any = key(None, "The kind of file.", alias="$schema")
    guideline_patterns: Any = key(None, "Patterns of the input files that are guidelines.")
    eval_patterns: Any = key(None, "Patterns of the files in a folder that are eval files.")
    execution: ConfigExecution | None = key(None, "Defaults of evaluations.")
    hooks: ConfigHooks | None = key(None, "Commands around a session.")
    required_version: Any = key(None, "Version of AgentV; not checked.")
    providers: Any = key(None, "Targets, as AgentV 5 has them.")
    defaults: Any = key(None, "Defaults of eval files, as AgentV 5 has them.")
