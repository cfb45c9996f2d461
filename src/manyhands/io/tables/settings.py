"""How a table is read: the settings of everything that reads tables."""

from __future__ import annotations

from typing import Annotated, Any

from manyhands.core.settings import OptionalText, Settings, optional_whole, setting

TABLE = "Table"
"""Their heading."""


class ReadingSettings(Settings):
    """What is otherwise found by looking at the table."""

    encoding: OptionalText = setting(
        None,
        "Encoding of a text table (default: from the byte order mark, else UTF-8).",
        group=TABLE,
        identity=True,
        value="NAME",
    )
    delimiter: OptionalText = setting(
        None,
        "Delimiter of a CSV table, such as ';' or tab (default: detected).",
        group=TABLE,
        identity=True,
        value="CHARACTER",
    )
    header_row: Annotated[int | None, optional_whole(1)] = setting(
        None,
        "Line of a CSV table, or row of a sheet, with the column names (default: the first below any titles).",
        group=TABLE,
        identity=True,
    )
    sheet: OptionalText = setting(
        None, "Sheet of an .xlsx file (default: the first).", group=TABLE, identity=True, value="NAME"
    )

    @property
    def reading(self) -> dict[str, Any]:
        """Those that are set, by name."""
        return {name: value for name in ReadingSettings.fields if (value := getattr(self, name)) is not None}
