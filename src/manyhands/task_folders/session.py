"""What one session of a run knows of all its tasks: their worlds, and who does them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from manyhands.agents.worlds.settings import environment_of
from manyhands.agents.worlds.world import World
from manyhands.core.redaction import protect
from manyhands.engine.contract import Context
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.task_folders.agents import TaskProgram
from manyhands.task_folders.contents import Task
from manyhands.task_folders.rules import TaskRules
from manyhands.task_folders.settings import ORACLE, TaskLimitSettings, TaskSettings
from manyhands.task_folders.trial import OWN_FOLDERS, TaskTrial
from manyhands.task_folders.variables import resolved

VARIABLES = "task_variables"
"""The name, among a workload's secrets, of the values of this machine's variables that tasks may have."""


def variables_as_secret(values: Mapping[str, str]) -> dict[str, str]:
    """The values of variables that tasks may have, among a workload's secrets."""
    return {VARIABLES: json.dumps(dict(values))} if values else {}


def is_external(options: TaskLimitSettings, agent: str | None) -> bool:
    """Whether something else does the tasks than an agent that calls the run's model. ``agent``: the one that is named."""
    return options.agent_command is not None or agent == ORACLE


@dataclass(frozen=True, slots=True)
class TaskSession:
    """What a run knows of all its tasks."""

    rules: TaskRules
    run_folder: Path
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    program: TaskProgram | None = None
    """What does the tasks in place of an agent of this program."""
    backend: SandboxBackend | None = None
    end_processes: bool = False
    """See ``TaskTrial``."""

    @classmethod
    def of(
        cls,
        options: TaskSettings,
        agent: str | None,
        run_folder: Path,
        secrets: Mapping[str, str],
        backend: SandboxBackend | None,
    ) -> TaskSession:
        """``agent``: the one that is named; ``secrets``: the workload's; ``backend``: None if nothing happens outside."""
        values: dict[str, str] = json.loads(secrets.get(VARIABLES, "{}"))
        protect(values.values())
        environ = environment_of(options.task_env, values)
        program = TaskProgram(options.agent_command, environ) if is_external(options, agent) else None
        rules = TaskRules.from_json(options.task_rules)
        return cls(rules, run_folder, environ, program, backend, options.end_processes)

    def request(self, task: Task, around: SandboxRequest) -> SandboxRequest:
        """What to make for a task. ``around``: what the run's settings come to."""
        environment, agent = task.config.environment, task.config.agent
        return replace(
            around,
            image=task.image,
            cwd=environment.workdir or around.cwd,
            user=around.user if agent.user is None else str(agent.user),
            environment={**resolved(environment.env, self.environ), **(around.environment or {})},
            limits=self.rules.limits(task, around.limits),
            folders=() if task.isolated else OWN_FOLDERS,
        )

    def trial(self, task: Task, context: Context, world: World, around: Callable[[], SandboxRequest]) -> TaskTrial:
        """An attempt at a task. ``around``: as of ``request``."""
        return TaskTrial(
            task,
            context,
            world,
            self.run_folder,
            self.environ,
            self.backend,
            lambda: self._verifier_request(task, around()),
            self.end_processes,
        )

    def _verifier_request(self, task: Task, around: SandboxRequest) -> SandboxRequest:
        environment = task.config.verifier.environment or task.config.environment
        return replace(
            around,
            name=None if around.name is None else f"{around.name}-verifier",
            image=task.verifier_image,
            cwd=environment.workdir or around.cwd,
            user=None,
            environment={**resolved(environment.env, self.environ), **(around.environment or {})},
            limits=self.rules.limits(task, around.limits, verifier=True),
            folders=() if task.verifier_image is not None else OWN_FOLDERS,
        )
