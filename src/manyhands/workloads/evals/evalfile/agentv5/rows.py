"""Tests: the rows of ``tests`` and ``scenarios``, each with each prompt, and with each combination of the values of its ``vars``.

A list of texts in ``vars`` stands for one value in each of several tests. The ids of such tests are ``ID__NAME_VALUE``, unless the id
itself names the variable; with several prompts ``__prompt_PROMPT`` stands before that. A test without an id is called ``test-N``, after its
position; one of a scenario ``scenario-S-C-T``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.locations import Findings, Location
from manyhands.io.locations import Path as FieldPath
from manyhands.workloads.evals.evalfile.agentv5.environments import Environments, with_lines
from manyhands.workloads.evals.evalfile.agentv5.given import Given
from manyhands.workloads.evals.evalfile.agentv5.graders import GraderWords
from manyhands.workloads.evals.evalfile.agentv5.prompts import Prompt, digest_of, named_prompts, safe
from manyhands.workloads.evals.evalfile.agentv5.providers import Provider, provider_names
from manyhands.workloads.evals.evalfile.agentv5.rendering import Filling
from manyhands.workloads.evals.evalfile.building import RawTest

_MAX_NAMES = 10
"""Names of variables that a note lists."""
MAX_TESTS = 100_000
"""Tests that the rows of a file may stand for, besides one each."""
_SCORING = {"assert_scoring_function": "the score is the weighted mean of the graders; give them a weight"}
_REFUSED = {
    **_SCORING,
    "provider_output": "a target of kind replay, or --from_output, has answers that are given",
}
_RENDERED = ("description", "criteria", "expected_output", "input_files", "turns")
_IDLE_RUN = {
    "timeout_seconds": "--agent_timeout is the time limit of an answer",
    "budget_usd": "budget_usd of evaluate_options is the limit of the whole run",
}


@dataclass(frozen=True, slots=True)
class Shared:
    """What the tests of a file have in common."""

    file: str
    """What messages call the eval file."""
    default: Mapping[str, Json]
    """``default_test``."""
    prompts: Sequence[Prompt]
    providers: Sequence[Provider]
    graders: GraderWords
    environments: Environments
    hooks: Mapping[str, Sequence[str]]
    """What extensions run in the workspace of each test."""
    findings: Findings
    """For notes; what is wrong with a test is told with it."""
    prompt_file: str | None = None
    """What PROMPT.md beside the file says, for tests without an input where there are no prompts."""


@dataclass(slots=True)
class Row:
    """A test as it stands in a file, with what goes for all of them; not yet one for each prompt."""

    raw: RawTest
    value: dict[str, Json]
    variables: dict[str, Json]
    name: str
    prompts: Sequence[Prompt]
    findings: Findings
    made: dict[str, dict[str, None]] = field(default_factory=dict)
    """The ids of the tests that are made of it, by their prompts' ids."""

    @property
    def location(self) -> Location:
        return self.raw.location


