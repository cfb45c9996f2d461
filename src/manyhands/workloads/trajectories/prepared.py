"""A batch's spec made self-contained: everything that executing it needs, so that the run folder alone is enough to go on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from manyhands.agents.toolbox import outside_record, recorded_registry, with_functions, with_optional
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.sandboxes.images.pins import NO_PINS, Pins
from manyhands.sandboxes.project import checked_project
from manyhands.tools.distributions import STANDARD_DISTRIBUTIONS, Distribution, Distributions, load_distributions_file
from manyhands.tools.services.registry import choose_services
from manyhands.tools.settings import is_source
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import KNOWN_TOOLS, STANDARD, Toolset, Toolsets, known_tools, with_groups
from manyhands.workloads.trajectories.dataset.rows import DatasetScan, HowRead, scan
from manyhands.workloads.trajectories.dataset.source_fields import SourceFields
from manyhands.workloads.trajectories.lines.schema import FIRST_LAYOUT, LAYOUT
from manyhands.workloads.trajectories.spec import BatchSpec


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the run records as its spec."""

    options: BatchSpec
    """The settings, resolved."""
    distribution: Distribution
    """The table to draw from, by value."""
    toolsets: tuple[Toolset, ...]
    """Those of the person's own, by value."""
    tools: tuple[str, ...]
    """All tools that are known to the run, built in or not."""
    source_fields: SourceFields
    """The plan of ``metadata.source`` in the first layout."""
    bad_rows: tuple[tuple[int, str], ...]
    """The first rows of the dataset that can't be used, as (line, reason)."""
    bad_count: int
    """The number of all of them."""
    images: int = 0
    """Rows that name a container image."""
    pins: Pins = NO_PINS
    """What the names of images mean."""
    mcp: Json = None
    """The record of the MCP servers and own functions (``manyhands.agents.toolbox``)."""
    layout: int = LAYOUT
    """The layout of its lines (see ``workloads.trajectories.lines.schema``), which a run keeps."""
    built_in: tuple[str, ...] = KNOWN_TOOLS
    """The built-in and declared tools of the version that made the run."""
    own_systems: int = 0
    """Rows with a system prompt of their own."""
    with_pictures: bool = True
    """Whether pictures in prompts become artifacts: not in runs of a version that took content parts as they are."""
    counts_tags: bool = True
    """Whether lines say how many tags were escaped in them; those of older runs do not."""
    own_messages: int = 0
    """Rows whose conversation begins with messages of theirs."""
    command_fields: tuple[str, ...] = ()
    """Fields that commands name and at least one row has."""
    max_memory: int = 0
    """The most memory that a row asks for, in bytes."""
    max_cpus: float = 0.0
    """The most processors."""
    tasks: int = 0
    """Rows that are task folders."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """The variables of this machine that tasks name, as in ``DatasetScan``."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The members of ``tool_stats``."""
        return self.tools if self.layout == FIRST_LAYOUT else self.built_in

    def how_read(self) -> HowRead:
        """How the rows of the run are read."""
        return self.options.how_read(with_chat=self.with_chat, with_pictures=self.with_pictures)

    @property
    def with_chat(self) -> bool:
        """Whether ``system`` and ``messages`` of a row are used: not in runs of a version that took them for any other field."""
        return self.layout != FIRST_LAYOUT

    def to_json(self) -> dict[str, Any]:
        """The spec as it is recorded."""
        return {
            "options": self.options.recorded(),
            "distribution": {
                "name": self.distribution.name,
                "description": self.distribution.description,
                "toolsets": [[name, percent] for name, percent in self.distribution.toolsets],
            },
            "toolsets": [toolset_json(toolset) for toolset in self.toolsets],
            "tools": list(self.tools),
            "source_fields": self.source_fields.to_json(),
            "bad_rows": [[line, reason] for line, reason in self.bad_rows],
            "bad_count": self.bad_count,
            "images": self.images,
            **({"pins": pins} if (pins := self.pins.to_json()) else {}),
            "mcp": self.mcp,
            **({"tasks": self.tasks, "variables": dict(self.variables)} if self.tasks else {}),
            **({"with_pictures": True} if self.with_pictures else {}),
            **({"counts_tags": True} if self.counts_tags else {}),
            **({} if self.layout == FIRST_LAYOUT else self._later_members()),
        }

    def _later_members(self) -> dict[str, Any]:
        return {
            "layout": self.layout,
            "built_in": list(self.built_in),
            "own_systems": self.own_systems,
            "own_messages": self.own_messages,
            **self._worlds(),
        }

    def _worlds(self) -> dict[str, Any]:
        names = ("command_fields", "max_memory", "max_cpus")
        return {name: list(value) if name == names[0] else value for name in names if (value := getattr(self, name))}

    @classmethod
    def from_json(cls, value: dict[str, Any], data_dir: Path) -> Prepared:
        """The reverse of ``to_json``; the data folder is wherever the run folder is now."""
        table = value["distribution"]
        return cls(
            # A run from before a setting goes on as it began.
            options=BatchSpec.from_record(
                {"tags_in_values": "keep", "ignore_images": value["images"] > 0, **value["options"]},
                data_dir=str(data_dir),
            ),
            distribution=Distribution(
                table["name"], table["description"], tuple((name, percent) for name, percent in table["toolsets"])
            ),
            toolsets=tuple(toolset_from_json(toolset) for toolset in value["toolsets"]),
            tools=tuple(value["tools"]),
            source_fields=SourceFields.from_json(value["source_fields"]),
            bad_rows=tuple((line, reason) for line, reason in value["bad_rows"]),
            bad_count=value["bad_count"],
            images=value["images"],
            pins=Pins.from_json(value.get("pins")),
            mcp=value["mcp"],
            layout=value.get("layout", FIRST_LAYOUT),
            built_in=tuple(value.get("built_in", ())),
            own_systems=value.get("own_systems", 0),
            own_messages=value.get("own_messages", 0),
            with_pictures=value.get("with_pictures", False),
            counts_tags=value.get("counts_tags", False),
            command_fields=tuple(value.get("command_fields", ())),
            max_memory=value.get("max_memory", value.get("most_memory", 0)),  # as earlier versions recorded it
            max_cpus=value.get("max_cpus", value.get("most_cpus", 0.0)),
            tasks=value.get("tasks", 0),
            variables=value.get("variables", {}),
        )


