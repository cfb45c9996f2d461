"""The example of an agent in a package of its own, as if it were installed."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.io.plugins import plugins

EXAMPLE = Path(__file__).parents[2] / "examples/own_agent/careful_agent.py"
MODULE = EXAMPLE.stem


@contextmanager
def installed(folder: Path, *entries: str) -> Iterator[None]:
    """``careful``, and further entry points (``name = module:attribute``), in this process and those that it starts meanwhile.
    ``folder``: where the package is put."""
    site = folder / "site"
    information = site / f"{MODULE}-0.1.0.dist-info"
    information.mkdir(parents=True)
    shutil.copy(EXAMPLE, site)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: careful-agent\nVersion: 0.1.0\n")
    lines = ("[manyhands.agents]", f"careful = {MODULE}:careful", *entries)
    (information / "entry_points.txt").write_text("".join(f"{line}\n" for line in lines))
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), path)))
    sys.path.insert(0, str(site))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path
        _forget()


def _forget() -> None:
    sys.modules.pop(MODULE, None)
    importlib.invalidate_caches()
    plugins.cache_clear()
