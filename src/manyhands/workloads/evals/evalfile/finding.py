"""Which of a person's files are eval files, targets files and configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.io.search_paths import Surroundings
from manyhands.io.yaml_files import read_yaml
from manyhands.workloads.evals.evalfile.config_file import (
    CONFIG,
    EVAL_PATTERNS,
    GUIDELINE_PATTERNS,
    LISTS,
    NAMES,
    Config,
    Patterns,
)
from manyhands.workloads.evals.evalfile.keys import EvalBlock
from manyhands.workloads.evals.evalfile.loading import lines_of, sidecar_of
from manyhands.workloads.evals.evalfile.patterns import is_pattern, matching_files
from manyhands.workloads.evals.evalfile.sources import JSONL_ENDING, YAML_ENDINGS

FileKind = Literal["eval", "targets", "config"]
_OWN_FOLDER = CONFIG.parts[0]
_NOT_LOOKED_AT = frozenset(("node_modules", "__pycache__"))


def find_evals(arguments: Sequence[str], surroundings: Surroundings) -> list[Path]:
    """The eval files that a person means: files, patterns of files, and folders, in which all eval files are meant. Each once, in
    order. Raises UserError for what is no file, and for a pattern or folder without eval files."""
    found: list[Path] = []
    for argument in arguments:
        found += _meant(argument, surroundings)
    return list(dict.fromkeys(found))


def kind_of_file(path: Path, content: Json) -> FileKind | None:
    """What a YAML file is: by its ``$schema``, else its name, else what is in it; None if it is none of these."""
    keys = content if isinstance(content, Mapping) else {}
    schema = keys.get("$schema")
    for kind in ("targets", "config", "eval"):
        if isinstance(schema, str) and kind in schema:
            return kind
    if path.parts[-2:] == CONFIG.parts:
        return "config"
    if any(EvalBlock.key_of(key) == "tests" for key in keys):
        return "eval"
    if path.name in {Path(name).name for name in NAMES} or any(name in keys for name in LISTS):
        return "targets"
    return "config" if GUIDELINE_PATTERNS in keys or EVAL_PATTERNS in keys else None


def files_below(folder: Path, surroundings: Surroundings) -> Iterator[tuple[Path, FileKind]]:
    """All files of a known kind in a folder and those in it, by name. Hidden folders are passed over, but for what ``.agentv`` holds; of
    JSON Lines files those count that have a sidecar, or ``.eval.jsonl`` as their ending. Where ``.agentv/config.yaml`` has
    ``eval_patterns``, eval files are those that fit them. Raises UserError if that file is wrong."""
    chosen = Config.near(folder, surroundings).eval_files
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
    """``chosen``: what eval files are, if the configuration says so."""
    if path.suffix not in (*YAML_ENDINGS, JSONL_ENDING):
        return None
    kind = _kind_by_content(path)
    if chosen is None or kind in ("targets", "config"):
        return kind
    return "eval" if chosen.hold(path) and not _is_sidecar(path) else None


def _kind_by_content(path: Path) -> FileKind | None:
    if path.suffix == JSONL_ENDING:
        return "eval" if path.stem.endswith(".eval") or sidecar_of(path) is not None else None
    try:
        content, _ = read_yaml(path)
    except UserError:
        return kind_of_file(path, None) or ("eval" if path.stem.endswith((".eval", "eval")) else None)
    kind = kind_of_file(path, content)
    return None if kind == "eval" and _is_sidecar(path) else kind


def _is_sidecar(path: Path) -> bool:
    return any(lines.is_file() and sidecar_of(lines) == path for lines in lines_of(path))


def _meant(argument: str, surroundings: Surroundings) -> list[Path]:
    path = surroundings.here / argument
    name = surroundings.shown(path)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [file for file, kind in files_below(path, surroundings) if kind == "eval"]
        if not found:
            raise UserError(f"{name}: there are no eval files in this folder")
        return found
    pattern = is_pattern(name) or "[" in name
    try:
        found = matching_files(name, surroundings.here) if pattern else []
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    if not found:
        raise UserError(f"{name}: {'no file fits' if pattern else 'there is no such file'}")
    return found
