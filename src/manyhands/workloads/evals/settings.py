"""The settings of an evaluation run, and what names of files say of the format that results are written in.

Names are those of AgentV's options where it has one.
"""

from __future__ import annotations

import os
from pathlib import Path
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator

from manyhands.core.errors import UserError
from manyhands.core.settings import (
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
from manyhands.graders.protocol import PASS_LIMIT
from manyhands.runs.folders import is_made
from manyhands.runs.options import LIMITS, OUTPUT, RESUME, SPEED, RunOptions, check_run_name
from manyhands.workloads.evals.evalfile.patterns import id_filter, split_patterns

TESTS = "Tests"
TARGETS = "Targets"
GRADING = "Grading"
GRADER_SECONDS = 120.0
RETRIES = 2
"""How often a target that took too long is asked again where nobody says."""
DELAYS = ("dry_run_delay", "dry_run_delay_min", "dry_run_delay_max")


def _files(value: Any) -> Any:
    if isinstance(value, (str, FilePath)):
        value = [value]
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("must name at least one eval file")
    return tuple(str(FilePath(path).expanduser()) for path in value)


def _outputs(value: Any) -> Any:
    if value is None or value == "":
        return None
    paths = tuple(str(path) for path in ([value] if isinstance(value, (str, FilePath)) else value))
    wrong = next((path for path in paths if FilePath(path).suffix.lower() not in ENDINGS), None)
    if wrong is not None:
        raise ValueError(f"must end in one of {', '.join(ENDINGS)}")
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


class EvalSpec(RunOptions):
    """Everything that can be set for an evaluation run."""

    headings: ClassVar[tuple[str, ...]] = (
        TESTS,
        TARGETS,
        GRADING,
        OUTPUT,
        SPEED,
        LIMITS,
        RESUME,
    )

    eval_files: Annotated[tuple[str, ...], BeforeValidator(_files)] = setting(
        ...,
        "Eval files (.yaml, .yml, .jsonl), globs of them, or folders with such files.",
        group=TESTS,
        identity=True,
        value="FILE",
    )
    test_id: Annotated[tuple[str, ...] | None, BeforeValidator(_patterns)] = setting(
        None,
        "Only tests whose id fits one of these globs; with a ! before it, none that fit.",
        group=TESTS,
        identity=True,
        value="GLOB",
    )
    tag: OptionalList = setting(None, "Only tests with one of these tags.", group=TESTS, identity=True)
    exclude_tag: OptionalList = setting(None, "No tests with one of these tags.", group=TESTS, identity=True)
    skip_invalid: Flag = setting(
        False, "Go on without tests that can't be run; they are counted as discarded.", group=TESTS, identity=True
    )
    trials: Annotated[int | None, optional_whole(1, 1000)] = setting(
        None,
        "How often each test is tried, whether or not a trial has passed; without it the eval file says.",
        group=TESTS,
        identity=True,
    )

    targets: OptionalPath = setting(
        None, "Targets file, or a folder with one; without it one is looked for.", group=TARGETS, value="FILE"
    )
    target: OptionalList = setting(
        None, "Targets that are questioned; with several, every test is put to each.", group=TARGETS, identity=True
    )
    from_output: OptionalPath = setting(
        None,
        "Grade this file of answers, as a batch command writes them; no target is run.",
        group=TARGETS,
        identity=True,
        value="FILE",
    )
    rerun: Literal["missing"] | None = setting(
        None, "Invoke a batch command again for the tests whose records are missing.", group=TARGETS
    )
    dry_run: Flag = setting(
        False, "Made-up answers in place of the targets'; graders are real.", group=TARGETS, identity=True
    )
    dry_run_delay: Annotated[float | None, optional_number(0)] = setting(
        None, "Milliseconds that a made-up answer takes.", group=TARGETS
    )
    dry_run_delay_min: Annotated[float | None, optional_number(0)] = setting(
        None, "The least that it takes, in milliseconds.", group=TARGETS
    )
    dry_run_delay_max: Annotated[float | None, optional_number(0)] = setting(
        None, "The most that it takes, in milliseconds.", group=TARGETS
    )
    agent_timeout: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        "Seconds for one answer of a target (but for commands that answer all tests at once), and for graders without --grader_timeout.",
        group=TARGETS,
    )
    cache: OptionalFlag = setting(
        None,
        "Use answers of earlier runs to the same question by the same target and command; not with several trials, a temperature above 0, "
        "or a command that answers all tests at once. Without it the eval file says; --no-cache: not even then.",
        group=TARGETS,
    )
    cache_dir: OptionalPath = setting(None, "Where the cache is; without it in the data folder.", group=TARGETS)

    threshold: Annotated[float | None, optional_number(0, 1)] = setting(
        None,
        f"The score from which on a test has passed; without it the eval file says, else {PASS_LIMIT}. A test's own counts more.",
        group=GRADING,
    )
    judge_target: OptionalText = setting(
        None, "The target that judges answers where the questioned one names none.", group=GRADING, identity=True
    )
    allow_ungraded: Flag = setting(
        False,
        "Tests that nothing grades are accepted, and count as ungraded: those without graders where no judge is configured, and those "
        "whose graders found nothing to compare.",
        group=GRADING,
        identity=True,
    )
    grader_timeout: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        f"Seconds for one run of a grader's program or function; without it --agent_timeout, else {GRADER_SECONDS:g}.",
        group=GRADING,
    )
    grader_processes: Annotated[int | None, optional_whole(1, 1000)] = setting(
        None, "Graders' programs at once; without it as many as there are processors.", group=GRADING
    )
    fail_on: Literal["any", "failed", "error", "never"] = setting(
        "any", "What makes the exit code other than 0: failed tests, errors, any of them, or nothing.", group=GRADING
    )

    out: OptionalPath = setting(
        None, "Also write the results to this file, as its ending says, or --output_format.", group=OUTPUT, value="FILE"
    )
    output_format: Literal["jsonl", "yaml"] | None = setting(
        None, "The format of --out where its ending says none; jsonl without it.", group=OUTPUT
    )
    trace_file: OptionalPath = setting(
        None, "Also write a line of JSON for each test: what it cost, and its tool calls.", group=OUTPUT, value="FILE"
    )
    output: Annotated[tuple[str, ...] | None, BeforeValidator(_outputs)] = setting(
        None,
        "Also write the results as the ending says: .jsonl, .json, .xml (JUnit), .html, .yaml.",
        group=OUTPUT,
        value="FILE",
    )
    keep_workspaces: Flag = setting(
        False, "Keep all workspaces; without it only those of tests that did not pass.", group=OUTPUT
    )
    cleanup_workspaces: Flag = setting(False, "Keep no workspaces.", group=OUTPUT)
    run_name: Annotated[str | None, BeforeValidator(_run_name)] = setting(
        None, "Name of the run and of its folder.", group=OUTPUT, value="NAME"
    )

    workers: Annotated[int | None, optional_whole(1, 10_000)] = setting(
        None,
        "Tests in work at once, in all; without it the eval file or the target says, else 3 for commands and 16 for models. What a "
        "target says of itself holds besides.",
        group=SPEED,
    )
    item_timeout: Annotated[float, number(above=0)] = setting(3600.0, "Seconds for one test, in all.", group=LIMITS)
    max_retries: Annotated[int | None, optional_whole(0)] = setting(
        None,
        f"How often a test is tried again whose target took too long, or whose endpoint failed; without it {RETRIES} times for what took "
        "too long, and each other cause has its own number. 0: nothing is tried again, no call of a model either.",
        group=LIMITS,
    )
    max_attempts: Annotated[int | None, optional_whole(1)] = setting(
        None, "The same counted otherwise: how often such a test is tried in all.", group=LIMITS
    )
    max_cost: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        "US dollars that the run may cost, over all resumes: its model calls, and what commands say that they cost. At the limit it "
        "stops and stays resumable. Without it the eval file's budget_usd.",
        group=LIMITS,
    )
    verbose: Flag = setting(
        False, "Show the commands that are run, each test as it ends, and full tracebacks of errors.", group=OUTPUT
    )
    resume: Flag = setting(False, "Continue the run of this name.", group=RESUME, recorded=False)
    retry_errors: Flag = setting(
        False, "With --resume: try tests again that ended in errors.", group=RESUME, recorded=False
    )
    regrade: OptionalText = setting(
        None,
        "Grade the answers of this finished run again, without asking the targets.",
        group=RESUME,
        identity=True,
        value="RUN",
    )
    watch: Flag = setting(
        False, "Run again whenever an eval file or targets file changes, until Ctrl-C.", group=RESUME, recorded=False
    )
    bootstrap_seed: Annotated[int, whole(0)] = setting(
        0, "Seed of the intervals that are found by resampling.", group=GRADING, typed=False
    )
    score_interval: Annotated[float | None, optional_number(0.5, 0.999)] = setting(
        0.95, "Level of confidence of intervals.", group=GRADING
    )

    @property
    def retries(self) -> int | None:
        """How often a test is tried again, whichever way it was counted; None: not said."""
        return self.max_retries if self.max_attempts is None else self.max_attempts - 1

    def resolved(self) -> Self:
        """As of the base class. Raises UserError, too, for settings that contradict each other."""
        given = [name for name in ("from_output", "regrade", "dry_run") if getattr(self, name)]
        if len(given) > 1:
            raise UserError(f"give --{given[0]} or --{given[1]}, not both")
        if self.keep_workspaces and self.cleanup_workspaces:
            raise UserError("give --keep_workspaces or --cleanup_workspaces, not both")
        if self.max_retries is not None and self.max_attempts is not None:
            raise UserError("give --max_retries or --max_attempts, not both")
        delays = [name for name in DELAYS if getattr(self, name) is not None]
        if delays and not self.dry_run:
            raise UserError(f"--{delays[0]} goes with --dry_run")
        most = self.dry_run_delay if self.dry_run_delay_max is None else self.dry_run_delay_max
        if most is not None and (self.dry_run_delay_min or 0) > most:
            raise UserError("--dry_run_delay_min must not be more than --dry_run_delay_max")
        if self.out is not None:
            check_out_name(FilePath(self.out), self.output_format)
        if self.trace_file is not None:
            check_trace_name(FilePath(self.trace_file))
        spec = super().resolved()
        named = ("targets", "from_output", "out", "cache_dir", "trace_file")
        changes: dict[str, Any] = {name: _absolute(path) for name in named if (path := getattr(self, name))}
        # One way of naming a file, whichever folder the command is given in: these say what run it is.
        changes["eval_files"] = tuple(os.path.abspath(path) for path in self.eval_files)
        if self.regrade is not None and _is_path_of_run(self.regrade, spec.data_dir):
            changes["regrade"] = _absolute(self.regrade)
        if self.output is not None:
            changes["output"] = tuple(_absolute(path) for path in self.output)
        return spec.model_copy(update=changes)


def _is_path_of_run(named: str, data_dir: str) -> bool:
    """Whether a run is named by its folder's path, and not by its name in the data folder."""
    return is_made(FilePath(named).expanduser()) and not is_made(FilePath(data_dir) / named)


def _absolute(path: str) -> str:
    return str(FilePath(path).expanduser().absolute())


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
