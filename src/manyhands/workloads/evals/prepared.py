"""An evaluation made self-contained: its files read, its targets found, everything checked that can be before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.graders.protocol import PASS_LIMIT
from manyhands.io.locations import Findings, UnknownKeys, problems_error
from manyhands.io.search_paths import SearchPath
from manyhands.processes.templates import NOT_ON_PATH
from manyhands.sandboxes.images.pins import Pins
from manyhands.workloads.evals.evalfile.contents import EvalFile, JudgeNeed, Test
from manyhands.workloads.evals.evalfile.files import find_evals
from manyhands.workloads.evals.evalfile.loading import distinctly_named, load_evals
from manyhands.workloads.evals.evalfile.patterns import id_filter
from manyhands.workloads.evals.evalfile.sources.given import NOTHING, Given
from manyhands.workloads.evals.items import in_turn
from manyhands.workloads.evals.settings import DELAYS, EvalSpec
from manyhands.workloads.evals.targets.checks import (
    Judging,
    TargetCheck,
    check_askable,
    check_chosen,
    tell_of_batches,
    workspace_problems,
)
from manyhands.workloads.evals.targets.choice import Choice, Survey, choose_judges, choose_targets, usual_judge
from manyhands.workloads.evals.targets.definitions import Target, TargetFile, find_targets
from manyhands.workloads.evals.targets.kinds.recorded_sessions import is_transcript
from manyhands.workloads.evals.targets.recorded import open_recorded
from manyhands.workloads.evals.workspaces.modes import container_problem, settled_workspaces

Notices = Callable[[str], None]
DRY = "dry-run"
"""The name of the target that stands in for all with ``--dry-run``."""


@dataclass(frozen=True, slots=True)
class FileTargets:
    """An eval file of a run, and the targets that its tests are evaluated with."""

    path: str
    dataset: str
    """What results call the file."""
    targets: tuple[Target, ...]
    """Those that answer its tests."""
    judges: tuple[Target, ...]
    """Those that its targets, or the settings, name for judging."""
    workers: int | None
    """The maximum concurrency that the file asks for."""
    tests: int
    """How many tests of the file are in the run."""
    others: tuple[str, ...] = ()
    """Ids of its tests that are not in the run, where a target answers all at once."""
    cache: bool = False
    """Whether it asks for answers of earlier runs."""
    cache_path: str | None = None
    """Where it says that they are."""
    threshold: float | None = None
    """The score that passes, if the file has one of its own."""
    fail_on_error: bool = False
    """Whether the first test whose target fails ends the run."""
    in_turn: int = 1
    """How many samples of one test go one after another at most; 1: none do."""
    usual: tuple[str, ...] = ()
    """The names of the targets that answer tests which name none."""
    depends: bool = False
    """Whether tests depend on others."""
    judge_target: str | None = None
    """The name of the target that judges where neither the one that answers nor the settings name one."""

    def to_json(self) -> dict[str, Json]:
        """As a JSON object, without secrets; ``from_json`` takes it back."""
        value: dict[str, Json] = {each.name: getattr(self, each.name) for each in fields(self)}
        value |= {name: [target.to_json() for target in value[name]] for name in ("targets", "judges")}
        value |= {name: list(value[name]) for name in ("others", "usual")}
        if not self.depends:
            del value["depends"]
        if self.judge_target is None:
            del value["judge_target"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FileTargets:
        """What ``to_json`` gave, also in an earlier version, which had fewer fields."""
        given = {each.name: value[each.name] for each in fields(cls) if each.name in value}
        given |= {name: tuple(map(Target.from_json, value[name])) for name in ("targets", "judges")}
        given |= {name: tuple(value.get(name, ())) for name in ("others", "usual")}
        return cls(**given)


@dataclass(frozen=True, slots=True)
class PreparedEval:
    """What a run records as its spec."""

    options: EvalSpec
    files: tuple[FileTargets, ...]
    here: str
    """The folder in which the command was given, for what is looked for from there."""
    pins: Mapping[str, Pins] = field(default_factory=dict)
    """What the images mean in which targets work, by what identifies each target."""
    services: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """What was chosen of services for the tools of targets, by what identifies each target."""

    def to_json(self) -> dict[str, Any]:
        return {
            "options": self.options.recorded(),
            "files": [file.to_json() for file in self.files],
            "here": self.here,
            **({"pins": {name: pins.to_json() for name, pins in self.pins.items()}} if self.pins else {}),
            **({"services": {name: dict(each) for name, each in self.services.items()}} if self.services else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], data_dir: Path) -> PreparedEval:
        """The reverse of ``to_json``; the data folder is wherever the run folder is now."""
        options = EvalSpec.from_record(value["options"], data_dir=str(data_dir))
        pins = {name: Pins.from_json(each) for name, each in value.get("pins", {}).items()}
        files = tuple(FileTargets.from_json(file) for file in value["files"])
        return cls(options, files, value["here"], pins, value.get("services", {}))

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The threshold of each file's tests, but for those that have one of their own: as the settings say, else the file, else the
        default."""
        given = self.options.threshold
        own = (given if given is not None else file.threshold for file in self.files)
        return tuple(PASS_LIMIT if each is None else each for each in own)

    @property
    def threshold(self) -> float:
        """The one that reports state: the files' where they agree, else the default."""
        return self.thresholds[0] if len(set(self.thresholds)) == 1 else PASS_LIMIT

    def judge_of(self, file: int, target: Target) -> Target | None:
        """The target that judges another one's answers: the one that it names, else the run's, else its file's, else itself if it is a
        model."""
        name = target.judge_target or self.options.judge_target or self.files[file].judge_target
        if name is not None:
            return next((judge for judge in self.files[file].judges if judge.name == name), None)
        return target if target.facts.calls_models else None

    def target_of(self, file: int, name: str) -> Target:
        """A target that answers tests of a file."""
        return next(target for target in self.files[file].targets if target.name == name)

    def judges_of(self, file: int, target: Target, needs: Iterable[JudgeNeed]) -> Iterator[Target]:
        """The judges of a target's answers."""
        known = (*self.files[file].judges, *self.files[file].targets)
        for need in needs:
            named = next((judge for judge in known if judge.name == need.target), None)
            judge = self.judge_of(file, target) if need.target is None else named
            if judge is not None:
                yield judge