PlanImages = Callable[[ImageDemand], Awaitable[Pins]]
"""Finds out what the images mean that rows name, see ``sandboxes.lifecycle.planning``."""


_OF_DATASET = (
    "source_fields",
    "bad_rows",
    "bad_count",
    "images",
    "pins",
    "own_systems",
    "own_messages",
    "command_fields",
    "max_memory",
    "max_cpus",
    "tasks",
    "variables",
)
"""What is read from the rows of the dataset."""


NAMED_TOOLS = "tools"
"""The distribution of a run that samples none."""


def with_project(options: BatchSpec) -> BatchSpec:
    """The settings with the project's path absolute and without links. Raises UserError for one that can't be used."""
    if options.project is None:
        return options
    return options.changed({"project": str(checked_project(options.project, sandbox=options.sandbox))})


async def prepare(
    options: BatchSpec,
    *,
    recorded: Prepared | None = None,
    made: Prepared | None = None,
    plan_images: PlanImages | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Prepared:
    """Read everything that the settings name. With ``recorded`` (a resume), what an earlier session read from files that are gone
    now is kept. ``made``: the run as it was made, whose layout is kept; None for a new one. ``plan_images``: None looks none up.
    ``environ``: where there may be keys of services.

    Raises UserError for a file that can't be used, and what ``plan_images`` does.
    """
    if recorded is None:
        mcp = await outside_record(options, choose_services(options, environ))
    else:
        mcp = with_functions(recorded.mcp, options.tools or ())
    registry = recorded_registry(mcp)
    distributions, toolsets = tables(options, with_groups(STANDARD, registry), recorded)
    dataset = Path(options.dataset_file)
    gone = recorded is not None and not dataset.exists()
    prepared = Prepared(
        options=options,
        distribution=_named_tools(options, recorded) or distributions.named(options.distribution),
        toolsets=toolsets,
        tools=recorded.tools if recorded is not None else known_tools(registry.names),
        source_fields=SourceFields(),
        bad_rows=(),
        bad_count=0,
        mcp=mcp,
    )
    if made is not None:
        prepared = replace(prepared, layout=made.layout, built_in=made.built_in, with_pictures=made.with_pictures)
    if recorded is not None and gone:
        return replace(prepared, **{name: getattr(recorded, name) for name in _OF_DATASET})
    scanned, pins = await _scanned(options, prepared, plan_images)
    return replace(
        prepared,
        pins=pins,
        source_fields=scanned.fields.build() if prepared.layout == FIRST_LAYOUT else SourceFields(),
        bad_rows=tuple((row.line, row.reason) for row in scanned.bad_rows),
        bad_count=scanned.bad_count,
        images=scanned.images.count(),
        own_systems=scanned.own_systems,
        own_messages=scanned.own_messages,
        command_fields=tuple(sorted(scanned.command_fields)),
        max_memory=scanned.max_memory,
        max_cpus=scanned.max_cpus,
        tasks=scanned.tasks,
        variables=scanned.variables,
    )


def _named_tools(options: BatchSpec, recorded: Prepared | None) -> Distribution | None:
    """The distribution of a run whose toolsets and tools are named by ``--tools`` alone; None if it samples them."""
    if recorded is not None:
        return recorded.distribution if recorded.distribution.name == NAMED_TOOLS else None
    names = [each for each in options.tools or () if not is_source(each)]
    if not names or "distribution" in options.given:
        return None
    return Distribution(
        NAMED_TOOLS, "The toolsets and tools that --tools names.", tuple((name, 100.0) for name in names)
    )


async def _scanned(options: BatchSpec, prepared: Prepared, plan_images: PlanImages | None) -> tuple[DatasetScan, Pins]:
    """What is in the dataset, without the rows whose images are missing: others may come in place of these."""
    how = prepared.how_read()
    scanned = scan(options.dataset_file, **how)
    if plan_images is None:
        return scanned, NO_PINS
    pins = await plan_images(scanned.images)
    missing = set(pins.missing)
    while missing & set(scanned.images.references):
        how["missing_images"] = missing
        scanned = scan(options.dataset_file, **how)
        pins = await plan_images(scanned.images)
        missing |= set(pins.missing)
    return scanned, replace(pins, missing=tuple(sorted(missing)))


def tables(
    options: BatchSpec, toolsets: Toolsets | None = None, recorded: Prepared | None = None
) -> tuple[Distributions, tuple[Toolset, ...]]:
    """The distributions there are, and the toolsets of the person's own. ``toolsets``: those that there are without (None: the
    standard ones and those of plug-ins). Raises UserError naming file, line and field."""
    if options.distributions_file is None:
        return STANDARD_DISTRIBUTIONS, ()
    if toolsets is None:
        toolsets = with_groups(STANDARD, standard_registry())
    if recorded is not None and not Path(options.distributions_file).exists():
        return STANDARD_DISTRIBUTIONS.extended([recorded.distribution]), recorded.toolsets
    toolsets = with_optional(toolsets)
    distributions, extended = load_distributions_file(Path(options.distributions_file), toolsets)
    return distributions, tuple(extended[name] for name in extended if toolsets.get(name) != extended[name])


def dataset_identity(options: BatchSpec, missing_images: Sequence[str] = ()) -> str | None:
    """Changes when the dataset, or how much of it is requested, may have changed; None if the dataset is gone."""
    path = Path(options.dataset_file)
    if not path.exists():
        return None
    state = hashlib.blake2b(digest_size=16, person=b"input")
    chosen = [options.samples, options.max_samples, options.batch_size, options.keep_unknown_tools]
    later = (
        f"{name}={getattr(options, name)}"
        for name in ("prompt_column", "system_column", "id_field", "split", "image_field", "image_template")
        if getattr(options, name)
    )
    missing = (f"missing={name}" for name in missing_images)
    state.update("\0".join(map(str, [*chosen, *later, *missing])).encode())
    if options.reading:
        state.update(repr(options.reading).encode())
    try:
        for file in [path] if path.is_file() else sorted(entry for entry in path.rglob("*") if entry.is_file()):
            state.update(os.fsencode(file.relative_to(path.parent)))
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    state.update(block)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}") from error
    return state.hexdigest()


def toolset_json(toolset: Toolset) -> dict[str, Any]:
    return {
        "name": toolset.name,
        "description": toolset.description,
        "tools": list(toolset.tools),
        "includes": list(toolset.includes),
    }


def toolset_from_json(value: dict[str, Any]) -> Toolset:
    return Toolset(value["name"], value["description"], tuple(value["tools"]), tuple(value["includes"]))
