"""``manyhands tools``: the list of tools, with what each needs and costs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

from manyhands.cli.options import help_text, make, parse
from manyhands.core.settings import Flag, setting
from manyhands.models.settings import ModelSettings
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.options import OUTPUT
from manyhands.tools.settings import ToolSettings

PROGRAM = "manyhands tools"
_USAGE = f"{PROGRAM} [OPTIONS]\n{PROGRAM} check [NAME,…]"
_DESCRIPTION = (
    "Lists every tool with its toolset, whether agents can have it here, what it needs, and what its calls cost. The options are those of "
    f"runs that tools depend on: with the same ones, a run has the same tools. `{PROGRAM} check` tries tools out."
)
NOT_HERE = ("sequential_tools", "tool_timeout")
"""Settings of runs that make no difference here."""


class ToolListSettings(ToolSettings, ModelSettings):
    """The options of ``manyhands tools``."""

    json: Flag = setting(False, "Print JSON.", group=OUTPUT)


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as it is listed."""

    name: str
    toolset: str
    available: bool
    """Whether a run with these settings has it."""
    needs: str
    """What it needs besides a sandbox or this process, empty for nothing."""
    costs: str
    """What its calls cost, empty for nothing."""


def run(argv: list[str]) -> int:
    """List the tools."""
    line = parse(ToolListSettings, argv, PROGRAM, without=NOT_HERE)
    if line.help:
        print(help_text(ToolListSettings, _USAGE, _DESCRIPTION, without=NOT_HERE))
        return ExitCode.DONE
    options = make(ToolListSettings, line.values, PROGRAM)
    from manyhands.agents.toolbox import outside_record
    from manyhands.cli.console import out
    from manyhands.core.text import json_text
    from manyhands.processes.event_loop import run_on_loop
    from manyhands.tools.services.registry import usable_services

    services, problems = usable_services(options, os.environ)
    listed = list(listed_tools(run_on_loop(outside_record(options, services)), problems))
    if options.json:
        print(json_text([asdict(each) for each in listed], indent=2))
        return ExitCode.DONE
    out().print_table("", ("tool", "toolset", "available", "needs", "costs"), list(_rows(listed)))
    missing = sum(not each.available for each in listed)
    if missing:
        print(f"{len(listed) - missing} of {len(listed)} tools are available", file=sys.stderr)
    return ExitCode.DONE


def listed_tools(record: object, problems: Mapping[str, str] = MappingProxyType({})) -> Iterator[ListedTool]:
    """All tools by toolset and name. ``record``: of a run's tools, see ``agents.toolbox.outside_record``; ``problems``: by tool what is
    wrong with its settings."""
    from manyhands.agents.toolbox import recorded_registry, services_of
    from manyhands.tools.services.registry import costs_of
    from manyhands.tools.toolsets import DECLARED, STANDARD, known_tools, with_groups

    registry = recorded_registry(record)
    toolsets = with_groups(STANDARD, registry)
    order = {name: number for number, name in reversed(list(enumerate(toolsets)))}
    own = {tool: name for name in reversed(list(toolsets)) for tool in toolsets[name].tools}
    names = sorted(known_tools(registry.names), key=lambda name: (order.get(own.get(name, ""), len(order)), name))
    for name in names:
        costs = costs_of(name, services_of(record))
        needs = problems.get(name) or DECLARED.get(name, "")
        yield ListedTool(name, own.get(name, ""), name in registry, needs, costs)


def _rows(listed: Iterable[ListedTool]) -> Iterator[tuple[str, ...]]:
    for each in listed:
        yield each.name, each.toolset, "yes" if each.available else "no", each.needs, each.costs
