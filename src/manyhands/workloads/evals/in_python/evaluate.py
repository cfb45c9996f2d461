"""``manyhands.evaluate``: evaluates eval files, or tests given in Python, as ``manyhands eval`` does."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from manyhands.core.errors import UserError
from manyhands.core.settings import shown
from manyhands.core.text import one_line
from manyhands.graders.registry import free_name
from manyhands.io.locations import Location, Source
from manyhands.runs.execution import Controls
from manyhands.workloads.evals.evalfile.contents import InlineTargets
from manyhands.workloads.evals.evalfile.sources.given import NO_FILE, Given
from manyhands.workloads.evals.in_python.callables import FUNCTION, Callables
from manyhands.workloads.evals.in_python.evaluation import Evaluation
from manyhands.workloads.evals.in_python.performing import WORDS, EvalCall, OnResult, perform, perform_here
from manyhands.workloads.evals.results.result_lines import NO_ID, TestResult
from manyhands.workloads.evals.settings import EvalSpec

PathLike = str | os.PathLike[str]
Target = str | Mapping[str, Any] | Callable[..., Any]
"""A target's name, its definition as a targets file has it, or a function that answers."""
Grader = str | Mapping[str, Any] | Callable[..., Any]
"""A rubric, a grader as an eval file has it, or a function that grades."""
LOGGER = logging.getLogger("manyhands")
_HERE = Location("evaluate()")


class EvalKeywords(TypedDict, total=False):
    """The options of ``manyhands eval``, so that an editor completes them. None is the default; ``EvalSpec`` says what each means."""

    test_id: str | Sequence[str] | None
    tag: str | Sequence[str] | None
    exclude_tag: str | Sequence[str] | None
    format: Literal["auto", "agentv-2", "agentv-4", "agentv-5"] | None
    strict: bool | None
    skip_invalid: bool | None
    trials: int | None
    workspace_mode: Literal["pooled", "temp", "static"] | None
    workspace_path: PathLike | None
    grader_target: str | None
    targets: PathLike | None
    from_output: PathLike | None
    rerun: Literal["missing"] | None
    dry_run: bool | None
    dry_run_delay: float | None
    dry_run_delay_min: float | None
    dry_run_delay_max: float | None
    agent_timeout: float | None
    timeout_multiplier: float | None
    override_task: bool | None
    end_processes: bool | None
    agent_command: str | None
    task_env: str | Sequence[str] | Mapping[str, str | None] | None
    cache: bool | None
    cache_dir: PathLike | None
    threshold: float | None
    allow_ungraded: bool | None
    grader_timeout: float | None
    grader_processes: int | None
    out: PathLike | None
    output_format: Literal["jsonl", "yaml"] | None
    trace_file: PathLike | None
    output: PathLike | Sequence[PathLike] | None
    keep_workspaces: bool | None
    cleanup_workspaces: bool | None
    run_name: str | None
    data_dir: PathLike | None
    on_end: str | None
    workers: int | None
    executor: Literal["local", "processes", "ray"] | None
    num_workers: int | None
    ray_address: str | None
    ray_resources: Mapping[str, float] | PathLike | None
    ray_listen: str | None
    item_timeout: float | None
    max_retries: int | None
    max_attempts: int | None
    max_cost: float | None
    max_total_tokens: int | None
    max_seconds: float | None
    prices: PathLike | None
    on_divergence: Literal["fresh", "stop"] | None
    retry_errors: bool | None
    rerun_failed: bool | None
    regrade: str | None
    override: str | Sequence[str] | None
    verbose: bool | None
    bootstrap_seed: int | None
    score_interval: float | None


def evaluate(
    eval_files: PathLike | Sequence[PathLike] | None = None,
    *,
    tests: Iterable[Mapping[str, Any]] | None = None,
    target: Target | Sequence[Target] | None = None,
    graders: Sequence[Grader] | None = None,
    dataset: str = "tests",
    judge_target: str | Mapping[str, Any] | None = None,
    resume: bool = False,
    on_result: OnResult | None = None,
    progress: bool = False,
    notice: Callable[[str], None] = LOGGER.warning,
    **settings: Unpack[EvalKeywords],
) -> Evaluation:
    """Evaluate the tests of eval files, or ``tests``, or both, in a run that can be continued.

    ``tests`` are mappings with the keys that tests have in an eval file; among their graders (``assert``) there may be functions.
    ``graders`` grade all ``tests`` besides; results call these ``dataset``. ``target``: whom they are put to. A function that answers gets
    the prompt, or the whole test in a parameter called ``test``, and returns a text, a record or messages, as those of targets files do. A
    function that grades gets what its parameters name (``answer``, ``expected_output``, ``input``, …), and returns whether the answer
    passes, a score from 0 to 1, or a mapping with a score. Both may be async. ``judge_target``: who judges. ``resume``: continue the run
    ``run_name`` if it is there; functions then have to be the same. ``on_result`` gets each result as soon as it is known. With
    ``progress`` a line for each is printed. ``notice`` gets what a person should know; by default these are warnings of the logger
    ``manyhands``. ``settings`` are the options of ``manyhands eval``.

    Also where an event loop is running, which it then holds up: see ``evaluate_async``. After Ctrl-C, what is in flight is finished, and
    KeyboardInterrupt is raised.

    Raises UserError for whatever can't be used, before anything runs (RunError for a run that can't be continued so); StorageError.
    """
    asked = _Asked(eval_files, tests, target, graders, dataset, judge_target)
    given = {**settings, "resume": resume}
    return perform_here(_call(asked, given, Callables(), _both(on_result, progress), notice))


