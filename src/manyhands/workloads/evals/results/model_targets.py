"""What models among a run's targets were sent besides its tests: known from the run's spec alone, without keys and endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from manyhands.agents.options import load_prefill
from manyhands.agents.task import AgentTask
from manyhands.agents.toolbox import NO_TOOLS, RunTools, Toolbox, with_functions, with_services
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message
from manyhands.core.text import expand_home
from manyhands.tools.settings import is_source
from manyhands.workloads.evals.targets.definitions import Target
from manyhands.workloads.evals.targets.keys import Interpolation
from manyhands.workloads.evals.targets.kinds.model_keys import AgentTargetOptions
from manyhands.workloads.evals.targets.kinds.models import system_prompt
from manyhands.workloads.evals.targets.kinds.registry import KINDS

_READ = ("model", "system_prompt", "ephemeral_system_prompt", "toolsets", "prefill_messages_file")


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A model, or the built-in agent, as a target."""

    options: AgentTargetOptions
    """Of its settings those that stand in a conversation, as far as they can be read here."""
    toolbox: Toolbox
    """Its tools as this version has them, without those of MCP servers and of the person's own functions: runs do not record these."""
    prefill: Sequence[Message]

    def system(self, *, with_tools: bool) -> str:
        """Its own system message without the ephemeral paragraph; empty if it has none."""
        return AgentTask("", system=system_prompt(self.options, with_tools=with_tools)).system_message(with_tools)


def model_target(target: Target, environ: Mapping[str, str], services: Mapping[str, Json]) -> ModelTarget | None:
    """What is known of a target; None if this program asks no model for it. ``environ``: has the variables that settings name; a setting
    whose variable is not set counts as not given. ``services``: what was chosen for its tools."""
    kind = KINDS.get(target.kind)
    if kind is None or not kind.calls_models:
        return None
    interpolation, values = Interpolation(environ), dict[str, Any]()
    for name in _READ:
        if name in target.settings:
            with suppress(UserError):
                values[name] = interpolation.value(target.settings[name], target.at(name))
    try:
        options = AgentTargetOptions.make(values)
    except UserError:  # written by a version that allowed for it
        options = AgentTargetOptions.make({})
    return ModelTarget(options, _toolbox(options, services), _prefill(target, options))


def _toolbox(options: AgentTargetOptions, services: Mapping[str, Json]) -> Toolbox:
    named = [each for each in options.tools or () if not is_source(each)]
    if not options.toolsets and not named:
        return NO_TOOLS
    try:
        record = with_functions(with_services(None, services), named)
        return RunTools.recorded(record).toolbox(options.toolsets or ())
    except UserError:  # a toolset of a package that is not installed here
        return NO_TOOLS


def _prefill(target: Target, options: AgentTargetOptions) -> Sequence[Message]:
    if options.prefill_messages_file is None:
        return ()
    path = (target.folder / expand_home(options.prefill_messages_file)).absolute()
    try:
        return cast(Sequence[Message], load_prefill(str(path)))
    except UserError:  # the file was moved: these messages are no part of what is kept
        return ()
