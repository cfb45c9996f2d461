"""Graders that several files share: ``- include: NAME``.

A path (with a slash or an ending, relative to the file that names it) is that file; a mere name stands for ``NAME.yaml`` or
``NAME.yml`` in the nearest ``.agentv/templates`` folder, from the file's own folder upwards. The file holds a list of graders, or a
mapping with one under ``assert`` (or ``assertions``, ``evaluators``). Paths within the included graders start, like all others, from the
eval file's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.core.places import Place
from manyhands.core.settings import shown
from manyhands.core.yaml_files import read_yaml
from manyhands.graders.registry import Setup

MOST_DEEP = 10
_TEMPLATES = (".agentv", "templates")
_ENDINGS = (".yaml", ".yml")
_LISTS = ("assert", "assertions", "evaluators")


def included(value: Any, place: Place, setup: Setup) -> tuple[Path, Any, Place]:
    """The file that an entry includes, its list of graders, and that list's place.

    Raises UserError if there is no such file, if it can't be read, or if it includes itself.
    """
    if not isinstance(value, str) or not value.strip():
        raise place.error(f"must be the name of a file with graders, not {shown(value)}")
    path = _path(value.strip(), setup.folder)
    if path is None:
        raise place.error(f"there is no {value}.yaml in a folder {'/'.join(_TEMPLATES)} of this folder or one above it")
    if not path.is_file():
        raise place.error(f"there is no file {path}")
    if path.resolve() in setup.including:
        raise place.error(f"{path} includes itself")
    entries, top = read_yaml(path)
    if isinstance(entries, Mapping):
        name = next((name for name in _LISTS if name in entries), None)
        if name is None:
            raise top.error("must be a list of graders, or a mapping that has one under assert")
        entries, top = entries[name], top.at(name)
    return path.resolve(), entries, top


def _path(value: str, folder: Path) -> Path | None:
    if "/" in value or value.endswith(_ENDINGS):
        return folder / value
    start = folder.resolve()
    places = (parent.joinpath(*_TEMPLATES, value + ending) for parent in (start, *start.parents) for ending in _ENDINGS)
    return next((path for path in places if path.is_file()), None)
