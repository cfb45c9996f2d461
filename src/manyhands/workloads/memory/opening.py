"""From settings to a run of the memory benchmark that can be performed: made anew, or continued.

Nothing is deleted: test definitions and results that something new takes the place of are kept beside it, under another name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.agents.run_settings import check_prices, tell_bound, warn_of_unpriced
from manyhands.core.errors import RunError, UserError
from manyhands.engine.journal.lock import LOCK, RunLock
from manyhands.io.files import written_aside
from manyhands.runs.folders import is_made
from manyhands.runs.making import Opened, keep_files, make_run, recorded_run
from manyhands.runs.options import resume_spec
from manyhands.runs.progress import Notice
from manyhands.workloads.memory.agents.choice import WITH_MODELS, AgentChoice, choose_agent
from manyhands.workloads.memory.agents.factory import check_agent, session_name
from manyhands.workloads.memory.conversation.definitions import Definition
from manyhands.workloads.memory.conversation.tokens import counter_named
from manyhands.workloads.memory.datasets.base import BaseDataset
from manyhands.workloads.memory.datasets.benchmark import datasets_of, generated_alone
from manyhands.workloads.memory.datasets.builtin.chapterbreak import DEFINITIONS_PLACE
from manyhands.workloads.memory.datasets.configuration import Configuration, read_configuration
from manyhands.workloads.memory.datasets.definition_files import read_definitions, write_definitions
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS, ResultPaths, move_aside, run_folder
from manyhands.workloads.memory.settings import MemorySpec, keys_of
from manyhands.workloads.memory.workload import MemoryWorkload, clock_of_process

Ask = Callable[[str, bool], bool]
"""Asks the person a yes-or-no question; the default is what is assumed where nobody can be asked."""


def open_memory(options: MemorySpec, *, environ: Mapping[str, str], notice: Notice, ask: Ask) -> Opened[MemoryWorkload]:
    """Make or continue the run of a configuration, with a session for each agent.

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
    keys = keys_of(options, choices, environ)
    configuration = read_configuration(Path(options.configuration))
    tokens = counter_named(options.tokenizer)
    datasets = datasets_of(configuration, tokens)
    if options.tokenizer == "auto" and not tokens.exact:
        notice(f"tokens are counted by {tokens.name}: no tokenizer is on this machine")
    folder = run_folder(Path(options.data_dir), configuration.run_name, isolated=options.isolated)
    definitions = folder / DEFINITIONS
    refuse_if_performed(folder)
    anew = _to_make_anew(options, folder, ask)
    if (definitions / CONFIGURATION).is_file() and not anew:
        check_same_tests(definitions, configuration, notice)
    else:
        base = run_folder(Path(options.data_dir), configuration.run_name) / DEFINITIONS
        is_taken_over = options.isolated and (base / CONFIGURATION).is_file()
        tests = [] if is_taken_over else _generated(configuration, datasets, options)
        if anew:  # only now that nothing can be wrong with the new ones
            put_aside(folder, notice)
        if is_taken_over:
            _take_over(base, definitions)
            check_same_tests(definitions, configuration, notice)
        else:
            write_tests(definitions, configuration, tests)
    opened = _opened(options, folder, choices, names, notice, ask)
    opened.workload.set_secrets(keys)
    return opened


def reopen_memory(folder: Path, *, environ: Mapping[str, str]) -> Opened[MemoryWorkload]:
    """Continue a run with all of its sessions, as it was. Raises UserError, RunError, StorageError."""
    spec = recorded_run(folder, MemoryWorkload.name).spec
    _refuse_imported(folder, spec)
    latest = {each["name"]: each["round"] for each in sorted(spec["sessions"], key=lambda each: each["round"])}
    sessions = [{**each, "performed": each["round"] == latest[each["name"]]} for each in spec["sessions"]]
    workload = MemoryWorkload({**spec, "sessions": sessions}, folder)
    choices = [choose_agent(each["agent"]) for each in sessions if each["performed"]]
    for choice in choices:
        check_agent(choice)
    workload.set_secrets(keys_of(workload.options, choices, environ))
    return Opened(folder, workload, spec_changed=workload.spec != spec)


def _opened(
    options: MemorySpec,
    folder: Path,
    choices: list[AgentChoice],
    names: Mapping[str, str],
    notice: Notice,
    ask: Ask,
) -> Opened[MemoryWorkload]:
    recorded: dict[str, Any] | None = None
    if is_made(folder):
        recorded = recorded_run(folder, MemoryWorkload.name).spec
        _refuse_imported(folder, recorded)
        options = resume_spec(MemorySpec(**recorded["options"], data_dir=options.data_dir), options)
    now = [_session(options, choice, names[choice.id], folder, recorded, notice, ask) for choice in choices]
    named = [(each["name"], each["round"]) for each in now]
    others = [
        {**each, "performed": False}
        for each in (recorded or {}).get("sessions", ())
        if (each["name"], each["round"]) not in named
    ]
    spec = {"options": options.recorded(), "sessions": [*now, *others]}
    workload = MemoryWorkload(spec, folder)
    opened = Opened(folder, workload, spec_changed=recorded is not None and recorded != spec)
    if recorded is None:
        make_run(opened, options, notice)
    else:
        keep_files(options, folder)
    _tell_of_budget(options, choices, notice)
    return opened


def _refuse_imported(folder: Path, spec: Mapping[str, Any]) -> None:
    """Raises RunError for a run that an earlier version made of a session of the GoodAI LTM Benchmark that had not ended."""
    if any("past" in each for each in spec["sessions"]):
        raise RunError(
            f"{folder}: begins with a session that an earlier version imported from the GoodAI LTM Benchmark, which this version "
            "can't continue; its results can be shown, reported and scored again"
        )


