"""Checks files without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.core.settings import shown
from manyhands.core.text import suggestion
from manyhands.io.locations import Findings, UnknownKeys
from manyhands.io.search_paths import SearchPath, environment
from manyhands.io.yaml_files import read_yaml
from manyhands.workloads.evals.evalfile.files import (
    JSONL_ENDING,
    Config,
    FileKind,
    files_below,
    find_evals,
    kind_of_file,
)
from manyhands.workloads.evals.evalfile.interpolation import has_reference
from manyhands.workloads.evals.evalfile.sources.scripts import SCRIPT_ENDINGS
from manyhands.workloads.evals.prepared import load
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.targets.definitions import Entries, made_target, read_targets
from manyhands.workloads.evals.targets.entries import TargetEntry, followed, is_beyond
from manyhands.workloads.evals.targets.kinds.registry import no_kind


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a file."""

    path: Path
    kind: FileKind | None
    """None if it is of no known kind."""
    problems: tuple[str, ...]
    """A line for each, with its location."""
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

    What an eval file's report says is what an evaluation of that file with these settings would be refused for: what is wrong with the
    file as problems, what only this machine or its targets files lack as notices. With ``strict`` all are problems.
    Raises UserError for a path, a pattern or a setting that can't be used.
    """
    search_path = SearchPath.of(here or Path.cwd(), root)
    checking = _Checking(search_path, environ, options or {})
    return [checking.report(path, kind) for named in paths for path, kind in _files(named, search_path)]


def _files(named: str, search_path: SearchPath) -> Iterator[tuple[Path, FileKind | None]]:
    path = search_path.here / named
    if path.is_dir():
        yield from files_below(path, search_path)
    else:
        yield from ((found, None) for found in find_evals([named], search_path))


@dataclass(frozen=True, slots=True)
class _Checking:
    search_path: SearchPath
    environ: Mapping[str, str]
    options: Mapping[str, object]

    def report(self, path: Path, kind: FileKind | None) -> Report:
        """``kind``: None if it has to be found out."""
        findings = Findings(unknown=None if self.options.get("strict") else UnknownKeys())
        name = self.search_path.shown(path)
        with findings.catching():
            if kind is None and path.suffix not in (JSONL_ENDING, *SCRIPT_ENDINGS):
                kind = kind_of_file(path, read_yaml(path, name)[0])
            kind = kind or "eval"
            if kind == "eval":
                self._eval(path, findings)
            elif kind == "targets":
                self._targets(path, name, findings)
            else:
                Config.read(path, self.search_path, findings)
        return Report(path, kind, tuple(dict.fromkeys(findings.problems)), findings.all_notices())

    def _eval(self, path: Path, findings: Findings) -> None:
        options = EvalSpec.make({**self.options, "eval_files": [str(path)]}).resolved()
        lacking = None if options.strict else dict[str, None]()
        try:
            load(options, self.environ, findings.notice, around=self.search_path, lacking=lacking)
        finally:
            for line in lacking or ():
                findings.notice(f"{line} (which it needs to run)")

    def _targets(self, path: Path, name: str, findings: Findings) -> None:
        entries = read_targets(path, name, findings.unknown)
        for entry in entries.values():
            with findings.catching():
                self._target(entry, entries, path.parent, findings)

    def _target(self, entry: TargetEntry, entries: Entries, folder: Path, findings: Findings) -> None:
        """A target of a targets file. What is wrong only where it is used is a notice."""
        used = entry
        if entry.delegates:
            variables = environment(folder, self.search_path, self.environ)
            try:
                used = followed(entry, entries.get, variables, lambda: f"known: {', '.join(entries)}")
            except UserError as error:
                if not has_reference(entry.value[entry.word("use_target") or ""]):
                    raise
                findings.notice(str(error))
                return
        if is_beyond(used):
            findings.notice(str(no_kind(used.value["provider"], used.location.at("provider"))))
            return
        target = made_target(used, folder, None, environ=self.environ, told=findings)
        judge = target.judge_target
        if judge is not None and judge not in entries:
            findings.notice(
                target.at("judge_target").says(f"there is no target {shown(judge)}{suggestion(judge, entries)}")
            )
