"""Results judged afterwards, or by another judge, without the agent: a run of its own, in ``scores/JUDGE`` of the run of these results.

Each result is an item, and each question to the judge a step, so that what was paid is never paid again. The results themselves stay as
they are; the new scores are in ``scores.json``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from manyhands.agents.run_settings import check_prices, warn_of_budget
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, RunError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, PlannedItem, RunReader
from manyhands.io.files import written_aside
from manyhands.runs.folders import is_made
from manyhands.runs.making import Opened, keep_files, make_run, recorded_run
from manyhands.runs.options import resume_spec
from manyhands.runs.progress import Notice
from manyhands.workloads.memory.conversation.definitions import Ask
from manyhands.workloads.memory.datasets.base import Rules
from manyhands.workloads.memory.folders import writing
from manyhands.workloads.memory.judge import JudgeRun, judge_of
from manyhands.workloads.memory.published.rescoring import AgentResults, Rescored, agents_of, run_of
from manyhands.workloads.memory.results.files import SCORES_FILE, scores_folder
from manyhands.workloads.memory.results.records import dataset_scores
from manyhands.workloads.memory.settings import ScoresSpec, judge_keys, with_endpoints

NOT_YET = "not all of its tests have been judged yet"


class ScoresWorkload(JudgeRun):
    """Results judged by a model, one item each.

    ``spec``: ``{"options": …, "results": the folder that is scored, relative to the run folder, "scoring": …}``.
    """

    name = "memory_scores"
    plans_in_parts = True
    """One agent of a run may be judged now, and the others later."""

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self._folder = run_folder
        self._options: ScoresSpec = ScoresSpec.from_record(spec["options"])

    @property
    def options(self) -> ScoresSpec:
        return self._options

    @cached_property
    def agents(self) -> Mapping[str, AgentResults]:
        """By name. Raises UserError for a folder that can't be scored."""
        results = Path(os.path.normpath(self._folder.absolute() / self.spec["results"]))
        scoring: Rules = self.spec["scoring"]
        return {each.folder.name: each for each in agents_of(results, scoring, judged=True)}

    @cached_property
    def _results(self) -> list[tuple[str, str, Path, str]]:
        """Agent, dataset, file and a digest of its content."""
        return [
            (name, dataset, path, sha256(path.read_bytes()).hexdigest()[:16])
            for name, agent in self.agents.items()
            for dataset, path in agent.results()
        ]

    def input_identity(self) -> str | None:
        return digest(
            "results", [[name, dataset, path.name, mark] for name, dataset, path, mark in self._results]
        ).hex()

    def plan(self) -> Iterable[PlannedItem]:
        if not self._results:
            raise UserError(f"{self.spec['results']}: there are no results to score")
        for name, dataset, path, mark in self._results:
            payload = {"agent": name, "dataset": dataset, "file": path.name}
            yield PlannedItem(f"{name}/{dataset}/{path.stem} {mark}", payload)

    async def run(self, context: Context) -> Outcome:
        payload: Mapping[str, Any] = context.item.payload
        agent = self.agents.get(payload["agent"])
        if agent is None:
            raise ItemError(Cause.INVALID_INPUT, f"the results of {payload['agent']} are not there any more")
        judge = judge_of(self._options, self._secrets, self._folder)
        if judge is None:
            raise ItemError(Cause.INVALID_INPUT, "no judge is configured; give --judge_model")
        calls = 0
        cost = 0.0
        scoring: Generator[Ask, str, Rescored] = agent.scored(
            payload["dataset"], agent.folder / payload["dataset"] / payload["file"]
        )
        try:
            ask = next(scoring)
            while True:
                text, usage = await judge.ask(context, ask)
                calls, cost = calls + 1, cost + usage.cost
                ask = scoring.send(text)
        except StopIteration as end:
            found: Rescored = end.value
        except UserError as error:
            raise ItemError(Cause.INVALID_INPUT, str(error)) from error
        finally:
            await judge.close()
        judged = {"judge": judge.name, "asked": calls, "cost": cost}
        return Outcome(ItemState.COMPLETED, {**asdict(found), "reasons": list(found.reasons), **judged})

    def export(self, reader: RunReader) -> None:
        """All scores that there are, and what they come to."""
        found = records_of(reader)
        every = [*found, *self.left(found)]
        content = {
            "judge": next((each["judge"] for each in found), None),
            "scoring": self.spec["scoring"],
            "cost": sum(each["cost"] for each in found),
            "agents": totals(every),
            "results": found,
        }
        with written_aside(self._folder / SCORES_FILE) as handle:
            json.dump(content, handle, indent=2)

    def left(self, found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The results that have no record yet, as far as ``totals`` needs them: a dataset is scored when all of its tests are."""
        there = {(each["agent"], each["dataset"], each["example"]) for each in found}
        return [
            {"agent": name, "dataset": dataset, "score": None, "why": NOT_YET, "verdict": "", "asked": 0, "cost": 0.0}
            for name, dataset, path, _ in self._results
            if (name, dataset, path.stem.rpartition("_")[0]) not in there
        ]


def records_of(reader: RunReader) -> list[dict[str, Any]]:
    """The scores of a run of scores, in order, each result once: of one that was replaced, the new one's."""
    rows = sorted(reader.items(), key=lambda row: row.left_input, reverse=True)
    kept = {
        (row.record["agent"], row.record["dataset"], row.record["example"]): row.record
        for row in rows
        if row.state is ItemState.COMPLETED and row.record
    }
    return [kept[name] for name in sorted(kept)]


def totals(results: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the scores of each agent come to, by its name: see ``results.records.dataset_scores``."""
    by_agent: dict[str, list[Mapping[str, Any]]] = {}
    for each in results:
        by_agent.setdefault(str(each["agent"]), []).append(each)
    return {name: _total(found) for name, found in by_agent.items()}


def _total(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    datasets: dict[str, list[float | None]] = {}
    reasons: dict[str, str] = {}
    for each in results:
        datasets.setdefault(each["dataset"], []).append(each["score"])
        if each["score"] is None:
            reasons.setdefault(each["dataset"], each["why"] or each["verdict"])
    scores = dataset_scores(datasets, reasons)
    return {
        "unscored_datasets": {},
        **scores,
        "tests": len(results),
        "scored": len(results) - scores["unscored"],
        "asked": sum(each["asked"] for each in results),
        "cost": sum(each["cost"] for each in results),
    }


def open_scores(
    results: Path,
    options: ScoresSpec,
    scoring: Rules,
    *,
    folder: Path | None = None,
    is_own_scoring: bool = True,
    environ: Mapping[str, str],
    notice: Notice,
) -> Opened[ScoresWorkload]:
    """Create or continue the judging of a run, or of an agent of it. ``folder``: for the scores, None for the run's own;
    ``is_own_scoring``: whether these are the rules by which the results were scored. Raises UserError, RunError, StorageError."""
    options = options.resolved()
    check_prices(options)
    run = run_of(results)
    folder = folder or scores_folder(run, str(options.judge_model), None if is_own_scoring else scoring)
    spec: dict[str, Any] = {"results": os.path.relpath(results.absolute(), folder.absolute()), "scoring": scoring}
    recorded = None
    if is_made(folder):
        recorded = recorded_run(folder, ScoresWorkload.name).spec
        if recorded["scoring"] != scoring:
            raise RunError(
                f"{folder}: these scores are by the {recorded['scoring']} rules; give --scores another folder"
            )
        options = resume_spec(ScoresSpec.from_record(recorded["options"], data_dir=options.data_dir), options)
    options = with_endpoints(options, (), environ, notice)
    keys = judge_keys(options, environ)
    spec = {"options": options.recorded(), **spec}
    workload = ScoresWorkload(spec, folder)
    workload.set_secrets(keys)
    _ = workload.agents
    opened = Opened(folder, workload, spec_changed=recorded is not None and recorded != spec)
    if recorded is None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        make_run(opened, options, notice)
    else:
        keep_files(options, folder)
    warn_of_budget(options, [options.judge] if options.judge else [], notice)
    return opened


def reopen_scores(folder: Path, *, environ: Mapping[str, str]) -> Opened[ScoresWorkload]:
    """Continue a run of scores as it was. Raises UserError, RunError, StorageError."""
    workload = ScoresWorkload(recorded_run(folder, ScoresWorkload.name).spec, folder)
    workload.set_secrets(judge_keys(workload.options, environ))
    return Opened(folder, workload)
