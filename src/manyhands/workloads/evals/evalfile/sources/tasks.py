"""Task folders as the tests of an eval file: the instruction is the input, and the verifier the grader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manyhands.agents.worlds.settings import Variables, looked_up
from manyhands.io.locations import Findings, Location
from manyhands.io.search_paths import SearchPath
from manyhands.task_folders.contents import TASK_FILE, Task
from manyhands.task_folders.reading import Refused, read_tasks
from manyhands.task_folders.variables import refused_variable
from manyhands.workloads.evals.evalfile.contents import EvalFile, Invalid, Test

VERIFIER = "verifier"


def tasks_file(
    path: Path, search_path: SearchPath, environ: Mapping[str, str] | None, findings: Findings, allowed: Variables
) -> EvalFile:
    """The tests of a folder that is a task, or holds tasks. ``path``: ``TASK_FOLDERS`` in that folder; ``allowed``: the variables that
    tasks may have; ``environ``: where these are looked for, None where no task is run. What solutions need is found
    out where it is known who does the tasks."""
    if environ is not None:
        with findings.catching():
            looked_up(allowed, environ, option="task_env")
    folder, tests, invalid = path.parent, list[Test](), list[Invalid]()
    location = Location(search_path.shown(folder))
    for task in read_tasks(folder, findings.notice):
        if isinstance(task, Refused):
            invalid.append(Invalid(location, task.name, (task.reason,)))
            continue
        at = Location(search_path.shown(task.folder / TASK_FILE))
        why = None if environ is None else refused_variable(task, allowed, solution=False)
        if why is not None and findings.lacking is None:
            invalid.append(Invalid(at, task.name, (why,)))
            continue
        if why is not None and findings.lacking is not None:
            findings.lacking[why] = None
        tests.append(_test(task, at))
    if not tests and not invalid:
        findings.problem(location, "holds no tasks")
    return EvalFile(path, folder.resolve().name, tuple(tests), location, invalid=tuple(invalid))


def _test(task: Task, location: Location) -> Test:
    keywords = () if task.config.task is None else task.config.task.keywords
    return Test(
        id=task.name,
        input=({"role": "user", "content": task.instruction},),
        location=location,
        graders=({"type": VERIFIER, "name": VERIFIER},),
        metadata=dict(task.config.metadata),
        tags=tuple(keywords),
        task=task.to_json(),
    )
