"""``manyhands memory describe`` and ``generate``: the tests of a configuration, without running them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from manyhands.cli.console import notice, out, print_usage
from manyhands.cli.execution import execute, print_ending, tell_end
from manyhands.cli.memory.running import spelled
from manyhands.cli.options import UsageError, help_text, make, parse
from manyhands.cli.plain import add_data_dir, parser, positive, shown_path, table
from manyhands.cli.resume import refuse_options
from manyhands.core.text import counted, json_text
from manyhands.core.usage import Usage
from manyhands.runs.making import Opened
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.datasets.benchmark import read_definitions
from manyhands.workloads.memory.description import (
    DatasetDescription,
    Description,
    ScheduleSettings,
    describe_configuration,
    describe_run,
    description_json,
    expected_cost,
    price_of,
    schedule_settings,
)
from manyhands.workloads.memory.folders import CONFIGURATION, find_memory_run
from manyhands.workloads.memory.generation import GenerationWorkload, generated_tests, reopen_generation
from manyhands.workloads.memory.report.formatting import duration, money
from manyhands.workloads.memory.results.timeline import schedule_text
from manyhands.workloads.memory.settings import GenerationSpec

_DESCRIBE = (
    "Describes the tests of a configuration or a run, and how they are interleaved: a conversation is simulated with an agent that "
    "remembers nothing, judged by rules. No model is called and nothing is written."
)
_WIDTH = 64


def describe(argv: list[str]) -> int:
    """Print the description; the exit code."""
    options = _parser().parse_intermixed_args(argv)
    if (options.run is None) == (options.configuration is None):
        raise UsageError("give a run or --configuration (-c; see manyhands memory describe --help)")
    folder = None if options.run is None else find_memory_run(options.run, Path(options.data_dir), with_tests=True)
    settings = _settings(options, folder)
    description = (
        describe_run(folder, settings) if folder else describe_configuration(Path(options.configuration), settings)
    )
    usage = _cost(options, description, settings)
    if options.json:
        print(json_text(description_json(description, usage), indent=2))
    else:
        _print(description, options, usage)
    return 0


def _settings(options: argparse.Namespace, folder: Path | None) -> ScheduleSettings:
    names = ("tokenizer", "filler", "wording", "max_message_size")
    typed = {name: value for name in names if (value := getattr(options, name)) is not None}
    return schedule_settings(folder, {**typed, "limit": options.max_prompt_size}, isolated=options.isolated)


def _cost(options: argparse.Namespace, description: Description, settings: ScheduleSettings) -> Usage | None:
    if options.agent_name is None or description.conversation is None:
        return None
    price = price_of(choose_agent(options.agent_name), None if options.prices is None else Path(options.prices))
    return None if price is None else expected_cost(description, settings, price)


def _print(description: Description, options: argparse.Namespace, usage: Usage | None) -> None:
    configuration = description.benchmark.configuration
    lines = [
        f"{configuration.run_name}: {counted(description.tests, 'test')} of {counted(len(description.datasets), 'dataset')}, memory span "
        f"{configuration.memory_span:,} tokens, {configuration.scoring} scoring rules",
        "",
        *(f"{each.id} ({each.name}): {_short(each.description)}" for each in description.datasets),
        "",
        _datasets(description.datasets),
    ]
    if description.timeline is not None and description.conversation is not None:
        lines += ["", *_schedule(description)]
        lines.append(_cost_line(options, usage))
    unwritten = [each for each in description.datasets if not each.written]
    if unwritten:
        names = ", ".join(each.id for each in unwritten)
        number = counted(sum(each.tests for each in unwritten), "test")
        lines.append(
            f"A model has to write {number} ({names}), which are not in the schedule: run manyhands memory generate."
        )
    for line in lines:
        out().print_line(line)


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


def _schedule(description: Description) -> list[str]:
    timeline, conversation = description.timeline, description.conversation
    assert timeline is not None
    assert conversation is not None
    about = "" if description.benchmark.tokens.exact else " (estimated: no tokenizer is on this machine)"
    return [
        "Schedule, simulated with an agent that remembers nothing (• message, ? question, ─ waits, ░ filler):",
        *schedule_text(timeline, _WIDTH),
        f"Expected: {timeline.tokens:,} tokens{about} in {counted(conversation.messages, 'message')}, of these "
        f"{counted(timeline.fillers, 'filler message')} with {description.filler_tokens:,} tokens; "
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
    result = parser("memory describe", _DESCRIBE)
    result.add_argument("run", metavar="RUN", nargs="?", help="a run's name under DATA/tests, or its folder")
    result.add_argument("-c", "--configuration", metavar="FILE", help="configuration file")
    result.add_argument(
        "-a", "--agent_name", "--agent-name", "--agent", metavar="AGENT", help="agent whose cost is estimated"
    )
    result.add_argument(
        "-m",
        "--max_prompt_size",
        "--max-prompt-size",
        type=positive,
        metavar="TOKENS",
        help="context size of the agent",
    )
    result.add_argument("--prices", metavar="FILE", help="prices per model, used before the built-in table")
    result.add_argument("-i", "--isolated", action="store_true", help="run one test after the other, without filler")
    result.add_argument("--tokenizer", metavar="NAME", help="token counter: auto, cl100k, estimate (default: auto)")
    result.add_argument("--filler", metavar="FILE", help="file with questions and answers that fill the conversation")
    result.add_argument("--wording", metavar="FILE", help="file with the benchmark's own messages")
    result.add_argument(
        "--max_message_size",
        "--max-message-size",
        type=positive,
        metavar="TOKENS",
        help="maximum size of a message (default: 4096)",
    )
    result.add_argument("--json", action="store_true", help="print JSON")
    add_data_dir(result)
    return result


PROGRAM = "manyhands memory generate"
DESCRIPTION = (
    "Generates the tests of a configuration. Tests that a model has to write are written by --judge_model; an interrupted generation is "
    "continued."
)


def generate(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    line = parse(GenerationSpec, spelled(argv), PROGRAM)
    if line.help:
        print(help_text(GenerationSpec, PROGRAM, DESCRIPTION))
        return 0
    if "configuration" not in line.values:
        raise UsageError(f"--configuration is required (-c; see {PROGRAM} --help)")
    options = make(GenerationSpec, line.values, PROGRAM)
    found = generated_tests(options, environ=os.environ, notice=notice)
    if found.workload is not None:
        return _generated(found.workload, found.folder, quiet=options.quiet)
    out().print_line(f"{found.tests} tests are in {shown_path(found.folder)}")
    return 0


def resume(folder: Path, words: list[str]) -> int:
    """Continue a run that makes tests as it was; the exit code. With other settings, ``manyhands memory generate`` makes others."""
    refuse_options(words, f"{folder}: to make tests with other settings use manyhands memory generate --regenerate")
    workload = reopen_generation(folder, environ=os.environ)
    return _generated(workload, folder, quiet=workload.options.quiet)


def _generated(workload: GenerationWorkload, folder: Path, *, quiet: bool) -> int:
    """Have a model write the tests; the exit code."""
    result = execute(Opened(folder, workload), quiet=quiet)
    if (folder / CONFIGURATION).is_file():
        made = len(read_definitions(folder))
        out().print_line(f"{made} tests are in {shown_path(folder)}")
    print_usage(out(), result.summary)
    print_ending(result)
    return tell_end(workload.options.on_end, result, result.exit_code)
