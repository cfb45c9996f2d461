"""The settings of an evaluation run, and what names of files say of the format that results are written in.

Names are those of AgentV's options where it has one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self

from manyhands.agents.options import AgentOptions
from manyhands.core.errors import UserError
from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalFlag,
    OptionalList,
    OptionalPath,
    OptionalText,
    number,
    optional_number,
    optional_whole,
    setting,
    whole,
)
from manyhands.core.text import expand_home
from manyhands.graders.protocol import PASS_LIMIT
from manyhands.runs.folders import is_made
from manyhands.runs.options import (
    LIMITS,
    OUTPUT,
    RESUME,
    SPEED,
    ResumeSettings,
    RunOptions,
    TerminalSettings,
    ViewSettings,
    absolute,
    check_run_name,
)
from manyhands.sandboxes.settings import RowImageSettings
from manyhands.task_folders.settings import TASKS, TaskLimitSettings
from manyhands.workloads.evals.evalfile.patterns import id_filter, split_patterns

TESTS = "Tests"
TARGETS = "Targets"
GRADING = "Grading"
GRADER_SECONDS = 120.0
RETRIES = 2
"""How often a test whose target timed out is retried by default."""
DELAYS = ("dry_run_delay", "dry_run_delay_min", "dry_run_delay_max")


def _files(value: Any) -> Any:
    if isinstance(value, (str, FilePath)):
        value = [value]
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("must name at least one eval file")
    return tuple(str(expand_home(path)) for path in value)


def _outputs(value: Any) -> Any:
    if value is None or value == "":
        return None
    paths = tuple(str(path) for path in ([value] if isinstance(value, (str, FilePath)) else value))
    wrong = next((path for path in paths if FilePath(path).suffix.lower() not in ENDINGS), None)
    if wrong is not None:
        raise ValueError(f"must end in one of {', '.join(ENDINGS)}; a folder for the run in a slash")
    return paths


def _run_name(value: Any) -> str | None:
    return None if value is None else check_run_name(value)


def _patterns(value: Any) -> Any:
    if value is None or value == "":
        return None
    patterns = tuple(
        part.strip() for each in ([value] if isinstance(value, str) else value) for part in split_patterns(str(each))
    )
    id_filter(patterns)  # raises ValueError
    return tuple(filter(None, patterns)) or None


_OTEL = ("otel_file", "export_otel", "otel_backend", "otel_capture_content", "otel_group_turns")
_RESULTS_REPOSITORY = (
    "results_repo",
    "results_branch",
    "results_remote",
    "results_push",
    "results_require_push",
)
_OF_NOBODY = ("log_prefix_chars", "reasoning_config", "prefill_messages")
_INSTEAD = {
    **{
        name: f"the targets of an evaluation say this themselves; write {name} below the target"
        for name in AgentOptions.fields
        if name not in (*RunOptions.fields, "keep_workspaces", "executor")
    },
    **dict.fromkeys(RowImageSettings.fields, "the targets of an evaluation name their image themselves: image: NAME"),
    **dict.fromkeys(_OF_NOBODY, "it has no meaning for evaluations"),
    "retry_failed": "--retry_errors executes the tests of a run again that ended in errors, --rerun_failed also those that failed",
    **dict.fromkeys(
        _RESULTS_REPOSITORY,
        "results are not committed anywhere; they are files in the run's folder, which --output=FOLDER can choose",
    ),
    **dict.fromkeys(
        ("record_replay", "record_replay_variant"), "a run keeps its answers: --regrade RUN grades them again"
    ),
    "experiment": "name the run with --run_name, or choose its folder with --output=FOLDER",
    "artifacts": "choose the run's folder with --output=FOLDER",
    "output_messages": "results have all messages of an answer",
    **dict.fromkeys(
        _OTEL,
        "nothing is written for OpenTelemetry; --trace_file writes a line of JSON for each test, with its tool calls",
    ),
}


class EvalSpec(RunOptions, TerminalSettings, ViewSettings, ResumeSettings, TaskLimitSettings):
    """Everything that can be set for an evaluation run. Agents and models are settings of targets."""

    instead: ClassVar[Mapping[str, str]] = _INSTEAD
    retired: ClassVar[frozenset[str]] = frozenset((*AgentOptions.fields, "log_prefix_chars")) - {"executor"}

    headings: ClassVar[tuple[str, ...]] = (
        TESTS,
        TARGETS,
        TASKS,
        GRADING,
        OUTPUT,
        SPEED,
        LIMITS,
        RESUME,
    )

    eval_files: Annotated[tuple[str, ...], Checked(_files)] = setting(
        ...,
        "Eval files (.yaml, .yml, .jsonl), globs of them, folders with such files, or task folders.",
        group=TESTS,
        identity=True,
        value="FILE",
    )
    test_id: Annotated[tuple[str, ...] | None, Checked(_patterns)] = setting(
        None,
        "Only tests whose id matches one of these globs; with a leading !, none that match.",
        group=TESTS,
        identity=True,
        value="GLOB",
    )
    tag: OptionalList = setting(None, "Only tests with at least one of these tags.", group=TESTS, identity=True)
    exclude_tag: OptionalList = setting(None, "Exclude tests with any of these tags.", group=TESTS, identity=True)
    format: Literal["auto", "agentv-2", "agentv-4", "agentv-5"] = setting(
        "auto",
        "Version of AgentV's format that eval files are written in; auto: as their keys say, else an earlier one than 5.",
        group=TESTS,
        identity=True,
    )
    skip_invalid: Flag = setting(
        False, "Leave out tests that can't be run; they count as discarded.", group=TESTS, identity=True
    )
    strict: Flag = setting(
        False,
        "Refuse keys of files that mean nothing, which are noted otherwise.",
        group=TESTS,
        recorded=False,
    )
    trials: Annotated[int | None, optional_whole(1, 1000)] = setting(
        None,
        "Samples of each test, whether or not one has passed (default: as the eval file says).",
        group=TESTS,
        identity=True,
    )

    targets: OptionalPath = setting(
        None,
        "Targets file, or a folder with one (default: searched from the eval file's folder up).",
        group=TARGETS,
        value="FILE",
    )
    target: OptionalList = setting(
        None, "Targets to evaluate; with several, each evaluates every test.", group=TARGETS, identity=True
    )
    from_output: OptionalPath = setting(
        None,
        "Grade the answers in this file, in the format of batch commands or of AgentV's transcripts; no target is run.",
        group=TARGETS,
        identity=True,
        value="FILE",
    )
    rerun: Literal["missing"] | None = setting(
        None, "Invoke a batch command again for tests whose records are missing.", group=TARGETS
    )
    dry_run: Flag = setting(
        False,
        "Replace the targets' answers by made-up ones (graders are real), and estimate what real ones would take.",
        group=TARGETS,
        identity=True,
    )
    dry_run_delay: Annotated[float | None, optional_number(0)] = setting(
        None, "Latency of made-up answers in milliseconds.", group=TARGETS
    )
    dry_run_delay_min: Annotated[float | None, optional_number(0)] = setting(
        None, "Minimum latency of made-up answers in milliseconds.", group=TARGETS
    )
    dry_run_delay_max: Annotated[float | None, optional_number(0)] = setting(
        None, "Maximum latency of made-up answers in milliseconds.", group=TARGETS
    )
    agent_timeout: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        "Timeout of one answer in seconds (not for commands that answer all tests at once); also of graders without --grader_timeout.",
        group=TARGETS,
    )
    cache: OptionalFlag = setting(
        None,
        "Reuse answers of earlier runs to the same question by the same target and command (default: as the eval file says). Not with "
        "several samples, a temperature above 0, or a command that answers all tests at once.",
        group=TARGETS,
    )
    cache_dir: OptionalPath = setting(
        None, "Folder of the cache (default: in the data folder).", group=TARGETS, value="FOLDER"
    )

    threshold: Annotated[float | None, optional_number(0, 1)] = setting(
        None,
        f"Minimum score to pass (default: as the eval file says, else {PASS_LIMIT}); a test's own threshold takes precedence.",
        group=GRADING,
    )
    judge_target: OptionalText = setting(
        None,
        "Target that judges answers where the evaluated target names none.",
        group=GRADING,
        identity=True,
        value="NAME",
    )
    grader_target: OptionalText = setting(
        None,
        "Target that judges all answers, whichever judge the evaluated targets name; graders with a target of their own keep it.",
        group=GRADING,
        identity=True,
        value="NAME",
    )
    allow_ungraded: Flag = setting(
        False,
        "Accept tests that nothing grades, and count them as ungraded: those without graders where no judge is configured, and those "
        "whose graders found nothing to compare.",
        group=GRADING,
        identity=True,
    )
    grader_timeout: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        f"Timeout of a grader's program or function in seconds (default: --agent_timeout, else {GRADER_SECONDS:g}).",
        group=GRADING,
    )
    grader_processes: Annotated[int | None, optional_whole(1, 1000)] = setting(
        None, "Maximum concurrent programs of graders (default: number of CPUs).", group=GRADING
    )
    fail_on: Literal["any", "failed", "error", "never"] = setting(
        "any", "What makes the exit code nonzero: failed tests, errors, any of them, or nothing.", group=GRADING
    )

    out: OptionalPath = setting(
        None,
        "Also write the results to this file, in the format of its suffix, or --output_format.",
        group=OUTPUT,
        value="FILE",
    )
    output_format: Literal["jsonl", "yaml"] | None = setting(
        None, "Format of --out if its suffix names none (default: jsonl).", group=OUTPUT
    )
    trace_file: OptionalPath = setting(
        None, "Also write one JSON line per test: its cost and tool calls.", group=OUTPUT, value="FILE"
    )
    output: Annotated[tuple[str, ...] | None, Checked(_outputs)] = setting(
        None,
        "Also write the results in the format of the suffix: .jsonl, .json, .xml (JUnit), .html, .yaml.",
        group=OUTPUT,
        value="FILE",
    )
    workspace_mode: Literal["pooled", "temp", "static"] | None = setting(
        None,
        "Workspaces of tests that have one: temp (of each test), pooled (shared), static (the existing folder of "
        "--workspace_path); default: as the eval file says.",
        group=TESTS,
        identity=True,
    )
    workspace_path: OptionalPath = setting(
        None,
        "Existing folder in which targets work, one test after the other, in place of workspaces.",
        group=TESTS,
        identity=True,
        value="FOLDER",
    )
    keep_workspaces: Flag = setting(
        False, "Keep all workspaces (default: those of tests that did not pass).", group=OUTPUT
    )
    cleanup_workspaces: Flag = setting(False, "Keep no workspaces.", group=OUTPUT)
    run_name: Annotated[str | None, Checked(_run_name)] = setting(
        None, "Name of the run and of its folder.", group=OUTPUT, value="NAME"
    )

    workers: Annotated[int | None, optional_whole(1, 10_000)] = setting(
        None,
        "Maximum concurrent tests (default: as the eval file or the target says, else 3 for commands and 16 for models). A target's own "
        "limit also applies.",
        group=SPEED,
    )
    executor: Literal["local", "processes", "ray"] = setting(
        "local",
        "Where tests are executed: local (this process), processes (worker processes), or ray (worker processes on the nodes of a Ray "
        "cluster).",
        group=SPEED,
    )
    num_workers: Annotated[int, whole(1, 10_000)] = setting(
        4, "Number of worker processes, with --executor=processes or ray.", group=SPEED
    )
    item_timeout: Annotated[float, number(above=0)] = setting(3600.0, "Time limit per test in seconds.", group=LIMITS)
    max_retries: Annotated[int | None, optional_whole(0)] = setting(
        None,
        f"Maximum retries of a test whose target timed out or whose endpoint failed (default: {RETRIES} after a timeout, else by "
        "cause). 0: nothing is retried, model calls included.",
        group=LIMITS,
    )
    max_attempts: Annotated[int | None, optional_whole(1)] = setting(
        None, "Maximum attempts of such a test: --max_retries plus 1.", group=LIMITS
    )
    max_cost: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        "Maximum cost of the run in US dollars, over all resumes: model calls, and what commands report; the run stops there and can be "
        "resumed (default: budget_usd of the eval file).",
        group=LIMITS,
    )
    verbose: Flag = setting(
        False, "Print the commands that are run, each test as it ends, and full tracebacks of errors.", group=OUTPUT
    )
    resume: Flag = setting(False, "Continue the run of this name.", group=RESUME, recorded=False)
    retry_errors: Flag = setting(
        False, "With --resume: retry tests that ended in errors.", group=RESUME, recorded=False
    )
    rerun_failed: Flag = setting(
        False,
        "Continue the run of this name, and run its tests again that failed or ended in errors, with all their samples, from nothing; "
        "results say that they are re-rolled, and what came first.",
        group=RESUME,
        recorded=False,
    )
    regrade: OptionalText = setting(
        None,
        "Grade the answers of this finished run again, without running the targets.",
        group=RESUME,
        identity=True,
        value="RUN",
    )
    watch: Flag = setting(
        False, "Run again whenever an eval file or targets file changes, until Ctrl-C.", group=RESUME, recorded=False
    )
    bootstrap_seed: Annotated[int, whole(0)] = setting(
        0, "Seed of resampled confidence intervals.", group=GRADING, typed=False
    )
    score_interval: Annotated[float | None, optional_number(0.5, 0.999)] = setting(
        0.95, "Confidence level of intervals.", group=GRADING
    )

    @property
    def retries(self) -> int | None:
        """Maximum retries of a test, whichever way they were counted; None by default."""
        return self.max_retries if self.max_attempts is None else self.max_attempts - 1

    @property
    def asks_targets(self) -> bool:
        """Whether targets answer, and nothing stands in for them."""
        return not (self.dry_run or self.from_output or self.regrade)

    def resolved(self) -> Self:
        """As of the base class. Raises UserError, too, for settings that contradict each other."""
        given = [name for name in ("from_output", "regrade", "dry_run") if getattr(self, name)]
        if len(given) > 1:
            raise UserError(f"give --{given[0]} or --{given[1]}, not both")
        if self.judge_target is not None and self.grader_target is not None:
            raise UserError("give --judge_target or --grader_target, not both")
        if self.keep_workspaces and self.cleanup_workspaces:
            raise UserError("give --keep_workspaces or --cleanup_workspaces, not both")
        if self.max_retries is not None and self.max_attempts is not None:
            raise UserError("give --max_retries or --max_attempts, not both")
        if self.workspace_path is not None and self.workspace_mode not in (None, "static"):
            raise UserError(f"--workspace_path goes with --workspace_mode=static, not {self.workspace_mode}")
        delays = [name for name in DELAYS if getattr(self, name) is not None]
        if delays and not self.dry_run:
            raise UserError(f"--{delays[0]} goes with --dry_run")
        max_delay = self.dry_run_delay if self.dry_run_delay_max is None else self.dry_run_delay_max
        if max_delay is not None and (self.dry_run_delay_min or 0) > max_delay:
            raise UserError("--dry_run_delay_min must not be more than --dry_run_delay_max")
        if self.out is not None:
            check_out_name(FilePath(self.out), self.output_format)
        if self.trace_file is not None:
            check_trace_name(FilePath(self.trace_file))
        spec = super().resolved()
        named = ("targets", "from_output", "out", "cache_dir", "trace_file", "workspace_path")
        changes: dict[str, Any] = {name: absolute(path) for name in named if (path := getattr(self, name))}
        # One way of naming a file, whichever folder the command is given in: these say what run it is.
        changes["eval_files"] = tuple(os.path.abspath(path) for path in self.eval_files)
        if self.regrade is not None and _is_path_of_run(self.regrade, spec.data_dir):
            changes["regrade"] = absolute(self.regrade)
        if self.output is not None:
            changes["output"] = tuple(absolute(path) for path in self.output)
        return spec.changed(changes)


def _is_path_of_run(named: str, data_dir: str) -> bool:
    """Whether a run is named by its folder's path, and not by its name in the data folder."""
    return is_made(expand_home(named)) and not is_made(FilePath(data_dir) / named)


