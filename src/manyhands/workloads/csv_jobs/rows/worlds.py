"""What the rows of a table say about the sandboxes of their agents: only in columns that the person named, as any other may mean something
else."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from manyhands.agents.options import AgentOptions
from manyhands.agents.worlds.furnishing import Furnished, Furnishing
from manyhands.agents.worlds.row_fields import RowFields, fields_named
from manyhands.agents.worlds.settings import COLUMNS
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.io.tables.base import Table, at
from manyhands.workloads.csv_jobs.rows.export import Leaf
from manyhands.workloads.csv_jobs.rows.images import Problem, image_problem, row_images
from manyhands.workloads.csv_jobs.rows.planning import check_column

COLLECTED = "collected"
"""In a row's record: what the job's command gave at the end."""
COLLECTED_COLUMNS = (
    Leaf((COLLECTED, "output"), "string", COLLECTED, recorded=True),
    Leaf((COLLECTED, "problem"), "string", f"{COLLECTED}_problem", recorded=True),
)
"""The columns of results that hold it."""


def check_world_columns(options: AgentOptions, headers: Sequence[str]) -> None:
    """Raises UserError for a column that the table does not have."""
    for name in COLUMNS:
        if (column := getattr(options, name)) is not None:
            check_column(name, column, headers)


def row_problem(options: AgentOptions, missing_images: Collection[str]) -> Problem | None:
    """What says why a row's image can't be used, or something else that it says of its sandbox; None if rows say nothing of that."""
    image, fields = image_problem(options, missing_images), RowFields.of(options)
    if not fields.names:
        return image

    def problem(row: Mapping[str, Json]) -> str | None:
        try:
            fields.read(row)
        except ValueError as error:
            return str(error)
        return None if image is None else image(row)

    return problem


def check_rows(table: Table, options: AgentOptions) -> None:
    """Raises UserError, naming the first row that says something of its sandbox that can't be used."""
    fields, headers = RowFields.of(options), table.info.headers
    if not fields.names:
        return
    for line, cells, problem in table.rows():
        if problem is not None:
            continue
        try:
            fields.read(dict(zip(headers, cells, strict=False)))
        except ValueError as error:
            said = f"{at(table.path, line, str(error), table.unit)} (on_bad_row=skip leaves such rows out)"
            raise UserError(said) from None


class RowWorlds:
    """What the rows of a job get."""

    def __init__(self, options: AgentOptions, furnishing: Furnishing) -> None:
        self._furnishing = furnishing
        self._images = None if options.ignore_images else row_images(options)
        self._fields = RowFields.of(options)
        self._named = fields_named(options.setup, options.collect)

    @property
    def needs_sandbox(self) -> bool:
        """Whether rows may need a sandbox whatever their agents do."""
        fields = self._fields
        return self._furnishing.needs_sandbox or fields.files is not None or fields.setup is not None

    def furnished(self, row: Mapping[str, Json], columns: Mapping[str, Json]) -> Furnished:
        """What one row gets. ``columns``: what commands may name: its cells, and the values of its earlier stages. Raises
        ItemError(INVALID_INPUT)."""
        try:
            world = self._fields.read(row)
            world.image = None if self._images is None else self._images.image(row)
        except ValueError as error:
            raise ItemError(Cause.INVALID_INPUT, str(error)) from error
        return self._furnishing.for_item(world, {name: columns[name] for name in self._named if name in columns})