class Rows:
    """Makes tests, as other modules read them, of rows."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._unknown = dict[str, None]()
        """Names in prompts that are no variables."""
        self._filling = Filling()
        self._left = MAX_TESTS

    def tests(self, raws: Iterable[RawTest]) -> Iterator[RawTest]:
        """The tests, in order."""
        rows = [self._row(raw, number) for number, raw in enumerate(raws, 1)]
        try:
            made = [list(self._made(row)) if isinstance(row, Row) else [row] for row in rows]
        finally:
            self._filling.close()
        known = {row.name: row for row in rows if isinstance(row, Row)}
        for row, tests in zip(rows, made, strict=True):
            for test in tests:
                yield test if not isinstance(row, Row) else _with_dependencies(test, row, known, self._filling)
        if self._unknown:
            names = ", ".join(list(self._unknown)[:_MAX_NAMES])
            self._shared.findings.notice(
                f"{self._shared.file}: names in prompts that are no variables stand for nothing: {names}"
            )

    def _row(self, raw: RawTest, number: int) -> Row | RawTest:
        """The row of a mapping; the test itself if it is none."""
        if raw.problem is not None or not isinstance(raw.value, Mapping):
            return raw
        findings = self._shared.findings.inner()
        given = Given(raw.value, raw.location, findings)
        default = Given(self._shared.default, Location(raw.location.file), findings)
        own, options = given.mapping("vars"), {**default.mapping("options"), **given.mapping("options")}
        variables = {**default.mapping("vars"), **own}
        name = given.peek("id")
        if name is None:
            name = f"test-{number}"
            self._shared.findings.notice(
                f"{raw.location.file}: tests without an id are called test-N, after their position"
            )
        if self._shared.prompts and given.has("input"):
            variables["input"] = given.take("input")
        prompts = self._shared.prompts
        with findings.catching():
            wanted = given.take("prompts")
            at = given.at("prompts")
            if wanted is None:
                wanted, at = default.take("prompts"), raw.location
            prompts = named_prompts(prompts, wanted, at)
        given.refuse(_REFUSED)
        value = self._present(given, default, options, findings)
        return Row(raw, value, variables, str(raw.as_written(name, given.at("id"))), prompts, findings)

    def _present(
        self, given: Given, default: Given, options: Mapping[str, Json], findings: Findings
    ) -> dict[str, Json]:
        """Everything but id, input and vars, in present words."""
        execution = given.mapping("execution")
        run = given.within("run")
        threshold = next(
            (each for each in (run.take("threshold"), execution.pop("threshold", None)) if each is not None), None
        )
        repeat = next((each for each in (run.take("repeat"), options.get("repeat")) if each is not None), None)
        run.idle(_IDLE_RUN)
        run.tell_left("run")
        if repeat is not None:
            execution["trials"] = trials(repeat)
        targets = self._targets(given, default, findings)
        if targets:
            execution["targets"] = list(targets)
        self._tell_options(given, options, findings)
        words = self._shared.graders.of_test(options, findings)
        if given.has("assert"):
            given.put("assert", words.present(given.peek("assert"), given.at("assert")))
        if isinstance(execution.get("assert"), list):
            execution["assert"] = words.present(execution["assert"], given.at("execution", "assert"))
        if given.has("turns"):
            given.put("turns", _turns(given, words))
        metadata = {**default.mapping("metadata"), **given.mapping("metadata")}
        environment = given.take("environment")
        workspace = self._shared.environments.workspace(environment, given.at("environment"), findings, "before_each")
        return {
            **given.left,
            **({"metadata": metadata} if metadata else {}),
            **({"execution": execution} if execution else {}),
            **({} if threshold is None else {"threshold": threshold}),
            **({} if workspace is None else {"workspace": with_lines(workspace, self._shared.hooks)}),
        }

    def _targets(self, given: Given, default: Given, findings: Findings) -> list[str]:
        for place in (given, default):
            for key in ("providers", "provider"):
                value = place.take(key)
                if value is not None:
                    return provider_names(value, place.at(key), findings)
        return []

    def _tell_options(self, given: Given, options: Mapping[str, Json], findings: Findings) -> None:
        known = ("repeat", "provider", "rubric_prompt")
        for key in options:
            if key == "transform":
                findings.problem(
                    given.at("options", key),
                    "is not supported: answers are graded as they are; let the target, or a script, change them",
                )
            elif key not in known:
                self._shared.findings.notice(given.at("options", key).says("has no effect here"))

    # --- From rows to tests

    def _made(self, row: Row) -> Iterator[RawTest]:
        """The tests of a row, one for each prompt and each combination of values."""
        several, taken = len(row.prompts) > 1, dict[str, int]()
        self._count(row)
        for prompt in row.prompts or (None,):
            part = f"__prompt_{prompt.part_of_id}" if prompt is not None and several else ""
            made = row.made.setdefault(prompt.id if prompt is not None else "", {})
            for values, suffix in _combinations(row):
                variables = self._filling.resolved(values, row.location.at("vars"))
                name = self._id(row, variables, part, suffix, taken)
                made[name] = None
                test = self._test(row, prompt, variables, name)
                if self._filling.exceeded is not None:
                    raise self._filling.exceeded
                yield test

    def _count(self, row: Row) -> None:
        """Take the tests of a row from those that are left. Raises UserError if there are too many."""
        several = [len(value) for value in row.variables.values() if _is_several(value)]
        self._left -= prod([len(row.prompts) or 1, *several]) - 1
        if self._left < 0:
            raise row.location.error(
                f"with this one, prompts and lists in vars make more than {MAX_TESTS:,} tests of the file's; split the file"
            )

    def _id(self, row: Row, variables: Mapping[str, Json], part: str, suffix: str, taken: dict[str, int]) -> str:
        """The id of a test of a row; different from those that are ``taken``, which it is added to."""
        name = row.name
        if "{" in name:
            try:
                name = str(self._filling.rendered(name, variables, row.location.at("id")))
            except UserError as error:
                row.findings.problems.append(str(error))
        own = name != row.name
        wanted = f"{name}{part}" if own else f"{name}{part}{suffix}"
        if wanted in taken:
            wanted = f"{name}{part}{suffix}"
        found = wanted
        while found in taken:
            taken[wanted] += 1
            found = f"{wanted}__{taken[wanted]}"
        taken[found] = 1
        return found

    def _test(self, row: Row, prompt: Prompt | None, variables: dict[str, Json], name: str) -> RawTest:
        value, location, findings = dict(row.value), row.location, row.findings.inner()
        findings.problems += row.findings.problems
        moved: dict[FieldPath, FieldPath] = {}
        for key in _RENDERED:
            if key in value:
                with findings.catching():
                    value[key] = self._filling.rendered(value[key], variables, location.at(key))
        if "assert" in value:
            with findings.catching():
                value["assert"] = self._filling.rendered(value["assert"], variables, location.at("assert"))
        if value.get("expected_output") is None and variables.get("expected_output") not in (None, ""):
            value["expected_output"] = variables["expected_output"]
            moved[(*location.path, "expected_output")] = (*location.path, "vars", "expected_output")
        if prompt is not None:
            with findings.catching():
                self._put_input(value, prompt, variables, location, moved)
            self._restrict(value, prompt)
        elif "input" not in value and not (value.get("mode") and value.get("turns")):
            if self._shared.prompt_file is None:
                findings.problem(location, "has no input: the file has no prompts, and no PROMPT.md is beside it")
            value["input"] = self._shared.prompt_file
        value |= {"id": name, "vars": variables}
        at = Location(location.file, location.path, location.lines, {**location.moved, **moved})
        problem = "\n".join(findings.problems) if findings.problems else None
        return replace(row.raw, value=value, location=at, problem=problem)

    def _put_input(
        self,
        value: dict[str, Json],
        prompt: Prompt,
        variables: Mapping[str, Json],
        location: Location,
        moved: dict[FieldPath, FieldPath],
    ) -> None:
        found = prompt.filled(variables, self._missing, self._filling)
        if found in ("", [], None) and value.get("mode"):
            return  # a conversation begins with its first turn
        value["input"] = found
        name = prompt.variable
        if name is not None:
            name = name.removeprefix("vars.")
            moved[(*location.path, "input")] = (*location.path, "vars", *name.split("."))

    def _missing(self, name: str) -> str:
        self._unknown[name] = None
        return ""

    def _restrict(self, value: dict[str, Json], prompt: Prompt) -> None:
        """Let only those targets answer that are given the prompt."""
        if all(provider.prompts is None for provider in self._shared.providers):
            return
        fits = [
            provider.name
            for provider in self._shared.providers
            if provider.prompts is None or {prompt.id, prompt.label} & set(provider.prompts)
        ]
        execution: Any = value.get("execution") or {}
        own = execution.get("targets")
        chosen = fits if own is None else [name for name in own if name in fits]
        value["execution"] = {**execution, "targets": chosen}


def trials(repeat: Json) -> dict[str, Json]:
    """Trials of a test that is repeated: the best counts, and all are made, unless ``repeat`` is a mapping that says otherwise."""
    given = dict(repeat) if isinstance(repeat, Mapping) else {"count": repeat}
    early = given.pop("early_exit", False)
    strategy = given.pop("strategy", "pass_any")
    return {**given, "strategy": "pass_at_k" if strategy == "pass_any" else strategy, "stop_early": early}


def _turns(given: Given, words: GraderWords) -> Json:
    turns = given.peek("turns")
    if not isinstance(turns, list):
        return turns
    return [
        {**turn, "assert": words.present(turn["assert"], given.at("turns", index, "assert"))}
        if isinstance(turn, Mapping) and "assert" in turn
        else turn
        for index, turn in enumerate(turns)
    ]


def _combinations(row: Row) -> Iterator[tuple[dict[str, Json], str]]:
    """The values of a row's variables, one by one, and what they add to the id."""
    lists = {name: value for name, value in row.variables.items() if _is_several(value)}
    if not lists:
        yield row.variables, ""
        return
    for chosen in product(*lists.values()):
        values = dict(zip(lists, chosen, strict=True))
        named = {name: value for name, value in values.items() if len(lists[name]) > 1}
        suffix = "".join(f"__{safe(name)}_{_part(value)}" for name, value in named.items())
        yield {**row.variables, **values}, suffix


