"""The agents that there are: the built-in one, and those of installed packages.

A package brings its agents by entry points of the group ``manyhands.agents``: each names an ``Agent``, which is chosen by the entry point's
name (``--agent NAME`` of batches and jobs, ``agent: NAME`` of a target in an eval file).
"""

from __future__ import annotations

from typing import Protocol

from manyhands.agents.loop import FollowUp, run_agent
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask
from manyhands.agents.toolbox import Toolbox
from manyhands.agents.worlds.world import World
from manyhands.core.errors import UserError
from manyhands.core.text import suggestion
from manyhands.engine.contract import Context
from manyhands.io.plugins import load_plugin, plugins
from manyhands.models.protocol import ChatModel
from manyhands.tools.protocol import ToolEnvironment

PLUGINS = "manyhands.agents"
"""The entry point group of other packages' agents."""


class Agent(Protocol):
    """Turns a task into a conversation, as ``run_agent``, the built-in one, does.

    It may run ``run_agent`` with another task, other tools or a ``follow_up`` of its own, also several times. Whatever is paid for or takes
    effect outside is a step of ``context``; those of kind ``model``, ``tool`` and ``tools`` are as the built-in agent records them, because
    the conversation is read back from them (``agents.trajectory.fold``): the result's ``messages`` must be what that gives.
    ``testing.agent_doubles.hold`` checks it.
    """

    async def __call__(
        self,
        context: Context,
        task: AgentTask,
        *,
        model: ChatModel,
        tools: Toolbox,
        environment: ToolEnvironment,
        settings: AgentSettings,
        world: World | None = None,
        follow_up: FollowUp | None = None,
    ) -> AgentResult:
        """Arguments, result and errors as of ``run_agent``."""
        ...


def load_agent(name: str | None) -> Agent:
    """The agent of a name; None is the built-in one. Raises UserError if there is none, or it can't be used."""
    if name is None:
        return run_agent
    found = plugins(PLUGINS).get(name)
    if found is None:
        known = ", ".join(sorted(plugins(PLUGINS))) or "none"
        raise UserError(
            f"no agent is called {name!r}{suggestion(name, plugins(PLUGINS))}; those of installed packages: {known}"
        )
    agent: Agent = load_plugin(found, "agent")
    if not callable(agent):
        raise UserError(f"the agent plug-in {name!r} ({found.value}) is no function")
    return agent
