"""``.agentv/config.yaml``: which files are guidelines, and which are eval files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.settings import shown, suggestion
from manyhands.io.findings import Findings, told
from manyhands.io.locations import Place
from manyhands.io.search_paths import Surroundings
from manyhands.io.yaml_files import read_yaml
from manyhands.workloads.evals.evalfile.keys import ASIDE
from manyhands.workloads.evals.evalfile.patterns import compiled_glob

NAMES = (
    *("targets.yaml", "targets.yml", ".agentv/targets.yaml", ".agentv/targets.yml"),
    *("agentv-targets.yaml", "agentv-targets.yml", "providers.yaml", "providers.yml", ".agentv/providers.yaml"),
)
"""What is looked for in each folder, in this order."""


LISTS = ("targets", "providers")


CONFIG = Path(".agentv", "config.yaml")
GUIDELINE_PATTERNS = "guideline_patterns"
EVAL_PATTERNS = "eval_patterns"
_KEYS = ("$schema", GUIDELINE_PATTERNS, EVAL_PATTERNS)


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns of files, tested on their paths from the root."""

    root: Path
    patterns: tuple[re.Pattern[str], ...] = ()

    def hold(self, path: Path) -> bool:
        """Whether a file (its path absolute) fits one."""
        if not self.patterns or not path.is_relative_to(self.root):
            return False
        relative = path.relative_to(self.root).as_posix()
        return any(pattern.fullmatch(relative) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Config:
    """What the file says. ``guidelines``: which input files are guidelines, without the file none; ``eval_files``: which files of a folder
    are eval files, None if it does not say."""

    guidelines: Patterns
    eval_files: Patterns | None = None

    @classmethod
    def near(cls, folder: Path, surroundings: Surroundings) -> Config:
        """The nearest one from the folder upwards. Raises UserError with a line for everything that is wrong with it."""
        places = (each / CONFIG for each in surroundings.upwards(folder))
        path = next((path for path in places if path.is_file()), None)
        if path is None:
            return cls(Patterns(surroundings.root))
        return cls.read(path, surroundings)

    @classmethod
    def read(cls, path: Path, surroundings: Surroundings) -> Config:
        """Raises as ``near``."""
        value, place = read_yaml(path, surroundings.shown(path))
        if value is not None and not isinstance(value, Mapping):
            raise place.error(f"must be a mapping, not {shown(value)}")
        findings, found = Findings(), dict[str, Patterns]()
        for key, entry in (value or {}).items():
            if key in (GUIDELINE_PATTERNS, EVAL_PATTERNS):
                found[key] = Patterns(surroundings.root, _patterns(entry, place.at(key), findings))
            elif key not in _KEYS and not key.startswith(ASIDE):
                findings.problem(place.at(key), f"unknown key{suggestion(key, _KEYS)}")
        if findings.problems:
            raise told(findings.problems)
        return cls(found.get(GUIDELINE_PATTERNS, Patterns(surroundings.root)), found.get(EVAL_PATTERNS))


def _patterns(value: Any, place: Place, findings: Findings) -> tuple[re.Pattern[str], ...]:
    """A list of patterns, ready."""
    if not isinstance(value, (list, type(None))):
        findings.problem(place, f"must be a list of patterns, not {shown(value)}")
        return ()
    found = []
    for index, entry in enumerate(value or ()):
        with findings.catching():
            found.append(_pattern(entry, place.at(index)))
    return tuple(found)


def _pattern(entry: Any, place: Place) -> re.Pattern[str]:
    if not isinstance(entry, str) or not entry.strip():
        raise place.error(f"must be a pattern, not {shown(entry)}")
    try:
        return compiled_glob(entry.strip().removeprefix("./"))
    except ValueError as error:
        raise place.error(str(error)) from None
