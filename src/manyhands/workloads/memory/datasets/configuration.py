"""The YAML file that says what a benchmark is made of.

::

    config:
      run_name: "My benchmark - 4k"
      incompatibilities: [[names, name_list]]
      scoring: mended              # or published: the rules by which published results were scored
    datasets:
      args: {memory_span: 4000, dataset_examples: 3, seed: 0}
      datasets:
        - name: colours
          args: {colour_changes: 3}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from manyhands.core.errors import UserError
from manyhands.core.text import suggestion
from manyhands.io.keys import plain_problem
from manyhands.io.locations import Location
from manyhands.io.yaml_files import read_yaml

UNIVERSAL = ("memory_span", "dataset_examples", "seed")
"""Arguments of every dataset that are not its own."""
MAX_NAME_BYTES = 100
"""Bytes of a run's name: folders are called by it and an agent's name."""
OLDER = {
    "filler_tokens": "memory_span",
    "filler_tokens_low": "memory_span",
    "filler_tokens_high": "memory_span",
    "pre_question_filler": "memory_span",
}
"""Keys of the first two versions of the format, which this one can't run."""


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """A dataset of a benchmark."""

    id: str
    memory_span: int
    """Tokens over which each of its tests is spread."""
    examples: int
    """The number of its tests."""
    seed: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Those that only this dataset takes."""
    location: Location = field(default_factory=lambda: Location(""))
    """Where it stands in the file."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A benchmark."""

    run_name: str
    datasets: tuple[DatasetEntry, ...]
    incompatibilities: tuple[tuple[str, ...], ...] = ()
    """Groups of datasets; two tests of a group are never under way at once."""
    scoring: Literal["mended", "published"] = "mended"
    debug: bool = False
    text: str = ""
    """The file as it is written."""
    location: Location = field(default_factory=lambda: Location(""), compare=False)
    """Where the file is."""

    @property
    def memory_span(self) -> int:
        """The largest of its datasets, in tokens."""
        return max(entry.memory_span for entry in self.datasets)


_Model = TypeVar("_Model", bound=BaseModel)


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Config(_Block):
    run_name: str = Field(min_length=1)
    debug: bool = False
    incompatibilities: list[list[str]] = Field(default_factory=list)
    scoring: Literal["mended", "published"] = "mended"

    @field_validator("run_name")
    @classmethod
    def _is_folder_name(cls, value: str) -> str:
        if any(mark in value for mark in "/\\\0") or value.strip() in ("", ".", "..") or not value.isprintable():
            raise ValueError("must be usable as the name of a folder")
        if len(value.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"must be at most {MAX_NAME_BYTES} bytes long")
        return value


class _Entry(_Block):
    name: str
    args: dict[str, Any] | None = None


class _Datasets(_Block):
    args: dict[str, Any] | None = None
    datasets: list[_Entry] = Field(min_length=1)


class _File(_Block):
    config: _Config
    datasets: _Datasets


class _Universal(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    memory_span: int = Field(gt=0)
    dataset_examples: int = Field(ge=1)
    seed: int = 0


def read_configuration(path: Path) -> Configuration:
    """Read a configuration. Raises UserError with a line for each problem: file, line, field. (Whether there are datasets of these names,
    and what arguments they take, ``registry`` knows.)"""
    value, location = read_yaml(path)
    found = _checked(_File, value, location)
    entries = tuple(
        _entry(entry, found.datasets.args or {}, location.at("datasets", "datasets", index), location)
        for index, entry in enumerate(found.datasets.datasets)
    )
    names = [entry.id for entry in entries]
    twice = [
        entry.location.at("name").says(f"{entry.id} is named twice")
        for n, entry in enumerate(entries)
        if entry.id in names[:n]
    ]
    if twice:
        raise UserError("\n".join(twice))
    return Configuration(
        found.config.run_name,
        entries,
        tuple(tuple(group) for group in found.config.incompatibilities),
        found.config.scoring,
        found.config.debug,
        path.read_text(encoding="utf-8-sig"),
        location,
    )


def _entry(entry: _Entry, universal: Mapping[str, Any], location: Location, top: Location) -> DatasetEntry:
    arguments = {**universal, **(entry.args or {})}
    where = location.at("args") if entry.args else top.at("datasets", "args")
    older = next((name for name in arguments if name in OLDER), None)
    if older is not None:
        raise where.at(older).error(
            f"is of an older version of the format, which can be scored again but not run; give {OLDER[older]}"
        )
    common = _checked(_Universal, {name: arguments[name] for name in UNIVERSAL if name in arguments}, where)
    own = {name: value for name, value in arguments.items() if name not in UNIVERSAL}
    return DatasetEntry(entry.name, common.memory_span, common.dataset_examples, common.seed, own, location)


def _checked(model: type[_Model], value: Any, location: Location) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UserError("\n".join(_problems(model, error, location))) from None


def _problems(model: type[BaseModel], error: ValidationError, location: Location) -> Sequence[str]:
    lines = []
    for detail in error.errors(include_url=False):
        where = location.at(*detail["loc"])
        match detail["type"]:
            case "extra_forbidden":
                known = [name for each in (model, _Config, _Datasets, _Entry) for name in each.model_fields]
                lines.append(where.says(f"unknown key{suggestion(str(detail['loc'][-1]), known)}"))
            case "missing":
                lines.append(where.says("is required"))
            case _:
                lines.append(where.says(plain_problem(detail)))
    return lines


@dataclass(frozen=True, slots=True)
class RecordedConfiguration:
    """What a configuration of any version of the format says; what is missing or of another shape is left out."""

    memory_span: int | None = None
    """In tokens."""
    seed: int | None = None
    incompatibilities: tuple[frozenset[str], ...] = ()
    datasets: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """The name of each, and the arguments that it alone is given."""


def recorded_configuration(path: Path) -> RecordedConfiguration:
    """The configuration in a run folder, which may be of an older version, or not be there. Raises UserError for a file that is no YAML."""
    content = read_yaml(path, within=path.parent.parent)[0] if path.is_file() else None
    span, seed = (_below(content, "datasets", "args", name) for name in ("memory_span", "seed"))
    return RecordedConfiguration(
        span if isinstance(span, int) else None,
        seed if isinstance(seed, int) else None,
        tuple(
            frozenset(map(str, group))
            for group in _listed(_below(content, "config", "incompatibilities"))
            if isinstance(group, list)
        ),
        tuple(
            (str(entry.get("name")), _named(entry.get("args")))
            for entry in _listed(_below(content, "datasets", "datasets"))
            if isinstance(entry, Mapping)
        ),
    )


def _below(content: Any, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(value: Any) -> dict[str, Any]:
    return {str(name): each for name, each in value.items()} if isinstance(value, Mapping) else {}
