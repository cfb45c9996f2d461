"""From settings to a run of the memory benchmark that can be executed: made anew, or continued.

Nothing is deleted: test definitions and results that new ones replace are kept beside them, under another name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from manyhands.agents.run_settings import check_prices, warn_of_budget
from manyhands.core.errors import RunError, UserError
from manyhands.engine.journal.lock import LOCK, RunLock
from manyhands.io.files import written_aside
from manyhands.runs.folders import is_made
from manyhands.runs.making import Opened, keep_files, make_run, recorded_run
from manyhands.runs.options import check_cluster, resume_spec
from manyhands.runs.progress import Notice
from manyhands.workloads.memory.agents.choice import WITH_MODELS, AgentChoice, choose_agent
from manyhands.workloads.memory.agents.factory import agent_name, check_agent
from manyhands.workloads.memory.conversation.definitions import Definition
from manyhands.workloads.memory.conversation.tokens import counter_named
from manyhands.workloads.memory.datasets.base import DEFINITIONS_FOLDER, BaseDataset
from manyhands.workloads.memory.datasets.benchmark import (
    datasets_of,
    generated_alone,
    read_definitions,
    write_definitions,
)
from manyhands.workloads.memory.datasets.configuration import Configuration, read_configuration
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS, ResultPaths, move_aside, run_folder
from manyhands.workloads.memory.settings import MemorySpec, keys_of, with_endpoints, with_recorded_endpoints
from manyhands.workloads.memory.workload import ConversationEntry, MemoryWorkload, clock_of_process, facts_of_owner

Ask = Callable[[str, bool], bool]
"""Asks the person a yes-or-no question; the default is what is assumed where nobody can answer."""


def open_memory(options: MemorySpec, *, environ: Mapping[str, str], notice: Notice, ask: Ask) -> Opened[MemoryWorkload]:
    """Make or continue the run of a configuration, with a conversation for each agent.

    Everything that can be wrong is found before anything is made. Raises UserError, RunError, StorageError.
    """
    options = options.resolved()
    _check_contradictions(options)
    check_prices(options)
    choices = [choose_agent(text) for text in options.agent_name]
    for choice in choices:
        check_agent(choice, isolated=options.isolated)
    names = _names(options, choices, Path(options.configuration).stem)
    if options.time_travel == "process":
        clock_of_process()
    configuration = read_configuration(Path(options.configuration))
    folder = _folder(options, configuration)
    if is_made(folder):
        options = with_recorded_endpoints(options, recorded_run(folder, MemoryWorkload.name).spec["options"])
    options = with_endpoints(options, choices, environ, notice)
    keys = keys_of(options, choices, environ)
    opening = _Opening(options, folder, notice, ask)
    refuse_if_open(opening.folder)
    opening.make_definitions(configuration)
    opened = opening.opened(choices, names)
    opened.workload.set_secrets(keys)
    return opened


def open_together(
    specs: Sequence[MemorySpec], *, environ: Mapping[str, str], notice: Notice, ask: Ask
) -> list[Opened[MemoryWorkload]]:
    """Make or continue the runs of several configurations, which share the concurrency. Raises as ``open_memory``, and UserError if two
    runs have the same name."""
    if len(specs) > 1:
        names = Counter(read_configuration(Path(spec.configuration)).run_name for spec in specs)
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            raise UserError(f"--configuration: two of them have the same run_name, {twice!r}")
        share = max(1, specs[0].concurrency // len(specs))
        specs = [spec.changed({"concurrency": share}) for spec in specs]
    return [open_memory(spec, environ=environ, notice=notice, ask=ask) for spec in specs]


def reopen_memory(folder: Path, *, environ: Mapping[str, str]) -> Opened[MemoryWorkload]:
    """Continue a run with all of its conversations, as it was. Raises UserError, RunError, StorageError."""
    spec = recorded_run(folder, MemoryWorkload.name).spec
    recorded: list[ConversationEntry] = spec["sessions"]
    _refuse_imported(folder, recorded)
    latest = {each["name"]: each["round"] for each in sorted(recorded, key=lambda each: each["round"])}
    entries = [{**each, "performed": each["round"] == latest[each["name"]]} for each in recorded]
    options = MemorySpec.from_record(spec["options"], data_dir=str(folder.absolute().parent.parent))
    workload = MemoryWorkload(_spec(options, spec["options"], entries), folder)
    choices = [choose_agent(each["agent"]) for each in workload.executed]
    for choice in choices:
        check_agent(choice)
    workload.set_secrets(keys_of(workload.options, choices, environ))
    return Opened(folder, workload, spec_changed=workload.spec != spec)


def _spec(options: MemorySpec, recorded: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"options": recorded, "sessions": [*entries], **facts_of_owner(options)}


@dataclass(frozen=True, slots=True)
class _Opening:
    """A run that is opened."""

    options: MemorySpec
    folder: Path
    notice: Notice
    ask: Ask

    def make_definitions(self, configuration: Configuration) -> None:
        """Make the tests, unless there are some that are to be used."""
        options, definitions = self.options, self.folder / DEFINITIONS
        tokens = counter_named(options.tokenizer)
        datasets = datasets_of(configuration, tokens)
        if options.tokenizer == "auto" and not tokens.exact:
            self.notice(f"tokens are counted by {tokens.name}: no tokenizer is on this machine")
        anew = self._are_tests_made_anew()
        if (definitions / CONFIGURATION).is_file() and not anew:
            check_same_tests(definitions, configuration, self.notice)
            return
        base = run_folder(Path(options.data_dir), configuration.run_name) / DEFINITIONS
        are_copied = options.isolated and (base / CONFIGURATION).is_file()
        tests = [] if are_copied else _generated(configuration, datasets, options)
        if anew:  # only now that nothing can be wrong with the new ones
            put_aside(self.folder, self.notice)
        if are_copied:  # so that both runs have the same
            write_definitions(definitions, read_definitions(base))
            keep_configuration(definitions, (base / CONFIGURATION).read_text(encoding="utf-8"))
            check_same_tests(definitions, configuration, self.notice)
        else:
            write_tests(definitions, configuration, tests)

    def opened(self, choices: Sequence[AgentChoice], names: Mapping[str, str]) -> Opened[MemoryWorkload]:
        """``names``: what results call the agents, by what was typed."""
        options, folder = self.options, self.folder
        spec: dict[str, Any] | None = None
        recorded: list[ConversationEntry] = []
        if is_made(folder):
            spec = recorded_run(folder, MemoryWorkload.name).spec
            recorded = spec["sessions"]
            _refuse_imported(folder, recorded)
            options = resume_spec(MemorySpec.from_record(spec["options"], data_dir=options.data_dir), options)
        entries = [self._entry(choice, names[choice.id], recorded) for choice in choices]
        known = [(each["name"], each["round"]) for each in entries]
        others = [{**each, "performed": False} for each in recorded if (each["name"], each["round"]) not in known]
        workload = MemoryWorkload(_spec(options, options.recorded(), [*entries, *others]), folder)
        opened = Opened(folder, workload, spec_changed=spec is not None and workload.spec != spec)
        if spec is None:
            check_cluster(options, options.given)
            make_run(opened, options, self.notice)
        else:
            keep_files(options, folder)
        _tell_of_budget(options, choices, self.notice)
        return opened

    def _entry(self, choice: AgentChoice, name: str, recorded: Sequence[ConversationEntry]) -> ConversationEntry:
        """What is recorded of a conversation: the one that is there, or another round for the same agent."""
        options, limit = self.options, self.options.max_prompt_size
        name = _kept_name(choice, limit, name, recorded)
        rounds = sorted((each for each in recorded if each["name"] == name), key=lambda each: each["round"])
        folder = ResultPaths.of(self.folder, name).folder
        last = rounds[-1] if rounds else None
        if last is not None and (options.restart or folder.is_dir()) and self._is_restarted(name):
            last = None
        if last is None and folder.is_dir():
            put_aside(folder, self.notice)  # no results of this conversation
        if last is not None:
            self._check_unchanged(last, choice)
            return cast(ConversationEntry, {key: value for key, value in last.items() if key != "performed"})
        number = rounds[-1]["round"] + 1 if rounds else 0
        made: ConversationEntry = {
            "agent": choice.id,
            "name": name,
            "limit": limit,
            "round": number,
            "start_time": options.start_time,
        }
        if choice.kind == "python":
            made["asks_class"] = True
        if options.local:
            made["local"] = True
        return made

    def _check_unchanged(self, entry: ConversationEntry, choice: AgentChoice) -> None:
        """Raises RunError if a conversation was begun in another way."""
        name = entry["name"]
        if (entry["agent"], entry["limit"]) != (choice.id, self.options.max_prompt_size):
            raise RunError(
                f"{self.folder}: the conversation of {name} was begun with --agent_name={entry['agent']} "
                f"--max_prompt_size={entry['limit']}; give these, or --restart to begin it anew"
            )
        if self.options.local and not entry.get("local"):
            raise RunError(
                f"{self.folder}: the conversation of {name} was begun without --local; give --restart to begin it anew"
            )

    def _are_tests_made_anew(self) -> bool:
        """Whether test definitions that are there are to be replaced. Raises UserError if the person breaks off."""
        options, definitions = self.options, self.folder / DEFINITIONS
        if options.regenerate:
            return definitions.is_dir()
        if options.reuse or options.yes or not (definitions / CONFIGURATION).is_file():
            return False
        if self.ask(f"Tests for {self.folder.name!r} exist. Use them?", True):
            return False
        self._confirm("Then all results for them are put aside, those of all agents. Continue?")
        return True

    def _is_restarted(self, name: str) -> bool:
        """Whether an agent's conversation that is there is to begin anew. Raises UserError if the person breaks off."""
        options = self.options
        if options.restart:
            return True
        if options.resume or options.yes or self.ask(f"{name} has results for these tests. Continue them?", True):
            return False
        self._confirm("Then its results are put aside. Continue?")
        return True

    def _confirm(self, question: str) -> None:
        if not self.ask(question, False):
            raise UserError("nothing was changed")