async def evaluate_async(
    eval_files: PathLike | Sequence[PathLike] | None = None,
    *,
    tests: Iterable[Mapping[str, Any]] | None = None,
    target: Target | Sequence[Target] | None = None,
    graders: Sequence[Grader] | None = None,
    dataset: str = "tests",
    judge_target: str | Mapping[str, Any] | None = None,
    resume: bool = False,
    on_result: OnResult | None = None,
    progress: bool = False,
    notice: Callable[[str], None] = LOGGER.warning,
    **settings: Unpack[EvalKeywords],
) -> Evaluation:
    """As ``evaluate``, on the running event loop, on which async functions run too. Cancelling it leaves a run that can be continued."""
    asked = _Asked(eval_files, tests, target, graders, dataset, judge_target)
    callables, given = Callables(asyncio.get_running_loop()), {**settings, "resume": resume}
    return await perform(_call(asked, given, callables, _both(on_result, progress), notice), Controls())


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is evaluated, as the parameters of ``evaluate`` have it."""

    eval_files: PathLike | Sequence[PathLike] | None
    tests: Iterable[Mapping[str, Any]] | None
    target: Target | Sequence[Target] | None
    graders: Sequence[Grader] | None
    dataset: str
    judge_target: str | Mapping[str, Any] | None


def _call(
    asked: _Asked,
    settings: Mapping[str, Any],
    callables: Callables,
    on_result: OnResult | None,
    notice: Callable[[str], None],
) -> EvalCall:
    """Raises UserError, and TypeError for an argument that there is not."""
    unknown = settings.keys() - {*EvalKeywords.__annotations__, "resume"}
    if unknown:
        raise TypeError(f"evaluate() got an unexpected keyword argument {min(unknown)!r}")
    values = {name: value for name, value in settings.items() if value is not None}
    files = [_file(each) for each in _several(asked.eval_files)]
    sources: dict[Path, Source] = {}
    if asked.tests is not None:
        path = Path.cwd() / NO_FILE
        sources[path] = _source(asked, callables)
        files.append(str(path))
    elif asked.graders is not None:
        raise UserError("graders are those of tests=…; write those of eval files into these")
    if not files:
        raise UserError("give eval_files or tests")
    definitions = _Definitions(callables)
    targets = _several(asked.target)
    if targets:
        places = (_HERE.at("target", *([index] if len(targets) > 1 else [])) for index in range(len(targets)))
        values["target"] = tuple(map(definitions.name, targets, places))
    if asked.judge_target is not None:
        values["judge_target"] = definitions.name(asked.judge_target, _HERE.at("judge_target"))
    with WORDS.errors():
        options = EvalSpec.make({**values, "eval_files": files})
    return EvalCall(options, notice, Given(sources, definitions.inline(), callables.functions), on_result)


def _file(given: Any) -> str:
    if isinstance(given, (str, os.PathLike)):
        return os.fspath(given)
    hint = "; tests are given as tests=…" if isinstance(given, Mapping) else ""
    raise _HERE.at("eval_files").error(f"must be paths of eval files, not {shown(given)}{hint}")


def _several(value: Any) -> list[Any]:
    """One or several of something; none for None."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _source(asked: _Asked, callables: Callables) -> Source:
    """What an eval file with the tests would hold."""
    tests = asked.tests
    if isinstance(tests, (str, Mapping)) or not isinstance(tests, Iterable):
        raise _HERE.at("tests").error(f"must be a list of tests, not {shown(tests)}")
    value: dict[str, Any] = {"dataset": asked.dataset, "tests": callables.plain(list(tests), _HERE.at("tests"))}
    if asked.graders is not None:
        value["assert"] = callables.plain(list(asked.graders), _HERE.at("graders"))
    return Source(value, _HERE)


class _Definitions:
    """The targets that are defined in the call."""

    def __init__(self, callables: Callables) -> None:
        self._callables = callables
        self._found: dict[str, Any] = {}

    def name(self, target: Any, place: Location) -> str:
        """The name of a target, which is defined if need be. Raises UserError."""
        if isinstance(target, str):
            return target
        if isinstance(target, Mapping):
            definition = self._callables.plain({key: each for key, each in target.items() if key != FUNCTION}, place)
            definition |= self._function(target[FUNCTION], place.at(FUNCTION)) if FUNCTION in target else {}
        elif callable(target):
            definition = self._callables.target(target, place)
        else:
            raise place.error(f"must be a target's name, its definition or a function, not {shown(target)}")
        wanted = str(definition.get("name") or definition.get("provider") or "target")
        name = wanted if isinstance(target, Mapping) and "name" in target else free_name(wanted, self._found)
        if name in self._found and self._found[name] != definition:
            raise place.error(f"{shown(name)} is the name of another target too")
        self._found[name] = {**definition, "name": name}
        return name

    def _function(self, function: Any, place: Location) -> dict[str, Any]:
        """The function of a definition: as it is, or named."""
        return {FUNCTION: self._callables.target(function, place)[FUNCTION] if callable(function) else function}

    def inline(self) -> InlineTargets | None:
        return InlineTargets(list(self._found.values()), _HERE.at("target")) if self._found else None


def _both(on_result: OnResult | None, progress: bool) -> OnResult | None:
    """Called with each result; with ``progress``, what prints it as well."""
    if not progress:
        return on_result

    def told(result: TestResult) -> None:
        score = result.status if result.score is None else f"{result.score:.3f}"
        print(
            f"{'✓' if result.passed else '✗'} {one_line(result.test_id or NO_ID)} @ {result.target}  {score}",
            flush=True,
        )
        if on_result is not None:
            on_result(result)

    return told
