"""Task folders as the tests of an eval file: the instruction is the input, and the verifier the grader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manyhands.io.locations import Findings, Location
from manyhands.io.search_paths import SearchPath
from manyhands.task_folders.contents import TASK_FILE, Task
from manyhands.task_folders.reading import Refused, read_tasks
from manyhands.task_folders.variables import handed_notice, missing_variables, named_variables
from manyhands.workloads.evals.evalfile.contents import EvalFile, Invalid, Test

VERIFIER = "verifier"


def tasks_file(path: Path, search_path: SearchPath, environ: Mapping[str, str], findings: Findings) -> EvalFile:
    """The tests of a folder that is a task, or holds tasks. ``path``: ``TASK_FOLDERS`` in that folder; ``environ``: where tasks' variables
    are looked for."""
    folder, tests, invalid = path.parent, list[Test](), list[Invalid]()
    handed: set[str] = set()
    location = Location(search_path.shown(folder))
    for task in read_tasks(folder, findings.notice):
        if isinstance(task, Refused):
            invalid.append(Invalid(location, task.name, (task.reason,)))
            continue
        at = Location(search_path.shown(task.folder / TASK_FILE))
        lacking = missing_variables(task.config, environ)
        if lacking:
            why = at.says(f"task {task.name} takes a value from the variable {lacking[0]}, which is not set")
            invalid.append(Invalid(at, task.name, (why,)))
            continue
        handed.update(name for name, _ in named_variables(task.config) if name in environ)
        tests.append(_test(task, at))
    if handed:
        findings.notice(handed_notice(handed))
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
