"""The container images that the rows of a table name: only in the column that the person said, as any other may mean something else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.io.tables.base import Table, at
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.sandboxes.images.templates import RowImages
from manyhands.sandboxes.settings import RowImageSettings
from manyhands.workloads.csv_jobs.rows.planning import JobRow, check_column

Problem = Callable[[Mapping[str, Json]], str | None]
"""Says why a row can't be used."""


def row_images(options: RowImageSettings) -> RowImages | None:
    """Where rows name their images; None if they don't."""
    if options.image_field is None and options.image_template is None:
        return None
    return RowImages.of(options.image_field, options.image_template, fixed=())


def check_image_columns(options: RowImageSettings, headers: Sequence[str]) -> None:
    """Raises UserError for a column that the table does not have."""
    found = row_images(options)
    if found is None:
        return
    for name in found.fields:
        check_column("image_field", name, headers)
    for name, _ in () if found.template is None else found.template.parts:
        check_column("image_template", name, headers)


def image_demand(table: Table, options: RowImageSettings, *, bad_rows: bool) -> ImageDemand:
    """The images of all rows. ``bad_rows``: whether rows that can't be used are left out; otherwise UserError is raised, naming the first
    whose image can't be a name."""
    demand, images = ImageDemand(table.unit), row_images(options)
    headers = table.info.headers
    for line, cells, problem in table.rows():
        if problem is not None or images is None:
            demand.unnamed += problem is None
            continue
        try:
            demand.add(images.image(dict(zip(headers, cells, strict=False))), line)
        except ValueError as error:
            if not bad_rows:
                raise UserError(
                    f"{at(table.path, line, str(error), table.unit)} (on_bad_row=skip leaves such rows out)"
                ) from None
    return demand


def left_demand(rows: Sequence[JobRow], headers: Sequence[str], options: RowImageSettings) -> ImageDemand:
    """The images of rows of a job."""
    demand, images = ImageDemand(), row_images(options)
    for row in rows:
        found = None if images is None else images.image(dict(zip(headers, row.cells, strict=True)))
        demand.add(found, row.line)
    return demand


def image_problem(options: RowImageSettings, missing: Collection[str]) -> Problem | None:
    """What says why a row's image can't be used; None if rows name none. ``missing``: images that do not exist."""
    images = row_images(options)
    if images is None:
        return None

    def problem(row: Mapping[str, Json]) -> str | None:
        try:
            image = images.image(row)
        except ValueError as error:
            return str(error)
        return f"its image {image} does not exist" if image in missing else None

    return problem
