"""Building the images of a dataset: what is left where that goes wrong."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from manyhands.core.errors import UserError
from manyhands.sandboxes.images.demand import Build, ImageDemand
from manyhands.sandboxes.images.store import ImageStore
from manyhands.sandboxes.lifecycle.building import built_images


class BrokenStore:
    """Builds nothing. ``error``: what it raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def build(self, folder: Path, *, tag: str, timeout: float, log: Path) -> None:
        log.write_text("began")
        raise self._error


@pytest.mark.parametrize(("error", "kept"), [(RuntimeError("unforeseen"), 0), (UserError("does not build"), 1)])
async def test_the_folder_of_logs_stays_only_where_a_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kept: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    demand = ImageDemand()
    demand.builds["manyhands:a"] = Build(tmp_path / "none", 1.0, "a")
    with pytest.raises((UserError, ExceptionGroup)):
        await built_images("docker", cast(ImageStore, cast(Any, BrokenStore(error))), demand, lambda line: None, None)
    assert len(list(tmp_path.glob("manyhands-*"))) == kept
