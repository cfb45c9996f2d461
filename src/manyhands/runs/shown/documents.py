"""Documents of sections, for commands and workloads that write them as one of several formats; what writes them is imported only then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO

from manyhands.engine.contract import import_attribute
from manyhands.runs.shown.blocks import Section

_WRITER = "manyhands.view.static.document:write_document"


def write_document(handle: BinaryIO, title: str, sections: Iterable[Section], *, about: Sequence[str] = ()) -> None:
    """Write sections as one HTML file that needs nothing else, streamed. ``about``: lines below the title."""
    import_attribute(_WRITER)(handle, title, sections, about=about)
