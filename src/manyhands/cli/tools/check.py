"""``manyhands tools check``: each tool that asks a service or a model, called once on the user's own account."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.cli.options import help_text, make, parse
from manyhands.cli.tools.listing import NOT_HERE, ListedTool, ToolListSettings, listed_tools
from manyhands.core.errors import ManyhandsError, ToolError, UserError
from manyhands.core.settings import OptionalList, setting
from manyhands.core.text import shorten, suggestion
from manyhands.core.usage import Reserve
from manyhands.runs.exit_codes import ExitCode

if TYPE_CHECKING:
    from manyhands.engine.contract import CallReport, OneOf, OwnLimit
    from manyhands.engine.journal.records import StepRow

PROGRAM = "manyhands tools check"
_NAMES = "names"
_USAGE = f"{PROGRAM} [NAME,…]"
_DESCRIPTION = (
    "Calls each tool that needs a service or a model once, with small arguments, and prints how long it took and what it cost. Your "
    "account pays for it. Exit code 1: a tool failed; 2: a tool that was named can't be had here."
)
_MAX_DETAIL = 200


class ToolCheckSettings(ToolListSettings):
    """The options of ``manyhands tools check``."""

    names: OptionalList = setting(None, "Tools to try (default: all that are available).", value="NAME,…")


@dataclass(frozen=True, slots=True)
class ToolCheck:
    """How a call of a tool went."""

    name: str
    works: bool
    seconds: float
    cost: float | None
    """US dollars; None where the price is not known."""
    simulated: bool
    """Whether a simulated model answered."""
    detail: str
    """The beginning of the result, or what went wrong."""


def run(argv: list[str]) -> int:
    """Try tools out; fails if one does not work."""
    line = parse(ToolCheckSettings, argv, PROGRAM, positional=_NAMES, without=NOT_HERE)
    if line.help:
        print(help_text(ToolCheckSettings, _USAGE, _DESCRIPTION, positional=_NAMES, without=NOT_HERE))
        return ExitCode.DONE
    options = make(ToolCheckSettings, line.values, PROGRAM)
    from manyhands.processes.event_loop import run_on_loop

    found = run_on_loop(_checked(options))
    if options.json:
        from manyhands.core.text import json_text

        print(json_text([asdict(each) for each in found], indent=2))
    elif not found:
        print("no tool that needs a service or a model is available; `manyhands tools` says what each needs")
    return ExitCode.DONE if all(each.works for each in found) else ExitCode.FAILED


async def _checked(options: ToolCheckSettings) -> list[ToolCheck]:
    found = []
    async for each in check_tools(options):
        found.append(each)
        if not options.json:
            cost = "price unknown" if each.cost is None else f"${each.cost:.4f}"
            simulated = ", simulated" if each.simulated else ""
            result = "ok" if each.works else "FAILED"
            print(f"{result:<8}{each.seconds:7.2f} s  {each.name} ({cost}{simulated}): {each.detail}", flush=True)
    return found


async def check_tools(options: ToolCheckSettings) -> AsyncIterator[ToolCheck]:
    """Call the tools that the options name, one after the other. Raises UserError for one that can't be had."""
    from manyhands.agents.run_settings import services_for
    from manyhands.agents.toolbox import outside_record, recorded_registry, services_of
    from manyhands.tools.services.registry import SERVICES, service_secrets, usable_services

    chosen, problems = usable_services(options, os.environ)
    if problems and options.names is None:
        raise UserError(next(iter(problems.values())))
    record = await outside_record(options, chosen)
    records = services_of(record)
    registry = recorded_registry(record)
    samples = {
        tool: dict(arguments)
        for entry in SERVICES.values()
        for tool, arguments in entry.samples.items()
        if tool in registry
    }
    names = _named(options.names, samples, list(listed_tools(record, problems)))
    records = {name: each for name, each in records.items() if not SERVICES[name].samples.keys().isdisjoint(names)}
    secrets = service_secrets(records, options, os.environ)
    with tempfile.TemporaryDirectory(prefix="manyhands-tools-") as folder:
        async with services_for(options, records, secrets, Path(folder)) as services:
            for name in names:
                yield await _tried(registry.get(name), samples[name], services, Path(folder))


def _named(names: Sequence[str] | None, samples: dict[str, Any], listed: Iterable[ListedTool]) -> Sequence[str]:
    known = {each.name: each for each in listed}
    for name in names or ():
        if name not in samples:
            raise UserError(_why_not(name, known))
    return list(samples) if names is None else names


def _why_not(name: str, known: Mapping[str, ListedTool]) -> str:
    """Why a tool can't be tried out."""
    tool = known.get(name)
    if tool is None:
        return f"there is no tool {name}{suggestion(name, known)}; `manyhands tools` lists all"
    if not tool.available:
        return f"{name} is not available here, so it can't be tried; it needs: {tool.needs}"
    if name.startswith("browser_"):
        return f"{name} can't be tried by itself, as it needs a page; browser_navigate tries the browser out"
    return f"{name} is available, and asks no service or model, so there is nothing to try"


async def _tried(tool: Any, arguments: dict[str, Any], services: Any, folder: Path) -> ToolCheck:
    from manyhands.core.clock import SystemClock
    from manyhands.core.jsonio import as_text
    from manyhands.engine.attempt import AttemptContext, AttemptSettings, Claim
    from manyhands.engine.contract import Item
    from manyhands.tools.protocol import ToolEnvironment
    from manyhands.tools.services.steps import ToolSteps

    clock = SystemClock()
    context = AttemptContext(
        AttemptSettings(_Unrecorded(), _Unlimited(), clock, 0, folder), Claim(Item(1, tool.name, {}), 1)
    )
    steps = ToolSteps(tool.name, lambda: context.scope(tool.name), artifacts=services.artifacts)
    began = time.perf_counter()
    try:
        async with ToolEnvironment(_no_sandbox, clock, services=services, steps=steps) as environment:
            result = await tool.call(arguments, environment)
        works, detail = not result.failed, as_text(result.content)
    except ManyhandsError as error:
        works, detail = False, str(error)
    seconds, usage = time.perf_counter() - began, steps.usage
    cost = None if usage.unpriced_calls else usage.cost
    shown = " ".join(shorten(detail, _MAX_DETAIL).split())
    return ToolCheck(tool.name, works, round(seconds, 3), cost, usage.simulated_calls > 0, shown)


async def _no_sandbox() -> Any:
    raise ToolError("there is no sandbox here")


class _Unrecorded:
    """Stands for the journal."""

    async def record(self, row: StepRow) -> None:
        return


class _Unlimited:
    """Stands for a run's limits: one call is made at a time."""

    async def acquire(self, key: str | OwnLimit, reserve: Reserve) -> int:
        return 0

    async def acquire_one_of(self, wanted: OneOf, reserve: Reserve) -> tuple[int, str]:
        return 0, wanted.keys[0]

    def release(self, permit: int, report: CallReport) -> None:
        return