@dataclass(frozen=True, slots=True)
class LoadedEvals:
    """Eval files with the tests that were chosen, and what is recorded of them."""

    files: tuple[EvalFile, ...]
    prepared: PreparedEval


def load(
    options: EvalSpec,
    environ: Mapping[str, str],
    notices: Notices,
    *,
    around: SearchPath | None = None,
    lacking: dict[str, None] | None = None,
    given: Given = NOTHING,
    usable: bool = True,
) -> LoadedEvals:
    """Read and check everything. ``options`` must be resolved; ``around``: where the command was given, if not in the current folder;
    ``lacking``: takes what keeps the files from being run here although they are right, and otherwise would be raised too; ``given``: in
    Python; ``usable``: whether targets and judges must be usable here, with the keys and programs that they need.

    Raises UserError with one line for each problem: file, line, field.
    """
    findings = Findings(unknown=None if options.strict else UnknownKeys(), lacking=lacking)
    loading = _Loading(options, environ, around or SearchPath.of(Path.cwd()), findings, given, usable=usable)
    try:
        return loading.loaded(notices)
    finally:
        for notice in findings.all_notices():
            notices(notice)


_UNSET = "the environment variable "
_NO_SUCH_TARGET = ("there is no target ", "no target is chosen", "no judge is configured")


def _is_lacking(problem: str, *, own: bool) -> bool:
    """Whether a problem of targets is not the eval file's: a variable that is not set, a program that is not on the path, or a target that
    another targets file may have. ``own``: whether the eval file defines its targets itself."""
    return (
        _UNSET in problem
        or problem.endswith(NOT_ON_PATH)
        or (not own and any(words in problem for words in _NO_SUCH_TARGET))
    )


def chosen(file: EvalFile, options: EvalSpec, given: Given = NOTHING) -> EvalFile:
    """With the tests that the settings choose, or what was given in Python."""
    if given.chosen is not None:
        targets = given.chosen.get(file.path, {})
        tests = (replace(test, targets=tuple(targets[test.id])) for test in file.tests if test.id in targets)
        file = replace(file, tests=tuple(tests))
    everywhere = bool(options.dry_run or options.from_output)
    if not (options.test_id or options.tag is not None or options.exclude_tag or everywhere):
        return file
    fits = id_filter(options.test_id or ())
    tests = (test for test in file.tests if fits(test.id) and _is_tagged(test, options))
    return replace(file, tests=tuple(replace(test, targets=None) if everywhere else test for test in tests))


def _is_tagged(test: Test, options: EvalSpec) -> bool:
    if options.tag is not None and not set(options.tag) & set(test.tags):
        return False
    return not (options.exclude_tag and set(options.exclude_tag) & set(test.tags))


def _chosen_by(options: EvalSpec) -> str:
    """The settings that choose among tests; empty if there are none."""
    return " ".join(
        f"--{name}={','.join(value)}" for name in ("test_id", "tag", "exclude_tag") if (value := getattr(options, name))
    )


def _why_none(options: EvalSpec) -> str:
    chosen = _chosen_by(options)
    return f"{chosen} fits none" if chosen else "the files hold none"


