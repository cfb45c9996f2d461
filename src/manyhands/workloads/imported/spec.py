"""The settings of an import."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal

from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalList,
    OptionalPath,
    OptionalText,
    Text,
    number,
    optional_whole,
    setting,
    whole,
)
from manyhands.models.settings import ModelSettings
from manyhands.runs.options import (
    LIMITS,
    MODEL,
    OUTPUT,
    RESUME,
    SPEED,
    ResumeSettings,
    RunOptions,
    TerminalSettings,
    absolute,
    check_run_name,
)

INPUT = "Input"
GRADING = "Grading"


def _load_checks(path: str) -> dict[str, Any]:
    """The file of graders, as it is recorded. Raises UserError."""
    from manyhands.graders.conversations.grade_file import load_checks  # graders take long to import

    return load_checks(path)


def _run_name(value: Any) -> str | None:
    return None if value is None else check_run_name(value)


class ImportSpec(ModelSettings, RunOptions, TerminalSettings, ResumeSettings):
    """Everything that can be set for an import. The model is that of judges."""

    headings: ClassVar[tuple[str, ...]] = (INPUT, GRADING, MODEL, SPEED, LIMITS, RESUME, OUTPUT)
    contents: ClassVar = {"grade": ("grade_checks", _load_checks)}

    input_files: OptionalList = setting(
        ...,
        "Files or folders with conversations: .jsonl, .json, .parquet, dataset folders; for ATIF also job folders of Harbor.",
        group=INPUT,
        value="FILE",
        repeated=True,
    )
    from_: Text = setting(
        ..., "The format of the files; --from list names them all.", group=INPUT, value="FORMAT", identity=True
    )
    run_name: Annotated[str | None, Checked(_run_name)] = setting(
        None,
        "Name of the run and of its folder (default: that of the first file).",
        group=INPUT,
        value="NAME",
        recorded=False,
    )
    id_field: OptionalText = setting(
        None,
        "Field of a row that holds its id, by which runs are compared (default: id, key or trajectory_id, else the content).",
        group=INPUT,
        value="NAME",
        identity=True,
    )
    skip_bad_rows: Flag = setting(
        False, "Leave out rows that are no conversations, and name them, instead of refusing the files.", group=INPUT
    )
    grade: OptionalPath = setting(
        None,
        "YAML file with graders (a list, or assert with threshold, timeout, judge) that score each conversation.",
        group=GRADING,
        recorded=False,
        value="FILE",
    )
    executor: Literal["processes", "local", "ray"] = setting(
        "processes",
        "Where conversations are graded: processes (worker processes), local (this process), or ray (worker processes on the nodes of a "
        "Ray cluster).",
        group=SPEED,
    )
    num_workers: Annotated[int, whole(1, 10_000)] = setting(4, "Number of worker processes that grade.", group=SPEED)
    concurrency: Annotated[int, whole(1, 100_000)] = setting(
        8, "Maximum conversations graded at once per worker process.", group=SPEED
    )
    max_concurrency: Annotated[int | None, optional_whole(1, 100_000)] = setting(
        None, "Maximum conversations graded at once in all (default: num_workers × concurrency).", group=SPEED
    )
    item_timeout: Annotated[float, number(above=0)] = setting(
        3600.0, "Time limit for grading one conversation in seconds.", group=LIMITS
    )
    grade_checks: dict[str, Any] | None = setting(None, "What grade holds.", typed=False, identity=True)

    def resolved(self) -> ImportSpec:
        """Also with the absolute paths of the files."""
        return super().resolved().changed({"input_files": tuple(absolute(each) for each in self.input_files or ())})

    @property
    def paths_to_read(self) -> list[FilePath]:
        """The files and folders with conversations."""
        return [FilePath(each) for each in self.input_files or ()]
