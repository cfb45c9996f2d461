"""The settings of the sandboxes of a run."""

from __future__ import annotations

from typing import Annotated

from manyhands.core.settings import (
    Flag,
    Settings,
    Text,
    number,
    optional_number,
    setting,
)
from manyhands.runs.options import TOOLS


class SandboxSettings(Settings):
    """Where tools run, and what they may use there."""

    sandbox: Text = setting(
        "auto",
        "Where tools run: auto (the row's image in a container, else bubblewrap), bubblewrap, or local: this machine, unprotected.",
        group=TOOLS,
        identity=True,
        value="KIND",
    )
    network: Flag = setting(False, "Let sandboxed commands use the network.", group=TOOLS, identity=True)
    sandbox_disk: Annotated[float, number(above=0)] = setting(
        8.0, "GiB that the files of one sandbox may take; see also --min_free.", group=TOOLS
    )
    min_free: Annotated[float | None, optional_number(0)] = setting(
        None,
        "GiB of its disk that a run leaves free: the sandbox that holds most is ended below that. Without it 1, or 2 % of a small disk.",
        group=TOOLS,
    )
