"""Tasks as items of a batch: their worlds, who does them, and what their verifiers come to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import GRADE
from manyhands.core.redaction import protect
from manyhands.engine.contract import Context
from manyhands.graders.protocol import PASS_LIMIT, Score, verdict_of
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.task_folders.agents import TaskProgram
from manyhands.task_folders.contents import Task
from manyhands.task_folders.rewards import clipped, raw_score
from manyhands.task_folders.rules import TaskRules
from manyhands.task_folders.settings import ORACLE, TaskSettings
from manyhands.task_folders.trial import OWN_FOLDERS, TaskTrial, Verified
from manyhands.task_folders.variables import resolved
from manyhands.workloads.trajectories.items import PromptItem

VARIABLES = "task_variables"
"""The name, among a workload's secrets, of the variables that tasks take from the environment."""
REWARDS = "rewards"
"""In an item's record: its rewards as the verifier gave them."""
VERIFIER = "verifier"
"""In an item's record: how the verifier ended."""


def variables_as_secret(values: Mapping[str, str]) -> dict[str, str]:
    """The variables that tasks take from the environment, among a workload's secrets."""
    return {VARIABLES: json.dumps(dict(values))} if values else {}


def is_external(options: TaskSettings, agent: str | None) -> bool:
    """Whether something else does the tasks than an agent that calls the run's model. ``agent``: the one that is named."""
    return options.agent_command is not None or agent == ORACLE


@dataclass(frozen=True, slots=True)
class BatchTasks:
    """What a run knows of all its tasks."""

    rules: TaskRules
    run_folder: Path
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    program: TaskProgram | None = None
    """What does the tasks in place of an agent of this program."""
    reward: str | None = None
    """The reward that is the score."""
    backend: SandboxBackend | None = None

    @classmethod
    def of(
        cls,
        options: TaskSettings,
        agent: str | None,
        run_folder: Path,
        secrets: Mapping[str, str],
        backend: SandboxBackend | None,
    ) -> BatchTasks:
        """``agent``: the one that is named; ``secrets``: the workload's; ``backend``: None if nothing happens outside."""
        environ: dict[str, str] = json.loads(secrets.get(VARIABLES, "{}"))
        protect(environ.values())
        program = TaskProgram(options.agent_command, environ) if is_external(options, agent) else None
        return cls(TaskRules.from_json(options.task_rules), run_folder, environ, program, options.reward, backend)

    def task(self, payload: PromptItem) -> Task:
        return Task.from_json(payload.task, payload.prompt)

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

    def graded(self, verified: Verified, record: Mapping[str, Any]) -> dict[str, Any]:
        """An item's record with the rewards and the score. Raises ItemError(GRADER_ERROR), with the record, if there is no score."""
        about = {"exit_code": verified.exit_code, "seconds": verified.seconds}
        if verified.rewards is None:
            raise _without_score(
                verified.error or "no reward", {**record, VERIFIER: {**about, "error": verified.error}}
            )
        rewards = dict(verified.rewards)
        known = {**record, VERIFIER: about, REWARDS: rewards}
        raw = raw_score(rewards) if self.reward is None else rewards.get(self.reward)
        if raw is None:
            wanted = 'none is called "reward"' if self.reward is None else f'none is called "{self.reward}"'
            error = (
                f"the verifier gave the rewards {', '.join(map(repr, rewards))}, and {wanted}; --reward names the score"
            )
            raise _without_score(error, known)
        value = clipped(raw)
        verdict = verdict_of(value, PASS_LIMIT)
        score = Score(VERIFIER, VERIFIER, value, verdict)
        found = {"score": value, "verdict": verdict, "threshold": PASS_LIMIT, "scores": [score.to_json()]}
        return {**known, GRADE: found if value == raw else {**found, "clipped": raw}}


def _without_score(message: str, record: dict[str, Any]) -> ItemError:
    return ItemError(Cause.GRADER_ERROR, message, record=record)
