"""What is done about workspaces when a session of a run ends, and what its results say of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from manyhands.core.outcomes import ItemState
from manyhands.engine.journal.reader import JournalReader
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.workloads.evals.batch.reports import TARGETS
from manyhands.workloads.evals.items import PASSED
from manyhands.workloads.evals.results.records import TestResult
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.workspaces.templates import TREE, Templates, template_states


async def finish_workspaces(run_folder: Path, templates: Templates, options: EvalSpec) -> None:
    """If no test is left: run what runs after all of them, and remove what nobody needs any more."""
    of_invocations = list((run_folder / TARGETS).glob(f"*/*/{TREE}"))
    made = any(not state.ended for _, state in template_states(run_folder))
    if not (made or of_invocations) or await asyncio.to_thread(_are_left, run_folder):
        return
    await templates.finish(keep=options.keep_workspaces)
    if options.keep_workspaces or not of_invocations:
        return
    if options.cleanup_workspaces or await asyncio.to_thread(_all_passed, run_folder):
        for folder in of_invocations:
            await asyncio.to_thread(remove_tree, folder)


def with_workspaces(
    results: Iterable[TestResult], run_folder: Path, datasets: Mapping[str, str]
) -> Iterator[TestResult]:
    """Results with the paths of workspaces that are kept, and what hooks printed that run once: in the first result of their eval file
    that has a workspace. ``datasets``: of each eval file's path, what results call it."""
    printed = _printed(run_folder, datasets)
    for result in results:
        if result.workspace_path is not None:
            path = (run_folder / result.workspace_path).absolute()
            kept = str(path) if path.is_dir() else None
            outputs = printed.pop(result.dataset, {})
            result = replace(
                result,
                workspace_path=kept,
                before_all_output=outputs.get("before_all_output"),
                after_all_output=outputs.get("after_all_output"),
            )
        yield result


def hook_problems(run_folder: Path) -> Iterator[str]:
    """What a person should know of hooks that ran after all tests."""
    for _, state in template_states(run_folder):
        if state.problem is not None:
            yield f"{state.eval_file}: {state.problem}"


def _printed(run_folder: Path, datasets: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Outputs of hooks that run once, by dataset. Those of several templates stand one below the other."""
    found: dict[str, dict[str, str]] = {}
    for _, state in template_states(run_folder):
        outputs = found.setdefault(datasets.get(state.eval_file, ""), {})
        for name in ("before_all_output", "after_all_output"):
            output = getattr(state, name)
            if output is not None:
                outputs[name] = "\n".join(filter(None, (outputs.get(name), output)))
    return found


def _are_left(run_folder: Path) -> bool:
    with closing(JournalReader(run_folder)) as reader:
        return any(not ItemState(state).final for state, _ in reader.counts())


def _all_passed(run_folder: Path) -> bool:
    with closing(JournalReader(run_folder)) as reader:
        return all((row.record or {}).get("status") == PASSED for row in reader.items() if not row.left_input)
