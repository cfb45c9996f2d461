"""``manyhands memory describe``: what a configuration's tests are, and how they would be interleaved; nothing is asked or spent."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyhands.cli.arguments import add_data_dir, parser, positive
from manyhands.cli.console import out
from manyhands.cli.options import UsageError
from manyhands.cli.plain import printable, table
from manyhands.core.errors import UserError
from manyhands.core.settings import suggestion
from manyhands.core.text import counted, json_text
from manyhands.core.usage import Usage
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.description import (
    ConversationSettings,
    DatasetDescription,
    Description,
    describe_configuration,
    describe_run,
    expected_cost,
    price_of,
    recorded_settings,
)
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS, ISOLATED, TESTS
from manyhands.workloads.memory.report.words import duration, money
from manyhands.workloads.memory.results.timeline import schedule_text

_DESCRIPTION = (
    "Says what the tests of a configuration or a run are, and how they would be interleaved: a session is simulated with an agent that "
    "remembers nothing and rules in place of a judge. Nothing is asked of a model and nothing is written."
)
_WIDTH = 64


def run(argv: list[str]) -> int:
    """Print the description; the exit code."""
    options = _parser().parse_intermixed_args(argv)
    if (options.run is None) == (options.configuration is None):
        raise UsageError("give a run or --configuration (-c; see manyhands memory describe --help)")
    folder = None if options.run is None else _run_folder(options.run, Path(options.data_dir))
    settings = _settings(options, folder)
    outlook = (
        describe_run(folder, settings) if folder else describe_configuration(Path(options.configuration), settings)
    )
    usage = _cost(options, outlook, settings)
    if options.json:
        print(json_text(_as_json(outlook, usage), indent=2))
    else:
        _print(outlook, options, usage)
    return 0


def _run_folder(name: str, data_dir: Path) -> Path:
    for folder in (Path(name), data_dir / TESTS / name):
        if (folder / DEFINITIONS / CONFIGURATION).is_file():
            return folder
    known = data_dir / TESTS
    runs = sorted(each.name for each in known.iterdir() if each.is_dir()) if known.is_dir() else []
    there = f"runs in {known}: {', '.join(runs[:20])}" if runs else f"there are no runs in {known}"
    raise UserError(f"no run {name!r} with tests{suggestion(name, runs)} ({there})")


def _settings(options: argparse.Namespace, folder: Path | None) -> ConversationSettings:
    """As typed, else as the run has recorded it."""
    recorded: dict[str, Any] = {} if folder is None else recorded_settings(folder)
    names = ("tokenizer", "filler", "wording", "max_message_size")
    typed = {name: value for name in names if (value := getattr(options, name)) is not None}
    apart = options.isolated or (folder is not None and folder.absolute().name.endswith(ISOLATED))
    return ConversationSettings(
        **{**recorded, **typed, "isolated": apart or recorded.get("isolated", False), "limit": options.max_prompt_size}
    )


def _cost(options: argparse.Namespace, outlook: Description, settings: ConversationSettings) -> Usage | None:
    if options.agent_name is None or outlook.session is None:
        return None
    price = price_of(choose_agent(options.agent_name), None if options.prices is None else Path(options.prices))
    return None if price is None else expected_cost(outlook, settings, price)


def _as_json(outlook: Description, usage: Usage | None) -> dict[str, Any]:
    timeline, session = outlook.timeline, outlook.session
    return {
        "run_name": outlook.run_name,
        "memory_span": outlook.memory_span,
        "scoring": outlook.scoring,
        "isolated": outlook.isolated,
        "tokens_counted_by": outlook.counted_by,
        "tokens_are_exact": outlook.counted_exactly,
        "tests": outlook.tests,
        "datasets": [asdict(each) for each in outlook.datasets],
        "schedule": None
        if timeline is None or session is None
        else {
            "simulated": True,
            "tokens": timeline.tokens,
            "filler_tokens": outlook.filler_tokens,
            "fillers": timeline.fillers,
            "messages": session.messages,
            "replies": session.answered,
            "virtual_seconds": timeline.seconds,
            "courses": [asdict(course) for course in timeline.courses],
        },
        "expected_cost": None if usage is None else usage.to_json(),
    }


def _print(outlook: Description, options: argparse.Namespace, usage: Usage | None) -> None:
    lines = [
        f"{outlook.run_name}: {counted(outlook.tests, 'test')} of {counted(len(outlook.datasets), 'dataset')}, memory span "
        f"{outlook.memory_span:,} tokens, {outlook.scoring} scoring rules",
        "",
        *(f"{each.id} ({each.name}): {_short(each.description)}" for each in outlook.datasets),
        "",
        _datasets(outlook.datasets),
    ]
    if outlook.timeline is not None and outlook.session is not None:
        lines += ["", *_schedule(outlook)]
        lines.append(_cost_line(options, usage))
    unwritten = [each for each in outlook.datasets if not each.written]
    if unwritten:
        names = ", ".join(each.id for each in unwritten)
        number = counted(sum(each.tests for each in unwritten), "test")
        lines.append(
            f"A model has to write {number} ({names}), which are not in the schedule: manyhands memory generate has them made."
        )
    for line in lines:
        out().print(printable(line), markup=False, soft_wrap=True)


def _short(text: str) -> str:
    return " ".join(text.split())


def _datasets(datasets: tuple[DatasetDescription, ...]) -> str:
    headings = (
        "dataset",
        "tests",
        "messages",
        "questions",
        "needles",
        "script tokens",
        "time waited",
        "kind",
        "judged by a model",
    )
    rows = [
        (
            each.id,
            str(each.tests),
            *(_whole(value) for value in (each.messages, each.questions, each.needles, each.script_tokens)),
            duration(each.seconds) if each.seconds else "-",
            _kind(each),
            f"{each.judged} of {each.tests}" if each.judged else "-",
        )
        for each in datasets
    ]
    return table(headings, rows, right=headings[1:7])


def _whole(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _kind(each: DatasetDescription) -> str:
    if not each.written:
        return "a model writes them"
    parts = ["script" if each.messages is not None else "dynamic"]
    parts += ["callback"] if each.uses_callback else []
    parts += ["question about time"] if each.is_temporal else []
    return ", ".join(parts)


def _schedule(outlook: Description) -> list[str]:
    timeline, session = outlook.timeline, outlook.session
    assert timeline is not None
    assert session is not None
    about = "" if outlook.counted_exactly else " (estimated: no tokenizer is on this machine)"
    return [
        "Schedule, simulated with an agent that remembers nothing (• message, ? question, ─ waits, ░ filler):",
        *schedule_text(timeline, _WIDTH),
        f"Expected: {timeline.tokens:,} tokens{about} in {counted(session.messages, 'message')}, of these "
        f"{counted(timeline.fillers, 'filler message')} with {outlook.filler_tokens:,} tokens; "
        f"{duration(timeline.seconds)} of virtual time, besides the time that replies take",
    ]


def _cost_line(options: argparse.Namespace, usage: Usage | None) -> str:
    if usage is not None:
        return (
            f"Expected cost of {options.agent_name}: {money(usage.cost)} for {counted(usage.calls, 'call')} with {usage.input_tokens:,} "
            f"tokens in and {usage.output_tokens:,} out, without the judge"
        )
    if options.agent_name is None:
        return "Expected cost: name an agent with a known price, as -a gpt-4o or -a 'cost(0.0025,0.01)'"
    how = "give its prices: -a 'cost(IN,OUT)', US dollars for 1,000 tokens, or --prices"
    return f"Expected cost of {options.agent_name}: not known ({how})"


def _parser() -> argparse.ArgumentParser:
    result = parser("memory describe", _DESCRIPTION)
    result.add_argument("run", metavar="RUN", nargs="?", help="a run's name under DATA/tests, or its folder")
    result.add_argument("-c", "--configuration", metavar="FILE", help="a configuration, whose tests are made for this")
    result.add_argument(
        "-a", "--agent_name", "--agent-name", "--agent", metavar="AGENT", help="the agent whose cost is estimated"
    )
    result.add_argument(
        "-m", "--max_prompt_size", "--max-prompt-size", type=positive, metavar="TOKENS", help="of its context"
    )
    result.add_argument("--prices", metavar="FILE", help="prices per model, used before the built-in table")
    result.add_argument("-i", "--isolated", action="store_true", help="one test after the other, without filler")
    result.add_argument(
        "--tokenizer", metavar="NAME", help="how tokens are counted: auto, cl100k, estimate (default: auto)"
    )
    result.add_argument("--filler", metavar="FILE", help="questions and answers that fill the conversation")
    result.add_argument("--wording", metavar="FILE", help="what the benchmark itself says")
    result.add_argument(
        "--max_message_size",
        "--max-message-size",
        type=positive,
        metavar="TOKENS",
        help="of a message at most (default: 4096)",
    )
    result.add_argument("--json", action="store_true", help="print JSON")
    add_data_dir(result)
    return result
