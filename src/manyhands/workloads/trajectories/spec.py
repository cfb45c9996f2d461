"""The settings of a trajectory batch.

Names and defaults of those that the original batch runner has are its own.
"""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from manyhands.agents.options import AgentOptions, AgentTerminalSettings
from manyhands.agents.worlds.row_fields import RowFields, fields_named
from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalPath,
    OptionalText,
    Path,
    Text,
    number,
    optional_number,
    optional_whole,
    setting,
    whole,
)
from manyhands.io.tables.settings import TABLE, ReadingSettings
from manyhands.runs.options import (
    CONVERSATION,
    LIMITS,
    MODEL,
    OUTPUT,
    RESUME,
    SANDBOX,
    SERVICES,
    SPEED,
    TOOLS,
    WORLD,
    ResumeSettings,
    ViewSettings,
    check_run_name,
)
from manyhands.sandboxes.images.templates import RowImages
from manyhands.task_folders.settings import ORACLE, TASKS, TaskSettings

if TYPE_CHECKING:
    from manyhands.workloads.trajectories.dataset.rows import HowRead

REQUIRED = "Required"
SAMPLES = "Samples"
GRADING = "Grading"


def _load_checks(path: str) -> dict[str, Any]:
    """The file of graders, as it is recorded. Raises UserError."""
    from manyhands.graders.conversations.grade_file import load_checks  # graders take long to import

    return load_checks(path)


def _load_template(name: str) -> str:
    """A wording of the saved system turn: of a file, or one that is built in. Raises UserError."""
    from manyhands.export.sharegpt import load_template  # it knows of tools

    return load_template(name)