def _tell_of_budget(options: MemorySpec, choices: Sequence[AgentChoice], notice: Notice) -> None:
    """What of the budget can't be kept, or changes how models are asked."""
    asked = [(choice.model, options.base_url) for choice in choices if choice.kind in WITH_MODELS]
    if options.judge_model is not None:
        asked.append((options.judge_model, options.judge_base_url or options.base_url))
    for model, base_url in dict.fromkeys(asked):
        of_model = options.model_copy(update={"model": model, "base_url": base_url})
        warn_of_unpriced(of_model, notice)
        tell_bound(of_model, notice)
    if any(choice.kind == "embeddings" for choice in choices):
        warn_of_unpriced(options.model_copy(update={"model": options.embedding_model}), notice)
    if options.max_cost is not None and any(choice.kind in ("command", "http", "python") for choice in choices):
        notice("what agents outside cost is known only afterwards, so that one message may pass --max_cost")


def _session(
    options: MemorySpec,
    choice: AgentChoice,
    name: str,
    folder: Path,
    recorded: Mapping[str, Any] | None,
    notice: Notice,
    ask: Ask,
) -> dict[str, Any]:
    """What is recorded of a session: the one that is there, or another round for the same agent."""
    limit = options.max_prompt_size
    name = _kept_name(choice, limit, name, recorded)
    before = sorted(
        (each for each in (recorded or {}).get("sessions", ()) if each["name"] == name), key=lambda each: each["round"]
    )
    number = before[-1]["round"] if before else 0
    places = ResultPaths.of(folder, name)
    if before and (options.restart or places.folder.is_dir()) and _to_restart(options, name, ask):
        number += 1
    if places.folder.is_dir() and (not before or number > before[-1]["round"]):
        put_aside(places.folder, notice)  # no results of this session
    held = next((each for each in before if each["round"] == number), None)
    if held is not None:
        if (held["agent"], held["limit"]) != (choice.id, limit):
            raise RunError(
                f"{folder}: the session {name} is that of --agent_name={held['agent']} --max_prompt_size={held['limit']}; "
                "give these, or --restart to begin it anew"
            )
        if options.local and not held.get("local"):
            raise RunError(f"{folder}: the session {name} was begun without --local; give --restart to begin it anew")
        return {name: value for name, value in held.items() if name != "performed"}
    made = {"agent": choice.id, "name": name, "limit": limit, "round": number, "start_time": options.start_time}
    made |= {"asks_class": True} if choice.kind == "python" else {}
    return {**made, "local": True} if options.local else made


def _kept_name(choice: AgentChoice, limit: int | None, name: str, recorded: Mapping[str, Any] | None) -> str:
    """The name of an agent's session, which stays as it was if there is one: earlier versions called classes otherwise."""
    for each in (recorded or {}).get("sessions", ()):
        if (each["agent"], each["limit"]) == (choice.id, limit):
            return str(each["name"])
    return name


def _check_contradictions(options: MemorySpec) -> None:
    for one, other in (("reuse", "regenerate"), ("resume", "restart")):
        if getattr(options, one) and getattr(options, other):
            raise UserError(f"give --{one} or --{other}, not both")


def _names(options: MemorySpec, choices: Sequence[AgentChoice], run_name: str) -> dict[str, str]:
    """What results call the agents, by what was typed. Raises UserError."""
    names = {
        choice.id: session_name(choice, options.max_prompt_size, run_name, options.message_timeout)
        for choice in choices
    }
    listed = list(names.values())
    twice = next((name for name in listed if listed.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"--agent_name: two agents would have the same folder of results, {twice!r}")
    return names


def _to_make_anew(options: MemorySpec, folder: Path, ask: Ask) -> bool:
    """Whether test definitions that are there are to be replaced."""
    if options.regenerate:
        return (folder / DEFINITIONS).is_dir()
    if options.reuse or options.yes or not (folder / DEFINITIONS / CONFIGURATION).is_file():
        return False
    if ask(f"Tests for {folder.name!r} are there already. Use them?", True):
        return False
    if not ask("Then all results for them are put aside, those of all agents. Go on?", False):
        raise UserError("nothing was changed")
    return True


def _to_restart(options: MemorySpec, name: str, ask: Ask) -> bool:
    """Whether an agent's session that is there is to begin anew."""
    if options.restart:
        return True
    if options.resume or options.yes or ask(f"{name} has results for these tests already. Go on where it was?", True):
        return False
    if not ask("Then its results are put aside. Go on?", False):
        raise UserError("nothing was changed")
    return True


def refuse_if_performed(folder: Path) -> None:
    """Raises RunError if another process performs the run, whose folders must stay where they are."""
    if (folder / LOCK).is_file():
        RunLock(folder).release()


def put_aside(folder: Path, notice: Notice) -> Path:
    """Rename what something new is about to take the place of; where it is then."""
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
        place = run_folder(Path(options.data_dir), configuration.run_name) / DEFINITIONS
        raise UserError(str(error).replace(DEFINITIONS_PLACE, str(place))) from None
    if tests is None:
        raise UserError(
            f"{options.configuration}: some tests have to be generated by a model; make them with manyhands memory generate"
        )
    return tests


def _take_over(source: Path, target: Path) -> None:
    """Copy the tests of the run that is not isolated, so that both have the same."""
    write_definitions(target, read_definitions(source))
    keep_configuration(target, (source / CONFIGURATION).read_text(encoding="utf-8"))


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
