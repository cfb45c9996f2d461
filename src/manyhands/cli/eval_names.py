"""Options of ``manyhands eval`` by other names, and such that an evaluation has not, each with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.agents.options import AgentOptions
from manyhands.cli.options import UsageError
from manyhands.evals.spec import EvalSpec

ALIASES = {"-o": "--output", "--eval-id": "--test_id", "--eval_id": "--test_id"}
"""Names of options in the harness that eval files come from."""
_OTEL = ("otel_file", "export_otel", "otel_backend", "otel_capture_content", "otel_group_turns")
_OF_NOBODY = ("executor", "log_prefix_chars", "reasoning_config", "prefill_messages")


def present_names(argv: Sequence[str], program: str) -> list[str]:
    """The words of a command line with today's names. Raises UsageError for options of agents, which are keys of targets here."""
    asks_for_help = any(word in ("-h", "--help") for word in argv)
    problems = [] if asks_for_help else [problem for word in argv if (problem := _problem(word)) is not None]
    if problems:
        raise UsageError("\n".join([*problems[:-1], f"{problems[-1]} (see {program} --help)"]))
    return [_present(word) for word in argv]


def _present(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{ALIASES.get(name, name)}{equals}{value}"


def _problem(word: str) -> str | None:
    typed = word.partition("=")[0]
    if not typed.startswith("--"):
        return None
    name = typed[2:].replace("-", "_").removeprefix("no_")
    if name in _OTEL:
        return f"{typed}: nothing is written for OpenTelemetry; --trace_file writes a line of JSON for each test, with its tool calls"
    if name in EvalSpec.model_fields or name not in AgentOptions.model_fields:
        return None
    if name in _OF_NOBODY:
        return f"{typed} has no meaning for evaluations"
    return f"{typed}: the targets of an evaluation say this themselves; write {name} below the target"