class BatchSpec(AgentOptions, AgentTerminalSettings, ViewSettings, ResumeSettings, ReadingSettings, TaskSettings):
    """Everything that can be set for a trajectory batch. ``BatchSpec.make`` gives clear messages, ``resolved`` reads the
    files that are named."""

    headings = (
        REQUIRED,
        TABLE,
        TOOLS,
        SERVICES,
        SANDBOX,
        WORLD,
        MODEL,
        CONVERSATION,
        TASKS,
        SPEED,
        SAMPLES,
        GRADING,
        RESUME,
        OUTPUT,
        LIMITS,
    )
    contents: ClassVar = {
        "system_template": ("system_template_text", _load_template),
        "grade": ("grade_checks", _load_checks),
    }
    files = ("distributions_file",)
    paths = ("dataset_file",)

    dataset_file: Path = setting(
        ...,
        "Dataset of prompts: .jsonl, .json, .csv, .tsv (also .gz), .parquet, .xlsx, a Hugging Face dataset folder, or - (standard input); "
        'each row needs a "prompt". Or a task folder, or a folder of such.',
        group=REQUIRED,
        value="FILE",
    )
    batch_size: Annotated[int, whole(1)] = setting(
        ...,
        "Prompts per output file (batch_0.jsonl, batch_1.jsonl, …); does not affect scheduling.",
        group=REQUIRED,
        identity=True,
    )
    run_name: Annotated[str, Checked(check_run_name)] = setting(
        ..., "Name of the run and of its folder.", group=REQUIRED, value="NAME"
    )
    distribution: Text = setting(
        "default",
        "Toolset distribution from which the toolsets of each prompt are sampled.",
        group=TOOLS,
        identity=True,
        value="NAME",
    )
    num_workers: Annotated[int, whole(1, 10_000)] = setting(4, "Number of worker processes.", group=SPEED)
    prompt_column: OptionalText = setting(
        None,
        'Column (field) of the dataset that holds the prompts (default: "prompt").',
        group=SAMPLES,
        identity=True,
        value="NAME",
    )
    id_field: OptionalText = setting(
        None,
        'Field (column) of the dataset that holds the rows\' ids (default: "id").',
        group=SAMPLES,
        identity=True,
        value="NAME",
    )
    system_column: OptionalText = setting(
        None,
        'Column (field) of the dataset that holds the system prompts of rows (default: "system").',
        group=SAMPLES,
        identity=True,
        value="NAME",
    )
    split: OptionalText = setting(
        None,
        'Split of a Hugging Face dataset folder, as NAME or CONFIGURATION/NAME (default: its only one, or "train").',
        group=SAMPLES,
        identity=True,
        value="NAME",
    )
    resume: Flag = setting(False, "Continue the run with this name.", group=RESUME, recorded=False)
    list_distributions: Flag = setting(False, "List toolset distributions and exit.", group=TOOLS, recorded=False)
    dry_run: Flag = setting(
        False,
        "Only estimate tokens, dollars and time; nothing is created, and no model is called.",
        group=SAMPLES,
        recorded=False,
    )
    max_samples: Annotated[int | None, optional_whole(1)] = setting(
        None, "Use only the first N usable rows of the dataset.", group=SAMPLES
    )
    concurrency: Annotated[int, whole(1, 100_000)] = setting(
        1, "Maximum concurrent prompts per worker process.", group=SPEED
    )
    max_concurrency: Annotated[int | None, optional_whole(1, 100_000)] = setting(
        None, "Maximum concurrent prompts in all (default: num_workers × concurrency).", group=SPEED
    )
    samples: Annotated[int, whole(1)] = setting(1, "Trajectories per dataset row.", group=SAMPLES, identity=True)
    distributions_file: OptionalPath = setting(
        None, "YAML file with additional toolset distributions.", group=TOOLS, identity=True, value="FILE"
    )
    grade: OptionalPath = setting(
        None,
        "YAML file with graders (a list, or assert with threshold, timeout, judge) that score each trajectory.",
        group=GRADING,
        recorded=False,
        value="FILE",
    )
    min_score: Annotated[float | None, optional_number(0, 1)] = setting(
        None, "Discard trajectories with a lower score.", group=GRADING, identity=True
    )
    best_of: Flag = setting(
        False, "Write only the best-scoring sample of each row to trajectories.jsonl.", group=GRADING
    )
    item_timeout: Annotated[float, number(above=0)] = setting(3600.0, "Time limit per prompt in seconds.", group=LIMITS)
    time_limit: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        "Time limit of a conversation in seconds: it ends then, whatever is in flight, and is kept and graded as it is.",
        group=CONVERSATION,
        identity=True,
    )
    keep_unreasoned: Flag = setting(
        False,
        "Keep trajectories without any reasoning; they are discarded otherwise.",
        group=OUTPUT,
        identity=True,
    )
    keep_unknown_tools: Flag = setting(
        False,
        "Keep trajectories that call tools which do not exist; they are discarded otherwise.",
        group=OUTPUT,
        identity=True,
    )
    keep_synthetic: Flag = setting(
        False,
        "Keep turns written by this program (requests to continue or summarize).",
        group=OUTPUT,
        identity=True,
    )
    batch_files: Flag = setting(
        True,
        "Also write each line to batch_N.jsonl as soon as its prompt ends. Without, trajectories.jsonl is written from the journal at the "
        "end of each session, and a line is on disk once.",
        group=OUTPUT,
        identity=True,
    )
    tags_in_values: Literal["escape", "discard", "keep"] = setting(
        "escape",
        "Tags of ShareGPT and of chat templates inside a conversation's texts: escape them, discard the trajectory, or keep them.",
        group=OUTPUT,
        identity=True,
    )
    system_template: OptionalPath = setting(
        None,
        "Wording of the saved system turn: hermes (the original's), or a text file with {tools} in it (default: our own).",
        group=OUTPUT,
        recorded=False,
        value="hermes|FILE",
    )
    system_template_text: str | None = setting(None, "What system_template holds.", typed=False, identity=True)
    skip_invalid: Flag = setting(
        False,
        "Skip task folders that can't be taken, or whose Dockerfile does not build; otherwise they refuse the run.",
        group=TASKS,
        identity=True,
    )
    grade_checks: dict[str, Any] | None = setting(None, "What grade holds.", typed=False, identity=True)

    def how_read(self, *, with_chat: bool = True, with_pictures: bool = True) -> HowRead:
        """How the dataset is read."""
        return {
            "max_samples": self.max_samples,
            "with_chat": with_chat,
            "with_pictures": with_pictures,
            "prompt_column": self.prompt_column,
            "system_column": self.system_column,
            "id_field": self.id_field,
            "split": self.split,
            "reading": self.reading,
            "skip_invalid": self.skip_invalid,
            "task_env": self.task_env,
            "solutions": self.agent == ORACLE,
            "row_images": RowImages.of(self.image_field, self.image_template),
            "world": RowFields.of(self),
            "command_fields": tuple(fields_named(self.setup, self.collect)),
        }

    @property
    def is_graded(self) -> bool:
        """Whether trajectories get scores: of graders, or of their tasks' verifiers."""
        return self.grade_checks is not None or self.task_rules is not None

    @property
    def run_folder(self) -> FilePath:
        """Where the run is kept."""
        return FilePath(self.data_dir) / self.run_name
