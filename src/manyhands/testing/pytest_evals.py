"""Eval files as pytest sees them: a collector, its items, and the runs that execute them.

The items of a file that are selected are one run, which is executed beside pytest, as many tests at a time as the file allows; each item
waits for its own result. In a worker of pytest-xdist, which is not told what it will be asked for, each item is a run of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Condition
from typing import Any

import pytest

from manyhands.core.errors import ManyhandsError, UserError
from manyhands.core.text import one_line
from manyhands.io.yaml_files import read_yaml
from manyhands.workloads.evals.evalfile.files import JSONL_ENDING, kind_of_file, sidecars
from manyhands.workloads.evals.evalfile.sources.given import Given
from manyhands.workloads.evals.in_python.evaluation import Evaluation, reasons
from manyhands.workloads.evals.in_python.performing import BackgroundEvaluation, EvalCall
from manyhands.workloads.evals.items import FAILED, PASSED, SKIPPED
from manyhands.workloads.evals.prepared import LoadedEvals, load
from manyhands.workloads.evals.results.result_lines import TestResult
from manyhands.workloads.evals.settings import EvalSpec

_LOOK_SECONDS = 0.2
"""Between looks whether a run has ended without a result that is waited for."""
_END_SECONDS = 60.0
"""For which the end of a session waits for the calls in flight."""
_OPTIONS = ("target", "judge_target", "threshold", "workers", "max_cost")


def is_eval_file(path: Path) -> bool:
    """Whether a file is an eval file, by its name or what is in it."""
    if ".eval." in path.name or path.stem.lower() == "eval":
        return True
    with suppress(UserError):
        if path.suffix == JSONL_ENDING:
            return any(sidecars(path))
        return kind_of_file(path, read_yaml(path)[0]) == "eval"
    return False


class EvalFile(pytest.File):
    """Collects the tests of an eval file. Reading it calls nothing, and needs no keys."""

    def collect(self) -> Iterator[EvalItem]:
        loaded = self._loaded()
        for file in loaded.files:
            targets = [target.name for target in loaded.prepared.files[0].targets]
            for test in file.tests:
                for target in targets if test.targets is None else [name for name in targets if name in test.targets]:
                    name = f"{one_line(test.id, 200)}[{one_line(target, 100)}]".replace("::", ":")
                    item: EvalItem = EvalItem.from_parent(
                        self, name=name, callspec_of=(test.id, target, test.location.line)
                    )
                    item.extra_keyword_matches.update(test.tags)
                    yield item

    def options(self, **more: Any) -> EvalSpec:
        """The settings of a run of the file. Raises UserError."""
        config = self.config
        given = {name: config.getoption(f"manyhands_{name}") for name in _OPTIONS}
        values = {name: value for name, value in given.items() if value is not None}
        if config.getoption("manyhands_dry_run"):
            values["dry_run"] = True
            values.pop("target", None)
        return EvalSpec.make({**values, "eval_files": [str(self.path)], "data_dir": str(data_dir(config)), **more})

    def _loaded(self) -> LoadedEvals:
        notices: list[str] = []
        try:
            return load(self.options().resolved(), os.environ, notices.append, usable=False)
        except UserError as error:
            raise self.CollectError(str(error)) from None


def data_dir(config: pytest.Config) -> Path:
    """Where runs are."""
    named = config.getini("manyhands_data_dir")
    if named:
        return config.rootpath / str(named)
    cache = getattr(config, "cache", None)
    return Path(cache.mkdir("manyhands")) if cache is not None else config.rootpath / "data"


class EvalItem(pytest.Item):
    """A test of an eval file at one target."""

    def __init__(self, *, callspec_of: tuple[str, str, int | None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.test_id, self.target, self.line = callspec_of
        self._result: TestResult | None = None

    def setup(self) -> None:
        """Wait for the result. A test without a score is an error, and no failed test."""
        stash = self.config.stash
        if RUNNING not in stash:
            stash[RUNNING] = RunningEvals(self.config)
        try:
            self._result = result = stash[RUNNING].result(self)
        except ManyhandsError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        for name in ("score", "threshold", "cost_usd", "rerolls"):
            if (value := getattr(result, name)) is not None:
                self.user_properties.append((name, value))
        if result.status == SKIPPED:
            pytest.skip(result.error or SKIPPED)
        if result.status not in (PASSED, FAILED):
            pytest.fail("\n".join(reasons(result)), pytrace=False)

    def runtest(self) -> None:
        assert self._result is not None
        if not self._result.passed:
            pytest.fail("\n".join(reasons(self._result)), pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None if self.line is None else self.line - 1, self.name


class RunningEvals:
    """The runs of a session, each begun when the first of its items is executed."""

    def __init__(self, config: pytest.Config) -> None:
        self._alone = hasattr(config, "workerinput")
        self._runs: dict[str, _Run] = {}

    def result(self, item: EvalItem) -> TestResult:
        """The result of an item. Raises UserError, also if the run ended without it; StorageError."""
        key = item.nodeid if self._alone else item.parent.nodeid if item.parent else ""
        if key not in self._runs:
            same = (each for each in item.session.items if isinstance(each, EvalItem) and each.parent is item.parent)
            self._runs[key] = _Run.begun([item] if self._alone else list(same), alone=self._alone)
        return self._runs[key].result(item)

    def lines(self) -> list[str]:
        """Where results are, and what a person should know, a line each."""
        return [line for run in self._runs.values() for line in run.lines()]

    def close(self) -> None:
        for run in self._runs.values():
            run.close()


RUNNING: pytest.StashKey[RunningEvals] = pytest.StashKey()
"""The evaluations of a session."""


@dataclass
class _Run:
    """A run of the items of a file."""

    of: str
    news: Condition
    results: dict[tuple[str | None, str | None], TestResult]
    notices: list[str]
    work: BackgroundEvaluation
    folder: Path

    @classmethod
    def begun(cls, items: list[EvalItem], *, alone: bool) -> _Run:
        file = items[0].parent
        assert isinstance(file, EvalFile)
        named = file.config.getoption("manyhands_run")
        names = [str(named), _word(file.path.name)] if named else ["pytest", _word(file.path.name), _moment()]
        name = "-".join([*names, *([_word(items[0].name)] if alone else [])])
        options = file.options(run_name=name, **({"resume": True} if named else {}))
        chosen: dict[str, list[str]] = {}
        for item in items:
            chosen.setdefault(item.test_id, []).append(item.target)
        notices: list[str] = []
        news, results = Condition(), dict[tuple[str | None, str | None], TestResult]()

        def told(result: TestResult) -> None:
            with news:
                results[result.test_id, result.target] = result
                news.notify_all()

        call = EvalCall(options, notices.append, Given(chosen={file.path: chosen}), told)
        folder = Path(options.data_dir) / name
        return cls(file.nodeid, news, results, notices, BackgroundEvaluation(call), folder)

    def result(self, item: EvalItem) -> TestResult:
        key = (item.test_id, item.target)
        with self.news:
            while key not in self.results and not self.work.wait(0):
                self.news.wait(_LOOK_SECONDS)
        if key in self.results:
            return self.results[key]
        evaluation = self.work.evaluation()
        found = next((each for each in evaluation if (each.test_id, each.target) == key), None)
        if found is None:
            raise UserError(f"{item.name} is not in the run {self.folder}, which was made of other tests")
        return found

    def lines(self) -> Iterable[str]:
        if self.folder.is_dir():
            yield f"{self.of}: {self.folder}"
        evaluation = self._ended()
        yield from (f"  note: {line}" for line in dict.fromkeys(evaluation.notes if evaluation else self.notices))

    def _ended(self) -> Evaluation | None:
        if not self.work.wait(0):
            return None
        with suppress(Exception):
            return self.work.evaluation()
        return None

    def close(self) -> None:
        if not self.work.wait(0):
            self.work.stop()
            self.work.wait(_END_SECONDS)


def _word(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text)[:80].strip("-.") or "evals"


def _moment() -> str:
    return datetime.now().strftime("%Y%m%d-%H%M%S-%f")
