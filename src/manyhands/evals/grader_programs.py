"""Programs and folders that graders name, at any depth, and that are not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.core.places import Place
from manyhands.evals.programs import missing
from manyhands.graders.composite import AggregatorEntry
from manyhands.graders.config import Members, Placed

_PROGRAMS = ("code_judge", "code_grader")


def missing_programs(placed: Sequence[Placed], folder: Path) -> Iterator[str]:
    """A line, with its place, for each. ``placed``: entries that were checked otherwise; ``folder``: the eval file's."""
    for entry, place in placed:
        if entry["type"] in _PROGRAMS:
            yield from _program(entry, place, folder)
        elif entry["type"] == "composite":
            yield from _composite(entry, place, folder)
        for index, each in enumerate(entry.get("preprocessors") or ()):
            yield from _line(each["command"], place.at("preprocessors", index, "command"), folder)
        prompt = entry.get("prompt")
        if isinstance(prompt, Mapping):
            word = "script" if "script" in prompt else "command"
            yield from _line(prompt[word], place.at("prompt", word), folder)


def aggregator_of(entry: Mapping[str, Any]) -> AggregatorEntry:
    """How a composite that was checked makes one score of its members'."""
    value = entry.get("aggregator", {})
    return AggregatorEntry.model_validate({"type": value} if isinstance(value, str) else value)


def _program(entry: Mapping[str, Any], place: Place, folder: Path) -> Iterator[str]:
    start = folder / (entry.get("cwd") or "")
    if start.is_dir():
        yield from _line(entry["script"], place.at("script"), start)
    else:
        yield place.at("cwd").says(f"there is no folder {start}")


def _composite(entry: Mapping[str, Any], place: Place, folder: Path) -> Iterator[str]:
    members = entry["assert"]
    if isinstance(members, Members):
        yield from missing_programs(members.placed, folder)
    aggregator = aggregator_of(entry)
    if aggregator.type == "code_judge" and aggregator.path is not None:
        yield from _line(aggregator.path, place.at("aggregator", "path"), folder)


def _line(command: str | Sequence[str], place: Place, folder: Path) -> Iterator[str]:
    problem = missing(command, folder)
    if problem is not None:
        yield place.says(problem)
