"""A list of tasks that the model keeps for itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from manyhands.core.errors import ToolError
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.registry import tool
from manyhands.tools.schema import Arguments

_STATE = "todo"
_MAX_TASKS = 200
Status = Literal["pending", "in_progress", "completed", "cancelled"]


class Task(Arguments):
    id: str = Field(description="Short identifier, unique in the list.", min_length=1, max_length=64)
    content: str = Field(description="What is to be done.", max_length=2000)
    status: Status = "pending"


class TaskChange(Arguments):
    """A task as it is given: with ``merge``, what is left out stays as it was."""

    id: str = Field(description="Short identifier, unique in the list.", min_length=1, max_length=64)
    content: str | None = Field(None, description="What is to be done; needed for a new task.", max_length=2000)
    status: Status | None = Field(None, description="Default for a new task: pending.")


def _restore(arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
    if not result.failed and isinstance(result.content, dict) and "todos" in result.content:
        environment.state[_STATE] = [Task.model_validate(each) for each in result.content["todos"]]


@tool(changes_world=False, restore=_restore)
async def todo(
    environment: ToolEnvironment,
    todos: Annotated[
        list[TaskChange] | None,
        "The tasks, in order of doing; leave out to read the list.",
        Field(max_length=_MAX_TASKS),
    ] = None,
    merge: Annotated[bool, "Change or add the given tasks by id instead of replacing the whole list."] = False,
) -> dict[str, Any]:
    """Keep a list of tasks for work of several steps. Returns the whole list.

    Write the list when you plan, set one task to in_progress before you start it, and to completed once it is done.
    """
    tasks: list[Task] = environment.state.get(_STATE, [])
    if todos is not None:
        tasks = _changed(tasks if merge else [], todos)
        environment.state[_STATE] = tasks
    counts = {
        status: sum(task.status == status for task in tasks)
        for status in ("pending", "in_progress", "completed", "cancelled")
    }
    return {"todos": [task.model_dump() for task in tasks], "summary": {"total": len(tasks), **counts}}


def _changed(tasks: list[Task], changes: list[TaskChange]) -> list[Task]:
    by_id = {task.id: task for task in tasks}
    for change in changes:
        given = change.model_dump(exclude_none=True)
        if change.id in by_id:
            by_id[change.id] = by_id[change.id].model_copy(update=given)
        elif change.content is None:
            raise ToolError(f"task {change.id!r} is new, so it needs a content")
        else:
            by_id[change.id] = Task.model_validate(given)
    if len(by_id) > _MAX_TASKS:
        raise ToolError(f"the list would have {len(by_id)} tasks; {_MAX_TASKS} is the most. Remove what is done.")
    return list(by_id.values())
