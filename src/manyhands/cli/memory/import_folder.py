"""``manyhands memory import``: a run that can be continued is made of a folder that the original has left."""

from __future__ import annotations

import argparse
from pathlib import Path

from manyhands.cli.arguments import parser
from manyhands.cli.console import notice, out, resume_command
from manyhands.cli.plain import shown_path
from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.tokens import read_token_lengths
from manyhands.workloads.memory.importing import import_run

_DESCRIPTION = (
    "Takes a folder of results of the original's over: what its log holds is not asked again, and the session goes on behind it. The log "
    "must be one that the scheduler follows to its end, with the same wording, filler and way of counting tokens. The original's own files "
    "are kept."
)


def run(argv: list[str]) -> int:
    """Make the run; the exit code."""
    options = _parser().parse_args(argv)
    results = Path(options.results_folder)
    names = ("data_dir", "agent_name", "max_prompt_size", "wording", "filler", "tokenizer", "judge_model", "base_url")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if "agent_name" in given:
        given["agent_name"] = [given["agent_name"]]
    made = import_run(results, given, lengths=_lengths(options, results), notice=notice)
    console = out()
    console.print(
        f"{shown_path(made.folder)}: {made.messages:,} messages of {made.agent} taken over; {made.ended} of {made.tests} tests had ended",
        markup=False,
        soft_wrap=True,
    )
    console.print(f"To go on:  {resume_command(made.folder)}", markup=False, soft_wrap=True)
    return 0


def _lengths(options: argparse.Namespace, results: Path) -> dict[int, int] | None:
    if options.token_lengths is None:
        return None
    every = read_token_lengths(Path(options.token_lengths))
    place = results.absolute()
    name = f"{place.parent.parent.name}/{place.name}"
    if name not in every:
        raise UserError(f"{options.token_lengths}: holds no lengths for {name}")
    return every[name]


def _parser() -> argparse.ArgumentParser:
    result = parser("memory import", _DESCRIPTION)
    result.add_argument("results_folder", metavar="RESULTS_FOLDER", help="tests/RUN/results/AGENT")
    result.add_argument(
        "-a",
        "--agent_name",
        "--agent-name",
        metavar="AGENT",
        help="the agent that goes on; without it as the folder's name says",
    )
    result.add_argument("-m", "--max_prompt_size", "--max-prompt-size", metavar="TOKENS", help="tokens of its context")
    result.add_argument("--wording", metavar="FILE", help="what the benchmark itself said")
    result.add_argument("--filler", metavar="FILE", help="the questions and answers that filler was drawn from")
    result.add_argument("--tokenizer", metavar="NAME", help="how tokens are counted: auto, cl100k, estimate")
    result.add_argument(
        "--token_lengths",
        "--token-lengths",
        metavar="FILE",
        help="token lengths of the log's messages, by the index of the event",
    )
    result.add_argument("--judge_model", "--judge-model", metavar="NAME", help="the model that judges")
    result.add_argument("--base_url", "--base-url", metavar="URL", help="the endpoint of models")
    result.add_argument(
        "--data_dir", "--data-dir", default="data", metavar="FOLDER", help="where runs are (default: data)"
    )
    return result
