"""The kinds of files of evaluations: which are eval files, sidecars of JSON Lines files, targets files and configuration. The
configuration, ``.agentv/config.yaml``, says which files are guidelines, and which are eval files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.keys import collect
from manyhands.io.locations import Findings, Location, UnknownKeys, problems_error
from manyhands.io.search_paths import SearchPath
from manyhands.io.yaml_files import read_yaml
from manyhands.task_folders.reading import holds_tasks
from manyhands.workloads.evals.evalfile.keys import ConfigBlock, ConfigExecution, EvalBlock
from manyhands.workloads.evals.evalfile.patterns import compiled_glob, is_pattern, matching_files

YAML_ENDINGS = (".yaml", ".yml")
JSONL_ENDING = ".jsonl"
JSON_ENDING, CSV_ENDING = ".json", ".csv"
"""Further endings of files of tests."""
TARGETS_FILES = (
    *("targets.yaml", "targets.yml", ".agentv/targets.yaml", ".agentv/targets.yml"),
    *("agentv-targets.yaml", "agentv-targets.yml", "providers.yaml", "providers.yml"),
    *(".agentv/providers.yaml", ".agentv/providers.yml"),
)
"""What is looked for in each folder, in this order."""
PROVIDERS = "providers"
TARGETS_KEYS = ("targets", PROVIDERS)
"""The keys of a targets file below which its targets may stand."""
CONFIG = Path(".agentv", "config.yaml")
GUIDELINE_PATTERNS = "guideline_patterns"
EVAL_PATTERNS = "eval_patterns"
CONFIG_SCRIPTS = tuple(f"agentv.config.{ending}" for ending in ("ts", "js", "mts", "mjs", "cjs"))
_OWN_FOLDER = CONFIG.parts[0]
_NOT_LOOKED_AT = frozenset(("node_modules", "__pycache__"))
TASK_FOLDERS = "task folders"
"""What stands, in a folder that is a task or holds tasks, for an eval file: there is none of that name."""
FileKind = Literal["eval", "targets", "config"]


# --- Configuration


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns of files, matched against their paths from the root."""

    root: Path
    patterns: tuple[re.Pattern[str], ...] = ()

    def hold(self, path: Path) -> bool:
        """Whether a file (an absolute path) matches one of the patterns."""
        if not self.patterns or not path.is_relative_to(self.root):
            return False
        relative = path.relative_to(self.root).as_posix()
        return any(pattern.fullmatch(relative) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration."""

    guidelines: Patterns
    """Which input files are guidelines; none without a configuration."""
    eval_files: Patterns | None = None
    """Which files of a folder are eval files; None if it does not say."""
    execution: ConfigExecution = field(default_factory=ConfigExecution)
    """Defaults of evaluations."""
    folder: Path | None = None
    """What its paths start from: the folder of ``.agentv``."""

    @classmethod
    def near(cls, folder: Path, search_path: SearchPath, findings: Findings | None = None) -> Config:
        """The nearest configuration from the folder upwards. ``findings``: takes notices and unknown keys. Raises UserError with a line
        for everything that is wrong with it."""
        findings = findings or Findings(unknown=UnknownKeys())
        for each in search_path.upwards(folder):
            for script in (each / name for name in CONFIG_SCRIPTS if (each / name).is_file()):
                findings.notice(
                    f"{search_path.shown(script)}: is not read, as it is a program; {CONFIG} holds what evaluations have by default"
                )
            if (each / CONFIG).is_file():
                return cls.read(each / CONFIG, search_path, findings)
        return cls(Patterns(search_path.root))

    @classmethod
    def read(cls, path: Path, search_path: SearchPath, findings: Findings) -> Config:
        """The configuration of a file. ``findings``: takes notices and unknown keys. Raises UserError with a line for everything that is
        wrong with it."""
        value, location = read_yaml(path, search_path.shown(path))
        root, inner = search_path.root, findings.inner()
        found = collect(ConfigBlock, {} if value is None else value, location, inner)
        if found is None:
            raise problems_error(inner.problems)
        block = found.block
        guidelines, evals = (
            None if given is None else Patterns(root, _read_patterns(given, found.at(name), inner))
            for name, given in ((GUIDELINE_PATTERNS, block.guideline_patterns), (EVAL_PATTERNS, block.eval_patterns))
        )
        if inner.problems:
            raise problems_error(inner.problems)
        if block.hooks is not None and block.hooks.before_session is not None:
            findings.notice(
                found.at("hooks", "before_session").says(
                    "is not run, as nobody typed it; run it before, and put variables that it sets into the environment or .env"
                )
            )
        execution = block.execution or ConfigExecution()
        return cls(guidelines or Patterns(root), evals, execution, path.absolute().parent.parent)


def _read_patterns(value: Any, location: Location, findings: Findings) -> tuple[re.Pattern[str], ...]:
    """The patterns of a list, compiled."""
    if not isinstance(value, (list, type(None))):
        findings.problem(location, f"must be a list of patterns, not {shown(value)}")
        return ()
    found = []
    for index, entry in enumerate(value or ()):
        with findings.catching():
            found.append(_pattern(entry, location.at(index)))
    return tuple(found)


def _pattern(entry: Any, location: Location) -> re.Pattern[str]:
    if not isinstance(entry, str) or not entry.strip():
        raise location.error(f"must be a pattern, not {shown(entry)}")
    try:
        return compiled_glob(entry.strip().removeprefix("./"))
    except ValueError as error:
        raise location.error(str(error)) from None


# --- Kinds of files


def find_evals(arguments: Sequence[str], search_path: SearchPath) -> list[Path]:
    """The eval files that arguments name: files, patterns of files, and folders, which stand for all eval files below them. Each once, in
    order. Raises UserError for what is no file, and for a pattern or folder without eval files."""
    found: list[Path] = []
    for argument in arguments:
        found += _meant(argument, search_path)
    return list(dict.fromkeys(found))


def kind_of_file(path: Path, content: Json) -> FileKind | None:
    """The kind of a YAML file: by its ``$schema``, else its name, else its content; None if it is of none."""
    keys = content if isinstance(content, Mapping) else {}
    schema = keys.get("$schema")
    for kind in ("targets", "config", "eval"):
        if isinstance(schema, str) and kind in schema:
            return kind
    if path.parts[-2:] == CONFIG.parts:
        return "config"
    if any(EvalBlock.key_of(key) == "tests" for key in keys) or "scenarios" in keys:
        return "eval"
    if path.name in {Path(name).name for name in TARGETS_FILES} or any(name in keys for name in TARGETS_KEYS):
        return "targets"
    return "config" if GUIDELINE_PATTERNS in keys or EVAL_PATTERNS in keys else None


def files_below(folder: Path, search_path: SearchPath) -> Iterator[tuple[Path, FileKind]]:
    """All files of a known kind below a folder, by name. Hidden folders are skipped, except ``.agentv``. JSON Lines files count if they
    have a sidecar or end in ``.eval.jsonl``. Where ``.agentv/config.yaml`` has ``eval_patterns``, the eval files are those that match.
    Raises UserError if that file is wrong."""
    chosen = Config.near(folder, search_path).eval_files
    for name, folders, files in os.walk(folder):
        current = Path(name)
        folders[:] = sorted(each for each in folders if _is_looked_at(each))
        for file in sorted(files):
            path = current / file
            kind = _kind(path, chosen)
            if kind is not None and not (current.name == _OWN_FOLDER and kind == "eval"):
                yield path, kind
        if current.name == _OWN_FOLDER:
            folders.clear()


def _is_looked_at(folder: str) -> bool:
    return folder == _OWN_FOLDER or not (folder.startswith(".") or folder in _NOT_LOOKED_AT)


def _kind(path: Path, chosen: Patterns | None) -> FileKind | None:
    """The kind of a file below a folder. ``chosen``: the patterns of eval files, if the configuration has some."""
    if path.suffix not in (*YAML_ENDINGS, JSONL_ENDING):
        return None
    kind = _kind_by_content(path)
    if chosen is None or kind in ("targets", "config"):
        return kind
    return "eval" if chosen.hold(path) and not _is_sidecar(path) else None


def _kind_by_content(path: Path) -> FileKind | None:
    if path.suffix == JSONL_ENDING:
        return "eval" if path.stem.endswith(".eval") or any(sidecars(path)) else None
    try:
        content, _ = read_yaml(path)
    except UserError:
        return kind_of_file(path, None) or ("eval" if path.stem.endswith((".eval", "eval")) else None)
    kind = kind_of_file(path, content)
    return None if kind == "eval" and _is_sidecar(path) else kind


def known_by(path: Path) -> Path:
    """The path by which a person knows an eval file, or the folder of tasks that stands for one."""
    return path.parent if path.name == TASK_FOLDERS else path


def _is_sidecar(path: Path) -> bool:
    return any(lines.is_file() and next(sidecars(lines), None) == path for lines in lines_of(path))


def _meant(argument: str, search_path: SearchPath) -> list[Path]:
    path = search_path.here / argument
    name = search_path.shown(path)
    if path.is_file():
        return [path]
    if path.is_dir() and holds_tasks(path):
        return [path / TASK_FOLDERS]
    if path.is_dir():
        found = [file for file, kind in files_below(path, search_path) if kind == "eval"]
        if not found:
            raise UserError(f"{name}: there are no eval files in this folder")
        return found
    pattern = is_pattern(name) or "[" in name
    try:
        found = matching_files(name, search_path.here) if pattern else []
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    if not found:
        raise UserError(f"{name}: {'no file fits' if pattern else 'there is no such file'}")
    return found


def sidecars(path: Path) -> Iterator[Path]:
    """The files that may hold the keys for all tests of a JSON Lines file, the one that counts first: ``BASE.eval.yaml`` beside it,
    ``BASE.yaml``."""
    names = (path.stem + end + ending for end in (".eval", "") for ending in YAML_ENDINGS)
    return (path.with_name(name) for name in names if path.with_name(name).is_file())


def lines_of(path: Path) -> Iterator[Path]:
    """The JSON Lines files of which a file may be the sidecar."""
    stem = path.stem.removesuffix(".eval")
    return (path.with_name(stem + end + JSONL_ENDING) for end in ("", ".eval"))
