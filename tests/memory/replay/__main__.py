"""``python -m tests.memory.replay LOG_DIR``: whether the scheduler does what the log of a session shows, event for event.

Feeds the replies of the log to the scheduler and compares what happens: each event's type, test, message, tokens and time, and at the end
the counters and the state of the filler's generator. LOG_DIR is ``results/AGENT`` of a run, ours or one of the GoodAI LTM Benchmark's.
Exit code: 0 only if all of it agrees, 1 at the first difference (both sides are shown), 2 if something can't be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.filler import builtin_facts, default_wording, read_facts, read_wording
from manyhands.workloads.memory.conversation.tokens import TokenCounter, counter_named
from manyhands.workloads.memory.datasets.base import BaseDataset, Rules
from manyhands.workloads.memory.datasets.registry import class_named, made_of, reset_messages
from tests.memory.replay.result import ReplayResult
from tests.memory.replay.session import read_token_lengths, replay


def main(argv: Sequence[str]) -> int:
    """Print what was found; the exit code."""
    options = _parser().parse_args(argv)
    try:
        result = replayed(options)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(asdict(result), default=str, indent=2))
    else:
        print(*_lines(result), sep="\n")
    return 0 if result.is_exact else 1


def replayed(options: argparse.Namespace) -> ReplayResult:
    """What the command line orders. Raises UserError."""
    folder = Path(options.log_dir)
    return replay(
        folder,
        filler=builtin_facts() if options.filler is None else read_facts(Path(options.filler)),
        wording=default_wording(reset_messages()) if options.wording is None else read_wording(Path(options.wording)),
        token_lengths=_lengths(options, folder),
        dataset_of=lambda name: _dataset(name, "published"),
        or_else=lambda name: _dataset(name, "mended"),
        max_message_size=options.max_message_size,
    )


def _lengths(options: argparse.Namespace, folder: Path) -> dict[int, int] | TokenCounter | None:
    if options.token_lengths is None:
        return counter_named(options.tokenizer)
    every = read_token_lengths(Path(options.token_lengths))
    place = folder.absolute()
    name = f"{place.parent.parent.name}/{place.name}"
    if name not in every:
        said = f"{options.token_lengths} holds no lengths for {name}: they are estimated, so that a published log will differ"
        print(said, file=sys.stderr)
    return every.get(name)


def _dataset(name: str, scoring: Rules) -> BaseDataset | None:
    """With the rules that callbacks and questions about time follow."""
    try:
        return made_of(class_named(name), None, scoring)
    except UserError:
        return None


def _lines(result: ReplayResult) -> list[str]:
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
    lines += result.notes
    if result.difference is not None:
        lines.append(f"first difference: {result.difference}")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.memory.replay", description=__doc__)
    parser.add_argument("log_dir", metavar="LOG_DIR", help="data/tests/RUN/results/AGENT")
    parser.add_argument("--filler", metavar="FILE", help="questions and answers that filler was drawn from")
    parser.add_argument("--wording", metavar="FILE", help="the benchmark's own messages")
    lengths = "token lengths of the log's messages, by the index of the event"
    parser.add_argument("--token_lengths", "--token-lengths", metavar="FILE", help=lengths)
    tokenizer = "token counter otherwise: auto, cl100k, estimate (default: auto)"
    parser.add_argument("--tokenizer", default="auto", metavar="NAME", help=tokenizer)
    size = "maximum tokens of a filler message (default: 4096)"
    parser.add_argument("--max_message_size", "--max-message-size", type=int, default=4096, metavar="N", help=size)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