def _with_others(targets: FileTargets, file: EvalFile, whole: EvalFile) -> FileTargets:
    """With the ids of the tests that were not chosen, if a target answers all tests at once."""
    if not any(target.batching or target.facts.one_file_for_all for target in targets.targets):
        return targets
    if file is whole and not whole.invalid:
        return targets
    chosen = {test.id for test in file.tests}
    named = [*(test.id for test in whole.tests), *(each.id for each in whole.invalid if each.id is not None)]
    return replace(targets, others=tuple(dict.fromkeys(each for each in named if each not in chosen)))


class _Loading:
    """Reads eval files, and finds their targets and whether they can be used. ``findings``: what is wrong, and what the person should
    know."""

    def __init__(
        self,
        options: EvalSpec,
        environ: Mapping[str, str],
        around: SearchPath,
        findings: Findings,
        given: Given,
        *,
        usable: bool,
    ) -> None:
        self._given = given
        self._usable = usable
        self._options = options
        self._environ = environ
        self._around = around
        self._check = TargetCheck(around, environ, given.functions)
        self._findings = findings

    def loaded(self, notices: Notices) -> LoadedEvals:
        """The files, with the tests that were chosen and their targets. ``notices``: gets those of single files. Raises UserError."""
        options, around, findings, given = self._options, self._around, self._findings, self._given
        named = [path for path in options.eval_files if Path(path) not in given.sources]
        paths = [*given.sources, *(find_evals(named, around) if named else ())]
        loaded = load_evals(
            paths,
            around,
            notices=notices,
            environ=self._environ,
            skip_invalid=options.skip_invalid,
            version=options.format,
            findings=findings,
            given=given,
            task_env=options.task_env,
            tasks_run=options.asks_targets,
        )
        found = [
            settled_workspaces(each, options.workspace_mode, options.workspace_path, findings)
            for each in distinctly_named(loaded)
        ]
        files = [chosen(file, options, given) for file in found]
        if not any(file.tests or file.invalid for file in files):
            raise UserError("no tests are left: " + _why_none(options))
        before = len(findings.problems)
        settled = [self._file(file, whole) for file, whole in zip(files, found, strict=True)]
        if findings.lacking is not None and not options.targets:
            own = any(file.targets is not None for file in found)
            lacks = [line for line in findings.problems[before:] if _is_lacking(line, own=own)]
            findings.lacking |= dict.fromkeys(lacks)
            findings.problems = [line for line in findings.problems if line not in lacks]
        if findings.problems:
            raise problems_error(list(dict.fromkeys(findings.problems)))
        if not findings.lacking and not any(file.tests or file.invalid for file, _ in settled):
            raise UserError(f"no tests are left: --target={','.join(options.target or ())} fits none")
        prepared = PreparedEval(options, tuple(targets for _, targets in settled), str(around.here))
        return LoadedEvals(tuple(file for file, _ in settled), prepared)

    def _file(self, file: EvalFile, whole: EvalFile) -> tuple[EvalFile, FileTargets]:
        """A file with the tests that targets answer. ``whole``: with those that were not chosen."""
        survey, choice, judges = Survey.of(file.tests), Choice(), tuple[Target, ...]()
        before = len(self._findings.problems)
        with self._findings.catching():
            choice, judges = self._choice(file, survey)
        if file.converses and self._options.regrade is None:
            check_askable(file.tests, choice, self._findings)
        if file.depends and len(self._findings.problems) == before:
            check_chosen(file.tests, whole, choice, _chosen_by(self._options), self._findings)
            if self._options.regrade is None:
                tell_of_batches(file, choice, self._findings)
        if choice.changes(survey):
            tests = tuple(choice.settled(test) for test in file.tests if choice.of(test.targets))
            file = replace(file, tests=tests)
        targets = _file_targets(file, survey, choice, judges, self._options)
        if self._usable and len(self._findings.problems) == before:
            self._check_all(file, survey, choice, targets)
        elif not self._usable:
            for test in file.tests:
                if (problem := container_problem(test)) is not None:
                    self._findings.notice(problem)
        return file, _with_others(targets, file, whole)

    def _choice(self, file: EvalFile, survey: Survey) -> tuple[Choice, tuple[Target, ...]]:
        options, recorded = self._options, tuple[Target, ...]()
        available = find_targets(
            file,
            None if options.targets is None else Path(options.targets),
            self._environ,
            search_path=self._around,
            unknown=self._findings.unknown,
            given=self._given.targets,
        )
        if options.regrade is not None:
            choice, recorded = _recorded_choice(file, options)
        elif options.dry_run or options.from_output:
            stand_in = replace(_stand_in(file, options), judge_target=usual_judge(file, survey, available))
            choice = Choice((stand_in.name,), (stand_in,))
        else:
            choice = choose_targets(file, survey, available, options.target or (), self._findings)
        choice = self._with_judge(choice, available)
        wanted = options.judge_target or file.judge_target
        place = "--judge_target" if options.judge_target else str(file.location.at("judge_target"))
        judges = choose_judges(survey, choice, wanted, available, self._findings, recorded, place)
        return choice, judges

    def _with_judge(self, choice: Choice, available: TargetFile) -> Choice:
        """The choice, with the one judge of all targets, if the settings name it."""
        judge = self._options.grader_target
        if judge is None:
            return choice
        if not available.knows(judge):
            raise UserError(f"--grader_target: {available.unknown(judge)}")
        return replace(choice, targets=tuple(replace(target, judge_target=judge) for target in choice.targets))

    def _check_all(self, file: EvalFile, survey: Survey, choice: Choice, targets: FileTargets) -> None:
        """Raises nothing; ``findings`` has what is wrong."""
        options = self._options
        prepared = PreparedEval(options, (targets,), str(self._around.here))
        judges = {target.name: prepared.judge_of(0, target) for target in targets.targets}
        known = {target.name: target for target in (*targets.targets, *targets.judges)}
        run = not (options.regrade or options.from_output)
        judging = Judging(choice, judges, known, ungraded=options.allow_ungraded, workspaces=run)
        self._findings.problems += [*judging.problems(survey), *workspace_problems(survey, choice, targets.targets)]
        self._findings.problems += [each for each in map(container_problem, file.tests) if each is not None]
        for judge in judging.needed(survey):
            self._check.judging(judge, self._findings)
        for target in targets.targets if options.regrade is None else ():
            self._check.answering(target, self._findings, hooked=survey.hooked, images=survey.images)


