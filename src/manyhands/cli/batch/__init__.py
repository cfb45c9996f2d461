"""``manyhands batch``: a dataset of prompts becomes trajectories.

With the dataset as a word (``manyhands batch prompts.jsonl``) it is the short form, see ``cli.batch.short_form``. What executes a batch is
imported when one is executed, because ``--help`` must answer at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from manyhands.cli.main import imported
from manyhands.cli.options import help_text, make, parse
from manyhands.runs.exit_codes import ExitCode
from manyhands.workloads.trajectories.spec import BatchSpec

PROGRAM = "manyhands batch"
DESCRIPTION = (
    "Runs a tool-using agent on each prompt of a dataset, and records its trajectory. A run can be resumed after any crash. "
    f"The short form is {PROGRAM} FILE [OPTIONS]: it needs no other option, keeps trajectories without reasoning, samples no toolsets but "
    "terminal and file, and runs 8 prompts per worker, unless an option says otherwise. With --dataset_file, the required options are "
    "required."
)
SHORT_HELP = f"""\
{PROGRAM} FILE [OPTIONS]

For example:
  {PROGRAM} prompts.jsonl --model NAME         one trajectory for each row's "prompt"
  {PROGRAM} prompts.jsonl --model simulated    the same without a key or a cost

FILE is .jsonl, .json, .csv, .tsv, .parquet or .xlsx, - (standard input), or a Hugging Face dataset folder. The key comes from the
environment (OPENROUTER_API_KEY, …); --base_url URL takes another endpoint. The results are in data/, in a folder named like the file.
{PROGRAM} --help lists all options."""
_DATASET = "dataset_file"
ALIASES = {"prompt_field": "prompt_column", "system_field": "system_column"}
"""Other names of options."""


def run(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    if not argv:
        print(SHORT_HELP, file=sys.stderr)
        return ExitCode.USAGE
    line = parse(BatchSpec, [_present_name(word) for word in argv], PROGRAM, positional=_DATASET)
    if line.help:
        print(help_text(BatchSpec, PROGRAM, DESCRIPTION))
        return 0
    if line.values.get("list_distributions"):
        return _list_distributions(line.values.get("distributions_file"), line.values.get("mcp_config"))
    # A resume without --max_samples is for the whole dataset, so that a run can begin with a few prompts and continue with all.
    values = {"max_samples": None, **line.values}
    if line.has_word:
        short: int = imported("manyhands.cli.batch.short_form").execute(values)
        return short
    code: int = imported("manyhands.cli.batch.executing").execute_batch(make(BatchSpec, values, PROGRAM))
    return code


def _present_name(word: str) -> str:
    """A word of the command line, with another name of an option replaced by its own."""
    name, sign, value = word.partition("=")
    known = ALIASES.get(name.removeprefix("--").replace("-", "_")) if name.startswith("--") else None
    return word if known is None else f"--{known}{sign}{value}"


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
