"""``manyhands memory replay``: whether the scheduler does what the log of a session shows, event for event."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from manyhands.cli.arguments import parser
from manyhands.cli.console import notice, out
from manyhands.cli.plain import one_line
from manyhands.core.errors import UserError
from manyhands.core.text import json_text
from manyhands.workloads.memory.conversation.filler import builtin_facts, read_facts
from manyhands.workloads.memory.conversation.tokens import TokenCounter, counter_named, read_token_lengths
from manyhands.workloads.memory.conversation.wording import default_wording, read_wording
from manyhands.workloads.memory.datasets.base import BaseDataset, Rules
from manyhands.workloads.memory.datasets.registry import class_named, made_of
from manyhands.workloads.memory.replay_model import ReplayResult
from manyhands.workloads.memory.replaying import replay

_DESCRIPTION = (
    "Feeds the replies of a session's log to the scheduler and compares what happens: each event's type, test, message, tokens and time, "
    "and at the end the counters and the state of the filler's generator. RESULTS_FOLDER is results/AGENT of a run, ours or the "
    "original's. Exit code: 0 only if all of it agrees, 1 at the first difference (both sides are shown), 2 if something can't be read."
)


def run(argv: list[str]) -> int:
    """Print what was found; the exit code."""
    options = _parser().parse_args(argv)
    folder = Path(options.results_folder)
    result = replay(
        folder,
        filler=builtin_facts() if options.filler is None else read_facts(Path(options.filler)),
        wording=default_wording() if options.wording is None else read_wording(Path(options.wording)),
        token_lengths=_lengths(options, folder),
        dataset_of=lambda name: _dataset(name, "published"),
        or_else=lambda name: _dataset(name, "mended"),
        max_message_size=options.max_message_size,
    )
    if options.json:
        print(json_text(json.loads(json.dumps(asdict(result), default=str)), indent=2))
    else:
        _print(result)
    return 0 if result.is_exact else 1


def _lengths(options: argparse.Namespace, folder: Path) -> dict[int, int] | TokenCounter | None:
    if options.token_lengths is None:
        return counter_named(options.tokenizer)
    every = read_token_lengths(Path(options.token_lengths))
    place = folder.absolute()
    name = f"{place.parent.parent.name}/{place.name}"
    if name not in every:
        notice(
            f"{options.token_lengths} holds no lengths for {name}: they are estimated, so that a published log will differ"
        )
    return every.get(name)


def _dataset(name: str, scoring: Rules) -> BaseDataset | None:
    """With the rules that callbacks and questions about time follow."""
    try:
        return made_of(class_named(name), None, scoring)
    except UserError:
        return None


def _print(result: ReplayResult) -> None:
    console = out()
    lines = [
        f"{result.verdict}: {result.agreeing:,} of {result.events:,} events agree",
        f"tokens: {result.counters.total_tokens:,}, of these {result.counters.agent_tokens:,} of the agent "
        f"(counted by {result.token_counter})",
        f"filler messages: {result.fillers}, of these {result.other_fillers} with other content",
    ]
    if result.resumes:
        lines.append(f"resumed {result.resumes} times, which lost {result.tokens_lost:,} tokens")
    if not result.is_complete:
        lines.append("the log ends before all tests do")
    for line in (*lines, *result.notes):
        console.print(line, markup=False, soft_wrap=True)
    if result.verdict == "consistent":
        console.print("no exact match can be shown for this older format (exit code 1)", markup=False)
    if result.difference is not None:
        console.print(one_line(f"first difference: {result.difference}"), markup=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    result = parser("memory replay", _DESCRIPTION)
    result.add_argument("results_folder", metavar="RESULTS_FOLDER", help="data/tests/RUN/results/AGENT")
    result.add_argument("--filler", metavar="FILE", help="the questions and answers that filler was drawn from")
    result.add_argument("--wording", metavar="FILE", help="what the benchmark itself said")
    result.add_argument(
        "--token_lengths",
        "--token-lengths",
        metavar="FILE",
        help="token lengths of the log's messages, by the index of the event",
    )
    result.add_argument(
        "--tokenizer",
        default="auto",
        metavar="NAME",
        help="how tokens are counted otherwise: auto, cl100k, estimate (default: auto)",
    )
    result.add_argument(
        "--max_message_size",
        "--max-message-size",
        type=int,
        default=4096,
        metavar="TOKENS",
        help="of a filler message at most (default: 4096)",
    )
    result.add_argument("--json", action="store_true", help="print JSON")
    return result
