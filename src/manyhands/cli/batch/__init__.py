"""``manyhands batch``: a dataset of prompts becomes trajectories.

What executes a batch is imported when one is executed, because ``--help`` must answer at once.
"""

from __future__ import annotations

from pathlib import Path

from manyhands.cli.main import imported
from manyhands.cli.options import help_text, make, parse
from manyhands.workloads.trajectories.spec import BatchSpec

PROGRAM = "manyhands batch"
DESCRIPTION = "Runs a tool-using agent on each prompt of a dataset, and records its trajectory. A run can be resumed after any crash."


def run(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    line = parse(BatchSpec, argv, PROGRAM)
    if line.help:
        print(help_text(BatchSpec, PROGRAM, DESCRIPTION))
        return 0
    if line.values.get("list_distributions"):
        return _list_distributions(line.values.get("distributions_file"), line.values.get("mcp_config"))
    # A resume without --max_samples is for the whole dataset, so that a run can begin with a few prompts and continue with all.
    code: int = imported("manyhands.cli.batch.executing").execute_batch(
        make(BatchSpec, {"max_samples": None, **line.values}, PROGRAM)
    )
    return code


def _list_distributions(distributions_file: str | bool | None, mcp_config: str | bool | None) -> int:
    from manyhands.tools.distributions import format_distributions
    from manyhands.tools.mcp.config import load_mcp_config
    from manyhands.tools.standard import standard_registry
    from manyhands.tools.toolsets import STANDARD, with_groups
    from manyhands.workloads.trajectories.prepared import tables

    options = BatchSpec.unchecked(distributions_file=distributions_file or None)
    toolsets = None
    if mcp_config:  # no server is started: a distributions file only has to know their names
        toolsets = with_groups(STANDARD, standard_registry()).extended(
            load_mcp_config(Path(str(mcp_config))).toolsets()
        )
    print(format_distributions(tables(options, toolsets)[0]))
    return 0
