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
        "Where tools run: auto (bubblewrap where it is installed), bubblewrap, or local (this machine, unprotected).",
        group=TOOLS,
        identity=True,
        value="KIND",
    )
    network: Flag = setting(False, "Allow network access in the sandbox.", group=TOOLS, identity=True)
    sandbox_disk: Annotated[float, number(above=0)] = setting(
        8.0, "Maximum disk usage of one sandbox in GiB; see also --min_free.", group=TOOLS
    )
    min_free: Annotated[float | None, optional_number(0)] = setting(
        None,
        "Minimum free disk space in GiB: below it the largest sandbox is ended (default: 1, or 2 % of a small disk).",
        group=TOOLS,
    )
    keep_workspaces: Flag = setting(False, "Keep the workspaces of all items.", group=TOOLS)