def _is_several(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def _part(value: Json) -> str:
    return (safe(value) if isinstance(value, str) else "") or digest_of(value)


def _with_dependencies(test: RawTest, row: Row, known: Mapping[str, Row], filling: Filling) -> RawTest:
    """The test, with the ids that the tests it depends on were given: with several prompts, those of its own prompt."""
    if not isinstance(test.value, Mapping):
        return test
    key = next((word for word in ("depends_on", "dependsOn", "depends-on") if word in test.value), None)
    needed = None if key is None else test.value[key]
    if key is None or needed is None:
        return test
    prompt = next((name for name, made in row.made.items() if test.value["id"] in made), "")
    ids = list[Json]()
    for each in needed if isinstance(needed, list) else [needed]:
        other = known.get(str(each))
        found = [each] if other is None else _ids_of(other, prompt)
        filling.ids(len(found), row.location.at(key))
        ids += found
    return replace(test, value={**test.value, key: ids})


def _ids_of(row: Row, prompt: str) -> list[str]:
    return list(row.made.get(prompt) or (name for made in row.made.values() for name in made))


# --- Scenarios


def scenario_tests(scenarios: Iterable[tuple[Json, Location]], findings: Findings) -> Iterator[RawTest]:
    """The rows of scenarios: each of ``config`` with each of ``tests``."""
    left = MAX_TESTS
    for number, (value, location) in enumerate(scenarios, 1):
        if not isinstance(value, Mapping):
            findings.problem(location, f"must be a scenario with config and tests, not {shown(value)}")
            continue
        lists: dict[str, Any] = {key: value.get(key) for key in ("config", "tests")}
        for key, rows in lists.items():
            if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
                findings.problem(location.at(key), "must be a list of mappings")
        if findings.problems:
            continue
        left -= len(lists["config"]) * len(lists["tests"])
        if left < 0:
            raise location.error(f"with this one, scenarios stand for more than {MAX_TESTS:,} tests; split the file")
        yield from _crossed(lists, location, number)


def _crossed(lists: Mapping[str, Any], location: Location, scenario: int) -> Iterator[RawTest]:
    for config_number, config in enumerate(lists["config"], 1):
        for test_number, test in enumerate(lists["tests"], 1):
            merged = {**config, **test}
            for key in ("vars", "metadata", "options", "run"):
                if isinstance(config.get(key), Mapping) and isinstance(test.get(key), Mapping):
                    merged[key] = {**config[key], **test[key]}
            if isinstance(config.get("assert"), list) and isinstance(test.get("assert"), list):
                merged["assert"] = [*config["assert"], *test["assert"]]
            position = f"{scenario}-{config_number}-{test_number}"
            merged["id"] = _scenario_id(config, test, position, len(lists["config"]), len(lists["tests"]))
            yield RawTest(merged, location.at("tests", test_number - 1))


def _scenario_id(config: Mapping[str, Any], test: Mapping[str, Any], position: str, configs: int, tests: int) -> str:
    own, of_config = test.get("id"), config.get("id")
    _, config_number, test_number = position.split("-")
    if own is not None:
        return f"{own}__{of_config or config_number}" if configs > 1 else str(own)
    if of_config is None:
        return f"scenario-{position}"
    return f"{of_config}__scenario_test_{test_number}" if tests > 1 else str(of_config)
