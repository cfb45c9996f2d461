"""Checks files without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.settings import shown, suggestion
from manyhands.io.findings import Findings
from manyhands.io.search_paths import Surroundings
from manyhands.io.yaml_files import read_yaml
from manyhands.workloads.evals.evalfile.config_file import Config
from manyhands.workloads.evals.evalfile.finding import FileKind, files_below, find_evals, kind_of_file
from manyhands.workloads.evals.evalfile.sources import JSONL_ENDING
from manyhands.workloads.evals.prepared import load
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.targets.definitions import made_target, read_targets


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a file. ``kind``: None if it is of none that is known."""

    path: Path
    kind: FileKind | None
    problems: tuple[str, ...]
    notices: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.problems


def validate(
    paths: Sequence[str],
    options: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str],
    here: Path | None = None,
    root: Path | None = None,
) -> list[Report]:
    """A report on each file, in order; a folder stands for the files of a known kind below it, a pattern for those that fit it.
    ``options``: settings of an evaluation (``EvalSpec``) that choose targets or tests; ``environ``: the real environment.

    What an eval file's report says is what an evaluation of that file with these settings would be refused for.
    Raises UserError for a path, a pattern or a setting that can't be used.
    """
    surroundings = Surroundings.of(here or Path.cwd(), root)
    checking = _Checking(surroundings, environ, options or {})
    return [checking.report(path, kind) for named in paths for path, kind in _files(named, surroundings)]


def _files(named: str, surroundings: Surroundings) -> Iterator[tuple[Path, FileKind | None]]:
    path = surroundings.here / named
    if path.is_dir():
        yield from files_below(path, surroundings)
    else:
        yield from ((found, None) for found in find_evals([named], surroundings))


@dataclass(frozen=True, slots=True)
class _Checking:
    surroundings: Surroundings
    environ: Mapping[str, str]
    options: Mapping[str, object]

    def report(self, path: Path, kind: FileKind | None) -> Report:
        """``kind``: None if it has to be found out."""
        findings = Findings()
        name = self.surroundings.shown(path)
        with findings.catching():
            if kind is None and path.suffix != JSONL_ENDING:
                kind = kind_of_file(path, read_yaml(path, name)[0])
            kind = kind or "eval"
            if kind == "eval":
                self._eval(path, findings)
            elif kind == "targets":
                self._targets(path, name, findings)
            else:
                Config.read(path, self.surroundings)
        return Report(path, kind, tuple(dict.fromkeys(findings.problems)), tuple(findings.notices))

    def _eval(self, path: Path, findings: Findings) -> None:
        options = EvalSpec.make({**self.options, "eval_files": [str(path)]}).resolved()
        load(options, self.environ, findings.notice, around=self.surroundings)

    def _targets(self, path: Path, name: str, findings: Findings) -> None:
        entries = read_targets(path, name)
        for entry in entries.values():
            with findings.catching():
                target = made_target(entry, path.parent, None)
                judge = target.judge_target
                if judge is not None and judge not in entries:
                    hint = suggestion(judge, entries)
                    findings.problem(target.at("judge_target"), f"there is no target {shown(judge)}{hint}")
