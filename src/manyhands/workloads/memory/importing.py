"""Making a run that can be continued of a folder that the original has left.

Its log and counters become the session's past, from which the session goes on as the original would; whatever was said is told to the
agent again, and nothing of it is asked or paid again.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from manyhands.agents.run_settings import Notice
from manyhands.core.errors import UserError
from manyhands.core.version import VERSION
from manyhands.io.yaml_files import read_yaml
from manyhands.runs.execution import create_run
from manyhands.runs.folders import is_made
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.agents.factory import session_name
from manyhands.workloads.memory.conversation.events import MESSAGES, ended_tests
from manyhands.workloads.memory.datasets.benchmark import load_benchmark
from manyhands.workloads.memory.datasets.configuration import read_configuration
from manyhands.workloads.memory.datasets.definition_files import write_definitions
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS, ISOLATED, RUNSTATS, ResultPlaces, run_folder
from manyhands.workloads.memory.opening import keep_configuration, put_aside
from manyhands.workloads.memory.past import Past, PastScore
from manyhands.workloads.memory.replaying import PublishedSession, read_session
from manyhands.workloads.memory.results.figures import figures_of
from manyhands.workloads.memory.resuming import resume
from manyhands.workloads.memory.settings import MemorySpec
from manyhands.workloads.memory.workload import MemoryWorkload

_CHAT = re.compile(r"LLMChatSession - (.+) - (\d+)")


@dataclass(frozen=True, slots=True)
class Imported:
    """``messages``: how many were taken over; ``ended``: tests that had ended, of ``tests``."""

    folder: Path
    agent: str
    messages: int
    ended: int
    tests: int


def import_run(
    results: Path, options: Mapping[str, Any], *, lengths: Mapping[int, int] | None, notice: Notice
) -> Imported:
    """Make a run of a folder ``results/AGENT``. ``options``: of ``MemorySpec``, without the configuration; ``agent_name`` may be left out
    for agents that are plain models; ``lengths``: tokens of the log's messages, by the index of their event.

    Raises UserError for a log that can't be followed, RunError, StorageError.
    """
    session = read_session(results)
    if session.is_older:
        raise UserError(f"{results}: a log of the format's second version can be replayed, but not continued")
    given = _with_agent(options, session.agent)
    data_dir = Path(given.get("data_dir", "data"))
    folder = run_folder(data_dir, session.run.removesuffix(ISOLATED), isolated=session.is_isolated)
    if is_made(folder):
        raise UserError(f"{folder}: there is a run here already")
    source = results.absolute().parent.parent
    spec = MemorySpec.make(
        {**given, "configuration": str(source / DEFINITIONS / CONFIGURATION), "isolated": session.is_isolated}
    ).resolved()
    past = _past_of(session, results, lengths)
    text = _published(source / DEFINITIONS / CONFIGURATION)
    definitions = folder / DEFINITIONS
    if definitions.resolve() != (source / DEFINITIONS).resolve():
        definitions.mkdir(parents=True, exist_ok=True)
        write_definitions(definitions, list(session.definitions))
    keep_configuration(definitions, text)
    _check(past, spec, definitions)
    choice = choose_agent(spec.agent_name[0])
    name = session_name(choice, spec.max_prompt_size, folder.name, spec.message_timeout)
    _take_results(results, ResultPlaces.of(folder, name).folder, notice)
    start = datetime.fromtimestamp(session.log[0].timestamp, UTC).isoformat()
    held = {"agent": choice.id, "name": name, "limit": spec.max_prompt_size, "round": 0, "start_time": start}
    held |= {"asks_class": True} if choice.kind == "python" else {}
    held |= {"local": True} if spec.local else {}
    recorded = {"options": spec.recorded(), "sessions": [{**held, "past": past.to_json()}]}
    workload = MemoryWorkload(recorded, folder)
    create_run(folder, workload.name, workload, version=VERSION, notice=notice)
    ended = ended_tests(session.log)
    return Imported(folder, name, len(past.messages()), len(ended), len(session.definitions))


def _with_agent(options: Mapping[str, Any], folder_name: str) -> dict[str, Any]:
    """The options with the agent that the folder's name tells, if none was given."""
    if options.get("agent_name"):
        return dict(options)
    found = _CHAT.fullmatch(folder_name)
    if found is None:
        raise UserError(f"{folder_name}: say with --agent_name which agent goes on")
    return {**options, "agent_name": [found[1]], "max_prompt_size": options.get("max_prompt_size") or int(found[2])}


def _past_of(session: PublishedSession, results: Path, lengths: Mapping[int, int] | None) -> Past:
    ended = ended_tests(session.log)
    found = {f"{test.dataset} - {test.example}": test for test in figures_of(results).tests}
    missing = sorted(ended - set(found))
    if missing:
        raise UserError(f"{results}: the log says that {missing[0]} ended, but there is no result of it")
    scores = {
        name: PastScore(test.dataset, test.score, test.tokens)
        for name, test in found.items()
        if name in ended and test.score is not None
    }
    known = {
        event.message: (lengths or {})[at]
        for at, event in enumerate(session.log)
        if event.type in MESSAGES and at in (lengths or {})
    }
    stats = session.runstats
    if stats is None:
        raise UserError(f"{results / RUNSTATS}: is missing, so that nobody knows what was spent")
    return Past(tuple(session.log), stats.counters, scores, known, stats.agent_costs_usd, stats.managing_costs_usd)


def _check(past: Past, spec: MemorySpec, definitions: Path) -> None:
    """Raises UserError if the tests don't give the log."""
    configuration = read_configuration(definitions / CONFIGURATION)
    benchmark = load_benchmark(
        configuration, definitions, wording=spec.wording, filler=spec.filler, tokenizer=spec.tokenizer
    )
    scheduler = benchmark.scheduler(isolated=spec.isolated, max_message_size=spec.max_message_size, past=past)
    resume(scheduler, past.events, past.counters, past.now)


def _take_results(results: Path, target: Path, notice: Notice) -> None:
    """Copy the results of tests that had ended; the original's stay where they are, or are put aside if they are in the way."""
    if target.resolve() == results.resolve():
        results = put_aside(results, notice)
    elif target.is_dir():
        put_aside(target, notice)
    for dataset in (each for each in results.iterdir() if each.is_dir()):
        shutil.copytree(dataset, target / dataset.name)


def _published(path: Path) -> str:
    """The configuration, with the rules by which its tests were scored so far."""
    content, _ = read_yaml(path)
    content = {**content, "config": {**content["config"], "scoring": "published"}}
    text = io.StringIO()
    YAML(typ="safe").dump(content, text)
    return text.getvalue()
