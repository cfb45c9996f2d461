"""The settings of runs of task folders."""

from __future__ import annotations

from typing import Annotated, Any

from manyhands.agents.worlds.settings import Variables, refuse_secrets
from manyhands.core.settings import Flag, OptionalText, Settings, number, setting

TASKS = "Task folders"
ORACLE = "oracle"
"""The agent that runs a task's own solution."""


class TaskLimitSettings(Settings):
    """What a run says of how all tasks are done."""

    timeout_multiplier: Annotated[float, number(above=0)] = setting(
        1.0, "Factor for the agents' time limits that tasks set.", group=TASKS, identity=True
    )
    override_task: Flag = setting(
        False,
        "Let the run's network, memory, cpus, sandbox_disk and time_limit count in place of what a task says, also where they allow more.",
        group=TASKS,
        identity=True,
    )
    end_processes: Flag = setting(
        False,
        "End what an agent left running before a verifier in the same environment, so that it can't write the reward; tasks whose tests "
        "ask a server that the agent started need it running.",
        group=TASKS,
        identity=True,
    )
    agent_command: OptionalText = setting(
        None,
        "Command that does each task, inside its environment, in place of the built-in agent; it finds the instruction on standard input, "
        "in {instruction} and in the file {instruction_file}.",
        group=TASKS,
        identity=True,
        value="COMMAND",
    )
    task_env: Variables = setting(
        None,
        "Environment variable that tasks may take as ${NAME} (repeatable), with its value in the environment of manyhands, which is not "
        "recorded, or with VALUE. A task that needs another one is refused.",
        group=TASKS,
        identity=True,
        repeated=True,
        value="NAME[=VALUE]",
    )

    @classmethod
    def check(cls, name: str, value: Any) -> Any:
        if name == "task_env":
            refuse_secrets(value)
        return super().check(name, value)


class TaskSettings(TaskLimitSettings):
    """What concerns task folders alone."""

    reward: OptionalText = setting(
        None, 'Reward that is the score, of tasks with several (default: "reward", or the only one).', group=TASKS,
        value="NAME",
    )  # fmt: skip
    task_rules: dict[str, Any] | None = setting(None, "What the settings say of all tasks.", typed=False)
