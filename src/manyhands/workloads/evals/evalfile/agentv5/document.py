"""An eval file in AgentV 5's words, as one of those that the modules around this folder read: what it says for all tests, and its tests.

Where a value is put under another key, messages still name the one where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.locations import Findings, Location, Source
from manyhands.io.locations import Path as FieldPath
from manyhands.io.search_paths import SearchPath, text_of
from manyhands.io.yaml_files import read_source
from manyhands.workloads.evals.evalfile.agentv5.environments import Environments, with_lines
from manyhands.workloads.evals.evalfile.agentv5.given import Given
from manyhands.workloads.evals.evalfile.agentv5.graders import GraderWords
from manyhands.workloads.evals.evalfile.agentv5.project import project_defaults
from manyhands.workloads.evals.evalfile.agentv5.prompts import SCHEME, Prompt, read_prompts
from manyhands.workloads.evals.evalfile.agentv5.providers import Provider, read_providers
from manyhands.workloads.evals.evalfile.agentv5.rendering import is_simple, with_present_variables
from manyhands.workloads.evals.evalfile.agentv5.rows import Rows, Shared, scenario_tests, trials
from manyhands.workloads.evals.evalfile.building import RawTest
from manyhands.workloads.evals.evalfile.patterns import is_pattern, matching_files

PROMPT_FILE = "PROMPT.md"
"""The file beside an eval file without prompts that holds the input of its tests."""
_TEST_HOOKS = ("before_each", "after_each")
_IDLE = {
    "derived_metrics": "manyhands eval compare and report have figures of their own",
    "output_path": "--output writes the results to further files",
    "env": "set variables in the environment, or in .env",
    "timeout_seconds": "--agent_timeout is the time limit of an answer",
}
_IDLE_OPTIONS = {
    "delay": "max_concurrency bounds how much is asked at once",
    "generate_suggestions": "",
    "timeout_ms": "--agent_timeout is the time limit of an answer",
    "max_eval_time_ms": "--max_runtime is the time limit of a run",
    "filter_range": "--test_id chooses tests",
}
_REFUSED = {
    "nunjucks_filters": "only filters that nunjucks and Jinja have alike are known in templates",
    "imports": "give several eval files on the command line; tests may be file://PATH",
    "graders": "write them below providers, and name them in defaults.grader",
}
_REFUSED_DEFAULTS = {
    "assert_scoring_function": "the score is the weighted mean of the graders; give them a weight",
    "provider_output": "a target of kind replay, or --from_output, has answers that are given",
}


class Document:
    """A file, translated."""

    def __init__(self, source: Source, folder: Path, search_path: SearchPath, findings: Findings) -> None:
        """``folder``: the eval file's. What is wrong is in ``findings``."""
        self._folder = folder
        self._search_path = search_path
        self._findings = findings
        self._moved: dict[FieldPath, FieldPath] = {}
        self._lines: dict[FieldPath, int] = dict(source.location.lines)
        given = Given(_mapping(source), source.location, findings)
        default, default_at = self._default(given)
        self._words = GraderWords(findings, **_for_graders(default))
        environments = Environments(folder, search_path)
        providers = self._providers(given)
        hooks = environments.hooks(given.take("extensions"), given.at("extensions"), findings)
        self._scenarios = list(self._scenario_values(given))
        self._rows = Rows(
            Shared(
                source.location.file,
                _for_tests(given, default),
                self._prompts(given),
                providers,
                self._words,
                environments,
                {name: lines for name, lines in hooks.items() if name in _TEST_HOOKS},
                findings,
                self._prompt_file(given),
            )
        )
        value = self._suite(given, default, default_at, providers, environments, hooks)
        at = Location(source.location.file, source.location.path, self._lines, self._moved)
        self.source = Source(value, at, source.written)
        """What it says for all tests, and where these are."""

    def tests(self, raws: Iterable[RawTest]) -> Iterator[RawTest]:
        """The tests, of the rows that the file lists and of those of its scenarios."""
        rows = [*raws, *scenario_tests(self._scenarios, self._findings)]
        yield from self._rows.tests(replace(row, value=with_present_variables(row.value)) for row in rows)

    def graders(self, entries: Json, location: Location) -> Json:
        """A list of graders of a file that is included."""
        return self._words.present(entries, location)

    # --- What holds for all tests

    def _default(self, given: Given) -> tuple[dict[str, Json], Location]:
        """``default_test``, and its location: that of a file, if it names one."""
        value, location = given.take("default_test"), given.at("default_test")
        if isinstance(value, str):
            path = self._folder / value.strip().removeprefix(SCHEME)
            if not value.strip().startswith(SCHEME):
                self._findings.problem(
                    location, f"must be a mapping, or {SCHEME} and the path of a file that holds one"
                )
                return {}, location
            if not path.is_file():
                self._findings.problem(location, f"there is no file {path}")
                return {}, location
            with self._findings.catching():
                source = read_source(path, self._search_path.shown(path))
                value, location = source.value, source.location
        if value is not None and not isinstance(value, Mapping):
            self._findings.problem(location, f"must be a mapping, not {shown(value)}")
            return {}, location
        default = Given(value or {}, location, self._findings)
        default.refuse(_REFUSED_DEFAULTS)
        return default.left, location

    def _prompts(self, given: Given) -> tuple[Prompt, ...]:
        value = given.take("prompts")
        if value is None:
            return ()
        return read_prompts(value, given.at("prompts"), self._folder, self._search_path, self._findings)

    def _prompt_file(self, given: Given) -> str | None:
        path = self._folder / PROMPT_FILE
        if not path.is_file():
            return None
        with self._findings.catching():
            return text_of(path, given.location)
        return None

    def _providers(self, given: Given) -> list[Provider]:
        value = given.take("providers")
        if value is None:
            return []
        found = list(read_providers(value, given.at("providers"), self._findings))
        for number, provider in enumerate(found):
            if provider.name in (each.name for each in found[:number]):
                self._findings.problem(provider.location, f"{shown(provider.name)} is the name of another provider too")
        return found

    def _suite(
        self,
        given: Given,
        default: Mapping[str, Json],
        default_at: Location,
        providers: list[Provider],
        environments: Environments,
        hooks: Mapping[str, list[str]],
    ) -> dict[str, Json]:
        execution = given.mapping("execution")
        execution |= self._options(given.within("evaluate_options"))
        defaults = given.within("defaults")
        named = [provider.name for provider in providers]
        usual, judge = defaults.take("provider"), defaults.take("grader")
        defaults.tell_left("defaults")
        with self._findings.catching():
            of_project = project_defaults(self._folder, self._search_path)
            judge = of_project.get("grader") if judge is None else judge
            if usual is None and not given.has("targets") and not {"target", "targets"} & execution.keys():
                usual = of_project.get("provider")
        given.idle(_IDLE)
        given.refuse(_REFUSED)
        found: dict[str, Json] = {}
        if named or usual is not None:
            execution["targets"] = self._target_names(providers, usual, given)
        if judge is not None:
            found["judge_target"] = judge
            self._moved[("judge_target",)] = ("defaults", "grader")
        if definitions := self._definitions(providers, given):
            found["targets"] = definitions
        if execution:
            found["execution"] = execution
        if default.get("threshold") is not None:
            given.take("threshold")
            found["threshold"] = default["threshold"]
            self._moved[("threshold",)] = ("default_test", "threshold")
        if graders := self._graders(given, default, default_at):
            found["assert"] = graders
        workspace = self._workspace(given, environments, hooks)
        if workspace is not None:
            found["workspace"] = workspace
        if not given.has("dataset") and not given.has("suite") and isinstance(given.peek("name"), str):
            found["dataset"] = given.peek("name")
        tags = given.peek("tags")
        if isinstance(tags, Mapping):
            given.put("tags", [f"{name}={value}" for name, value in tags.items()])
        self._put_tests(given)
        return {**given.left, **found}

    def _options(self, given: Given) -> dict[str, Json]:
        """``evaluate_options`` as ``execution``."""
        found: dict[str, Json] = {}
        for key, present in (("max_concurrency", "workers"), ("budget_usd", "budget_usd"), ("cache", "cache")):
            value = given.take(key)
            if value is not None:
                found[present] = True if isinstance(value, Mapping) else value
                self._move(("execution", present), given.at(key))
        repeat = given.take("repeat")
        if repeat is not None:
            found["trials"] = trials(repeat)
            self._move(("execution", "trials"), given.at("repeat"))
            self._move(("execution", "trials", "count"), given.at("repeat"))
        given.idle(_IDLE_OPTIONS)
        given.tell_left("evaluate_options")
        return found

    def _move(self, path: FieldPath, location: Location) -> None:
        """Note that a value of the file is put below another key, where it counts as known."""
        self._moved[path] = location.standing
        if location.line is not None:
            self._lines[path] = location.line

    def _target_names(self, providers: list[Provider], usual: Json, given: Given) -> list[Json]:
        names: list[Json] = []
        for index, provider in enumerate(providers):
            names.append(provider.name if provider.hooks is None else {"name": provider.name, "hooks": provider.hooks})
            self._move(("execution", "targets", index), provider.location)
        if providers:
            return names
        self._move(("execution", "targets"), given.at("defaults", "provider"))
        return [usual]

    def _definitions(self, providers: list[Provider], given: Given) -> list[Json]:
        """The targets that the file defines: its own, in earlier words, too."""
        own = given.take("targets")
        found: list[Json] = list(own) if isinstance(own, list) else []
        if isinstance(own, Mapping):
            found += [{"name": name, **entry} if isinstance(entry, Mapping) else entry for name, entry in own.items()]
        for provider in providers:
            if provider.definition is not None:
                path = ("targets", len(found))
                self._move(path, provider.location)
                for key, place in provider.moved.items():
                    self._move((*path, key), provider.location.at(*place))
                found.append(dict(provider.definition))
        return found

    def _graders(self, given: Given, default: Mapping[str, Json], default_at: Location) -> list[Json]:
        """The graders of all tests: those of ``default_test``, then the file's own."""
        found: list[Json] = []
        own_key = next((key for key in ("assert", "assertions", "evaluators") if given.has(key)), "assert")
        for value, at in (
            (default.get("assert"), default_at.at("assert")),
            (given.take(own_key), given.at(own_key)),
        ):
            if value is None:
                continue
            if not isinstance(value, list):
                self._findings.problem(at, f"must be a list of graders, not {shown(value)}")
                continue
            if not is_simple(value):
                self._findings.problem(at, "must hold no templates but {{ name }}, as it holds for all tests")
            for index, entry in enumerate(self._words.entries(value, at)):
                if at.file == given.location.file:
                    self._moved[("assert", len(found))] = at.at(index).standing
                found.append(entry)
        return found

    def _workspace(
        self, given: Given, environments: Environments, hooks: Mapping[str, list[str]]
    ) -> dict[str, Json] | None:
        environment = given.take("environment")
        at = given.at("environment")
        workspace = environments.workspace(environment, at, self._findings, "before_all")
        own = given.take("workspace")
        if environment is not None and own is not None:
            self._findings.problem(
                given.at("workspace"), "environment says the same, and is given too; give one of them"
            )
        if own is not None and not isinstance(own, Mapping):
            return own  # type: ignore[no-any-return]
        if workspace is None and own is None and not hooks:
            return None
        if environment is not None and isinstance(environment, Mapping):
            self._moved[("workspace",)] = at.standing
            self._moved[("workspace", "template")] = (*at.standing, "workdir")
        return with_lines({**(own or {}), **(workspace or {})}, hooks)

    def _scenario_values(self, given: Given) -> Iterator[tuple[Json, Location]]:
        """Each scenario, those of files that are named, too."""
        value, location = given.take("scenarios"), given.at("scenarios")
        if value is not None and not isinstance(value, list):
            self._findings.problem(location, f"must be a list of scenarios, not {shown(value)}")
            return
        for index, entry in enumerate(value or ()):
            if isinstance(entry, str):
                yield from self._scenarios_of(entry, location.at(index))
            else:
                yield entry, location.at(index)
        if value is not None and not given.has("tests"):
            given.put("tests", [])

    def _scenarios_of(self, named: str, location: Location) -> Iterator[tuple[Json, Location]]:
        name = named.removeprefix(SCHEME).strip()
        try:
            paths = matching_files(name, self._folder) if is_pattern(name) else [self._folder / name]
        except ValueError as error:
            self._findings.problem(location, str(error))
            return
        if not named.startswith(SCHEME) or not paths or not all(path.is_file() for path in paths):
            self._findings.problem(location, f"there is no file {name}, or it is not written as {SCHEME}PATH")
            return
        for path in paths:
            with self._findings.catching():
                source = read_source(path, self._search_path.shown(path))
                value, at = source.value, source.location
                if isinstance(value, Mapping):
                    value, at = value.get("scenarios"), at.at("scenarios")
                if not isinstance(value, list):
                    raise at.error(f"must be a list of scenarios, not {shown(value)}")
                yield from ((entry, at.at(index)) for index, entry in enumerate(value))

    def _put_tests(self, given: Given) -> None:
        """Let entries that include files of tests name them."""
        tests = given.peek("tests")
        if not isinstance(tests, list):
            return
        found = []
        for index, entry in enumerate(tests):
            at = given.at("tests", index)
            if isinstance(entry, str) and not entry.startswith(SCHEME):
                entry = f"{SCHEME}{entry}"
            elif isinstance(entry, Mapping) and isinstance(entry.get("include"), str):
                if set(entry) != {"include", "type"} or entry["type"] != "tests":
                    self._findings.problem(
                        at, "only {include: PATH, type: tests} is supported; give eval files on the command line"
                    )
                entry = SCHEME + str(entry["include"]).removeprefix(SCHEME)
            found.append(entry)
        given.put("tests", found)


def _mapping(source: Source) -> Mapping[str, Json]:
    if not isinstance(source.value, Mapping):
        raise source.location.error(f"must be a mapping with tests, not {shown(source.value)}")
    return source.value


def _for_tests(given: Given, default: Mapping[str, Json]) -> dict[str, Json]:
    """What ``default_test`` says for tests, with the ``vars`` that earlier versions have for all of them."""
    found = {key: value for key, value in default.items() if key not in ("assert", "threshold")}
    shared = given.take("vars")
    if isinstance(shared, Mapping):
        own = default.get("vars")
        found["vars"] = {**shared, **(own if isinstance(own, Mapping) else {})}
    return found


def _for_graders(default: Mapping[str, Json]) -> dict[str, Any]:
    """What ``default_test`` says for graders of all tests."""
    options = default.get("options")
    options = options if isinstance(options, Mapping) else {}
    judge = options.get("provider")
    return {
        "rubric_prompt": options.get("rubric_prompt"),
        "judge": judge if isinstance(judge, str) and judge.strip() else None,
    }