def _file_targets(
    file: EvalFile, survey: Survey, choice: Choice, judges: tuple[Target, ...], options: EvalSpec
) -> FileTargets:
    cached, at = bool(file.cache), None if file.cache_path is None else str(file.cache_path)
    return FileTargets(
        str(file.path),
        file.dataset,
        choice.targets,
        judges,
        file.workers,
        len(file.tests),
        cache=cached,
        cache_path=at,
        threshold=file.threshold,
        fail_on_error=bool(file.fail_on_error),
        in_turn=in_turn(survey.trials, options.trials),
        usual=choice.usual,
        depends=file.depends,
        judge_target=file.judge_target,
    )


def _recorded_choice(file: EvalFile, options: EvalSpec) -> tuple[Choice, tuple[Target, ...]]:
    """Those that answered this file's tests in the run that is graded again, and their judges. Raises UserError."""
    folder = regraded_folder(options)
    with closing(open_recorded(folder)) as reader:
        recorded = PreparedEval.from_json(reader.meta("spec"), folder.parent)
    found = next((each for each in recorded.files if each.dataset == file.dataset), None)
    if found is None:
        datasets = ", ".join(each.dataset for each in recorded.files)
        raise UserError(f"{file.path}: run {folder.name} has no dataset {file.dataset!r} (it has {datasets})")
    wanted = options.target
    chosen = tuple(target for target in found.targets if wanted is None or target.name in wanted)
    if not chosen:
        raise UserError(f"--target: run {folder.name} asked {', '.join(target.name for target in found.targets)}")
    names = tuple(target.name for target in chosen)
    usual = tuple(name for name in found.usual if name in names) if found.usual else names
    return Choice(usual, chosen, names), found.judges


def regraded_folder(options: EvalSpec) -> Path:
    """The folder of the run that is graded again: a name in the data folder, or a path."""
    return Path(options.data_dir) / (options.regrade or "")


def _stand_in(file: EvalFile, options: EvalSpec) -> Target:
    settings: dict[str, Json]
    if options.from_output is not None:
        if not Path(options.from_output).is_file():
            raise UserError(f"--from_output: there is no file {options.from_output}")
        kind = "transcript" if is_transcript(Path(options.from_output)) else "replay"
        settings = {"provider": kind, "path": options.from_output}
        name = Path(options.from_output).stem
    else:
        kind, settings, name = "mock", {"provider": "mock", **_delay_keys(options)}, DRY
    return Target(name, kind, settings, file.location, file.folder, file.path)


def _delay_keys(options: EvalSpec) -> dict[str, float]:
    given = zip(("delay_ms", "delay_min_ms", "delay_max_ms"), (getattr(options, name) for name in DELAYS), strict=True)
    return {key: value for key, value in given if value is not None}


def chosen_names(prepared: PreparedEval) -> Sequence[Sequence[str]]:
    """The names of the targets of each file."""
    return [[target.name for target in file.targets] for file in prepared.files]