def _folder(options: MemorySpec, configuration: Configuration) -> Path:
    return run_folder(Path(options.data_dir), configuration.run_name, isolated=options.isolated)


def _refuse_imported(folder: Path, recorded: Iterable[ConversationEntry]) -> None:
    """Raises RunError for a run that an earlier version made of a conversation of the GoodAI LTM Benchmark that had not ended."""
    if any("past" in each for each in recorded):
        raise RunError(
            f"{folder}: begins with a conversation that an earlier version imported from the GoodAI LTM Benchmark, which this version "
            "can't continue; its results can be shown, reported and scored again"
        )


def _kept_name(choice: AgentChoice, limit: int | None, name: str, recorded: Iterable[ConversationEntry]) -> str:
    """The name of an agent's conversation, which stays as it was if there is one: earlier versions called classes otherwise."""
    kept = (each["name"] for each in recorded if (each["agent"], each["limit"]) == (choice.id, limit))
    return next(kept, name)


def _tell_of_budget(options: MemorySpec, choices: Sequence[AgentChoice], notice: Notice) -> None:
    """What of the budget can't be kept, or changes how models are called."""
    models = [options.for_model(choice.model) for choice in choices if choice.kind in WITH_MODELS]
    if options.judge is not None:
        models.append(options.judge)
    if any(choice.kind == "embeddings" for choice in choices):
        models.append(options.embedding.changed({"max_tokens": 1}))  # it answers with no tokens
    outside = any(choice.kind in ("command", "http", "python") for choice in choices)
    programs = "what agents outside cost is known only afterwards, so that one message may pass --max_cost"
    warn_of_budget(options, models, notice, programs=programs if outside else None)


