"""Graders by convention: a program in ``.agentv/assertions``, ``.agentv/graders`` or ``.agentv/judges`` is a kind of its own, named after
its file.

It is looked for from the eval file's folder upwards; the nearest counts. Hyphens and underscores in the name are the same. It is given,
and may answer, what a ``code_grader`` does if it is written with one of AgentV's SDKs, or lies in one of the two folders that are younger
than ``assertions``; else what a ``code_judge`` does. All keys of the entry but ``cwd`` and ``target`` are its ``config``.

========================  ==========================
``.py``                   ``python3 FILE``
``.ts .mts .js .mjs``     ``bun run FILE``, as AgentV does
========================  ==========================
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from manyhands.core.settings import OptionalText
from manyhands.graders.payloads import FIRST, LATER, uses_sdk
from manyhands.graders.programs.code import CodeJudge, target_calls
from manyhands.graders.protocol import Grader
from manyhands.graders.registry import Setup
from manyhands.io.keys import Entry, key, own_keys, read, snake
from manyhands.io.locations import Location

FOLDERS = tuple(Path(".agentv", name) for name in ("assertions", "graders", "judges"))
RUNNERS = {".py": ("python3",), **dict.fromkeys((".ts", ".mts", ".js", ".mjs"), ("bun", "run"))}


class ConventionEntry(Entry):
    """Settings of a grader by convention; every other key goes to the program as ``config``."""

    open: ClassVar[bool] = True
    cwd: OptionalText = key(None, "The folder to run it in, from the eval file's folder, which is the default.")
    target: Annotated[Any, BeforeValidator(target_calls)] = key(
        None, "Whether the program may ask the judge: true, or max_calls with a number of calls."
    )


ENTRY = ConventionEntry


def program_of(name: str, folder: Path, where: Sequence[Path] = FOLDERS) -> Path | None:
    """The program of a kind, for an eval file in a folder; None if there is none. ``where``: the folders that are looked into, the
    nearest first."""
    return next((path for path in _programs(folder, where) if snake(path.stem) == snake(name)), None)


def names_in(folder: Path) -> list[str]:
    """The kinds that there are for an eval file in a folder."""
    return list(dict.fromkeys(path.stem for path in _programs(folder)))


def _programs(folder: Path, where: Sequence[Path] = FOLDERS) -> Iterator[Path]:
    start = folder.absolute()
    for place in (parent / each for parent in (start, *start.parents) for each in where):
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        paths = (place / name for name in names)
        yield from (path for path in paths if path.suffix in RUNNERS and path.is_file())


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError if the program is gone, or for settings that are wrong."""
    settings = read(ConventionEntry, entry, location)
    path = program_of(entry["type"], setup.home)
    if path is None:
        raise location.at("type").error(f"there is no program {entry['type']} in a folder {FOLDERS[0]} any more")
    script = (*RUNNERS[path.suffix], str(path))
    config = own_keys(ConventionEntry, entry) or None
    later = path.parent.name != FOLDERS[0].name or uses_sdk(path)
    contract = LATER if later else FIRST
    return CodeJudge(
        entry["name"], entry["type"], script, settings.cwd, setup.folder, config, settings.target, contract
    )
