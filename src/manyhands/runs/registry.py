"""The workloads that there are: those of this package in a table, those of others by entry points.

Everything stands here as ``module:attribute`` and is imported when it is needed: to list runs must not load what executes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.core.errors import RunError
from manyhands.engine.contract import WorkloadFactory, import_attribute

WORKLOADS_GROUP = "manyhands.workloads"
"""The entry point group of workloads: the name recorded with their runs, and the class."""
RESUMING_GROUP = "manyhands.resuming"
"""The entry point group of what continues a run of a workload with options, see ``WorkloadEntry.resume``."""
SUMMARIES_GROUP = "manyhands.summaries"
"""The entry point group of what fills in the summaries of a workload's runs, see ``WorkloadEntry.summarizer``."""
CONVERSATIONS_GROUP = "manyhands.conversations"
"""The entry point group of what gives the conversations of a workload's runs, see ``WorkloadEntry.conversations``."""
VIEWS_GROUP = "manyhands.views"
"""The entry point group of what a workload shows of its runs, see ``WorkloadEntry.view``."""


@dataclass(frozen=True, slots=True)
class WorkloadEntry:
    """A workload of this package."""

    factory: str
    """The class."""
    resume: str | None = None
    """What continues a run in the foreground, given its folder and the words of the command line; the exit code. None: there are no
    options to continue it with."""
    summarizer: str | None = None
    """The subclass of ``runs.summaries.Summarizer`` that fills in the summaries of its runs. None: they have what all runs have."""
    conversations: str | None = None
    """The subclass of ``export.conversations.ConversationSource`` that gives the conversations of its runs. None: there are none."""
    view: str | None = None
    """The subclass of ``runs.shown.run_view.RunView`` that gives the pages about its runs. None: they show what all runs have."""
    subfolder: str | None = None
    """The folder in the data folder where its runs are; None: in the data folder itself, or as ``sub_runs`` says."""
    sub_runs: str | None = None
    """Where its runs are in the folder of the run that they belong to, as a pattern of paths; None: they belong to none."""
    toolsets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Toolsets that it brings for agents who ask for them by name: the description, and the function that gives the tools."""


WORKLOADS: Mapping[str, WorkloadEntry] = {
    "trajectories": WorkloadEntry(
        "manyhands.workloads.trajectories.workload:TrajectoryWorkload",
        "manyhands.cli.batch.executing:resume",
        "manyhands.workloads.trajectories.results.exports:TrajectorySummarizer",
        "manyhands.workloads.trajectories.results.conversations:TrajectoryConversations",
        "manyhands.workloads.trajectories.results.view:TrajectoryView",
    ),
    "csv_jobs": WorkloadEntry(
        "manyhands.workloads.csv_jobs.workload:CsvJobsWorkload",
        "manyhands.cli.jobs.starting:resume",
        "manyhands.workloads.csv_jobs.rows.planning:JobSummarizer",
        "manyhands.workloads.csv_jobs.conversations:JobConversations",
        "manyhands.workloads.csv_jobs.view:JobView",
        toolsets={
            "collab": (
                "Starting agents on the rows of a table.",
                "manyhands.workloads.csv_jobs.mcp.collab:collab_tools",
            )
        },
    ),
    "evals": WorkloadEntry(
        "manyhands.workloads.evals.workload:EvalsWorkload",
        "manyhands.cli.evals.executing:resume",
        "manyhands.workloads.evals.results.summary:EvalSummarizer",
        "manyhands.workloads.evals.results.conversations:EvalConversations",
        "manyhands.workloads.evals.results.view:EvalView",
    ),
    "memory": WorkloadEntry(
        "manyhands.workloads.memory.workload:MemoryWorkload",
        "manyhands.cli.memory.benchmark:resume",
        "manyhands.workloads.memory.results.summaries:MemorySummarizer",
        "manyhands.workloads.memory.results.conversations:MemoryConversations",
        "manyhands.workloads.memory.report.view:MemoryView",
        subfolder="tests",
    ),
    "memory_definitions": WorkloadEntry(
        "manyhands.workloads.memory.generation:GenerationWorkload",
        "manyhands.cli.memory.configuration:resume",
        summarizer="manyhands.workloads.memory.results.summaries:DefinitionsSummarizer",
        sub_runs="definitions",
    ),
    "memory_scores": WorkloadEntry(
        "manyhands.workloads.memory.published.rejudging:ScoresWorkload",
        "manyhands.cli.memory.rescore:resume",
        "manyhands.workloads.memory.results.summaries:ScoresSummarizer",
        sub_runs="scores/*",
    ),
    "imported": WorkloadEntry(
        "manyhands.workloads.imported.workload:ImportedWorkload",
        "manyhands.cli.exports.importing:resume",
        "manyhands.workloads.imported.describing:ImportedSummarizer",
        "manyhands.workloads.imported.describing:ImportedConversations",
        "manyhands.workloads.imported.view:ImportedView",
    ),
    "steps": WorkloadEntry("manyhands.testing.steps_workload:StepsWorkload"),
}
"""The workloads of this package, by the names that are recorded with their runs."""

TOOLSETS: Mapping[str, tuple[str, str]] = {
    name: about for entry in WORKLOADS.values() for name, about in entry.toolsets.items()
}
"""The toolsets that workloads bring, by name."""

SUBFOLDERS: tuple[str, ...] = tuple(entry.subfolder for entry in WORKLOADS.values() if entry.subfolder is not None)
"""The folders in the data folder that hold run folders besides itself."""

SUB_RUNS: tuple[str, ...] = tuple(entry.sub_runs for entry in WORKLOADS.values() if entry.sub_runs is not None)
"""Where run folders are in the folders of other runs, as patterns of paths."""


def workload_target(name: str) -> str:
    """Where the class of a workload is, as ``module:attribute``. Raises RunError if there is none of that name."""
    entry = WORKLOADS.get(name)
    target = _plugged(WORKLOADS_GROUP, name) if entry is None else entry.factory
    if target is None:
        raise RunError(f"no workload is called {name!r}; known: {', '.join(sorted(WORKLOADS))}")
    return target


def load_workload(name: str) -> WorkloadFactory:
    """The class of a workload by name. Raises RunError if there is none of that name."""
    factory: WorkloadFactory = import_attribute(workload_target(name))
    return factory


def resume_command(name: str) -> Callable[[Path, list[str]], int] | None:
    """What continues a run of that workload in the foreground, if it has options to do so."""
    entry = WORKLOADS.get(name)
    target = _plugged(RESUMING_GROUP, name) if entry is None else entry.resume
    if target is None:
        return None
    command: Callable[[Path, list[str]], int] = import_attribute(target)
    return command


def summarizer_target(name: str) -> str | None:
    """Where what fills in the summaries of that workload's runs is, as ``module:attribute``; None if it has none of its own."""
    entry = WORKLOADS.get(name)
    return _plugged(SUMMARIES_GROUP, name) if entry is None else entry.summarizer


def conversations_target(name: str) -> str | None:
    """Where what gives the conversations of that workload's runs is, as ``module:attribute``; None if it has none."""
    entry = WORKLOADS.get(name)
    return _plugged(CONVERSATIONS_GROUP, name) if entry is None else entry.conversations


def view_target(name: str) -> str | None:
    """Where what that workload shows of its runs is, as ``module:attribute``; None if it has nothing of its own."""
    entry = WORKLOADS.get(name)
    return _plugged(VIEWS_GROUP, name) if entry is None else entry.view


def _plugged(group: str, name: str) -> str | None:
    from importlib.metadata import entry_points  # here, because it takes long and is needed so rarely

    return next((entry.value for entry in entry_points(group=group, name=name)), None)