ENDINGS = (".jsonl", ".json", ".xml", ".html", ".yaml", ".yml")
"""What ``--output`` may end in, each with its own format."""
LINES = ".jsonl"
_LINES = (LINES, ".ndjson")
_FORMATS = {"jsonl": _LINES, "yaml": (".yaml", ".yml")}
"""The endings that go with each ``--output_format``."""
_OTHER_FORMATS = frozenset(
    (
        *(".csv", ".tsv", ".xlsx", ".xls", ".ods", ".parquet", ".toml", ".htm", ".md", ".pdf", ".db", ".sqlite"),
        *(".gz", ".zip", ".bz2", ".xz", ".zst", ".tar", ".tgz", ".7z"),
    )
)
"""Endings that promise what is not written."""


def ending_of_out(path: Path, chosen: str | None) -> str:
    """The format of ``--out`` as an ending of ``ENDINGS``: ``chosen`` (``--output_format``), else what the file's name says, else JSON
    Lines."""
    if chosen is not None:
        return f".{chosen}"
    named = path.suffix.lower()
    return named if named in ENDINGS else LINES


def check_out_name(path: Path, chosen: str | None) -> None:
    """Raises UserError for an ``--out`` that promises another format than is written."""
    named = path.suffix.lower()
    if named in _OTHER_FORMATS:
        raise UserError(f"--out {path}: results are not written as {named}; let it end in one of {', '.join(ENDINGS)}")
    if chosen is not None and named in (*ENDINGS, *_LINES) and named not in _FORMATS[chosen]:
        raise UserError(f"--out {path}: {named} is not what --output_format={chosen} writes; leave one of them out")


def check_trace_name(path: Path) -> None:
    """Raises UserError for a ``--trace_file`` that promises another format than JSON Lines."""
    named = path.suffix.lower()
    if named in _OTHER_FORMATS or (named in ENDINGS and named not in _LINES):
        raise UserError(f"--trace_file {path}: is written as JSON Lines, not as {named}; let it end in {LINES}")