def _check_contradictions(options: MemorySpec) -> None:
    for one, other in (("reuse", "regenerate"), ("resume", "restart")):
        if getattr(options, one) and getattr(options, other):
            raise UserError(f"give --{one} or --{other}, not both")


def _names(options: MemorySpec, choices: Sequence[AgentChoice], run_name: str) -> dict[str, str]:
    """What results call the agents, by what was typed. Raises UserError."""
    names = {
        choice.id: agent_name(choice, options.max_prompt_size, run_name, options.message_timeout) for choice in choices
    }
    listed = list(names.values())
    twice = next((name for name in listed if listed.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"--agent_name: two agents would have the same folder of results, {twice!r}")
    return names


def refuse_if_open(folder: Path) -> None:
    """Raises RunError if another process executes the run, whose folders must stay where they are."""
    if (folder / LOCK).is_file():
        RunLock(folder).release()


def put_aside(folder: Path, notice: Notice) -> Path:
    """Rename a folder that something new is about to replace; the path that it has then."""
    aside = move_aside(folder)
    notice(f"what was in {folder.name} is now in {aside}")
    return aside


def _generated(
    configuration: Configuration, datasets: Mapping[str, BaseDataset], options: MemorySpec
) -> list[Definition]:
    """All tests, in memory. Raises UserError, also if a model has to write some."""
    try:
        tests = generated_alone(configuration, datasets)
    except UserError as error:
        definitions = run_folder(Path(options.data_dir), configuration.run_name) / DEFINITIONS
        raise UserError(str(error).replace(DEFINITIONS_FOLDER, str(definitions))) from None
    if tests is None:
        raise UserError(
            f"{options.configuration}: some tests have to be generated by a model; make them with manyhands memory generate"
        )
    return tests


def write_tests(definitions: Path, configuration: Configuration, tests: Sequence[Definition]) -> None:
    """Write tests and the configuration that they were made of. Raises StorageError."""
    write_definitions(definitions, tests)
    keep_configuration(definitions, configuration.text)


def keep_configuration(definitions: Path, text: str) -> None:
    """Write the configuration beside the tests that were made of it; the last thing to do, as without it there are no tests."""
    with written_aside(definitions / CONFIGURATION) as handle:
        handle.write(text)


def check_same_tests(definitions: Path, configuration: Configuration, notice: Notice) -> None:
    """Tests that were made of another configuration are used as they are, and that is said."""
    made_of = read_configuration(definitions / CONFIGURATION)
    if (made_of.datasets, made_of.incompatibilities, made_of.scoring) == (
        configuration.datasets,
        configuration.incompatibilities,
        configuration.scoring,
    ):
        return
    same = [(e.id, e.memory_span, e.examples, e.seed, dict(e.arguments)) for e in made_of.datasets] == [
        (e.id, e.memory_span, e.examples, e.seed, dict(e.arguments)) for e in configuration.datasets
    ]
    if not same or made_of.scoring != configuration.scoring:
        notice(
            f"the tests in {definitions} were made of a configuration that says something else; they are used as they are "
            "(--regenerate makes new ones)"
        )
