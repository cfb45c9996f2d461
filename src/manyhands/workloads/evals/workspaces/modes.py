"""What of the settings of workspaces depends on more than the file they stand in: options, and each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from manyhands.io.locations import Findings
from manyhands.workloads.evals.evalfile.contents import EvalFile, Hook, Test, Workspace, programs_among


def settled_workspaces(file: EvalFile, mode: str | None, path: str | None, findings: Findings) -> EvalFile:
    """A file whose tests have the workspaces that options ask for, with targets' own hooks. ``mode``: pooled, temp or static; ``path``:
    the existing folder, with static. Settings that contradict each other are problems; what can't be done as it is written is a
    notice."""
    known: dict[Workspace | None, Workspace | None] = {}
    hooks = tuple((ref.name, stage, hook) for ref in file.target_refs for stage, hook in ref.hooks.items())
    tests = []
    for test in file.tests:
        if test.workspace not in known:
            known[test.workspace] = _settled(test.workspace, mode, path, hooks)
            for problem in _problems(known[test.workspace]):
                findings.problem(test.location.at("workspace"), problem)
        found = known[test.workspace]
        tests.append(test if found == test.workspace else replace(test, workspace=found))
    if hooks and not any(test.workspace is not None for test in tests):
        findings.notice(f"{file.location.file}: hooks of target {hooks[0][0]} don't run: no test has a workspace")
    return replace(file, tests=tuple(tests)) if _differ(file.tests, tests) else file


def container_problem(test: Test) -> str | None:
    """Why a test can't be executed in its container, in a line with its location; None if it can, or has none."""
    workspace = test.workspace
    if workspace is None or workspace.image is None:
        return None
    location = test.location.at("workspace", "docker")
    program = next(programs_among(test.all_graders), None)
    if program is not None:
        return location.says(
            f"test {test.id!r}: programs, such as grader {program!r}, can't grade in containers; without docker they grade on this machine"
        )
    if any(not repo.source for repo in workspace.repos or ()):
        return location.says(f"test {test.id!r}: repositories in an image can't be checked out; give path and repo")
    return None


def _differ(before: tuple[Test, ...], after: list[Test]) -> bool:
    return any(one is not other for one, other in zip(before, after, strict=True))


def _settled(
    workspace: Workspace | None, mode: str | None, path: str | None, hooks: tuple[tuple[str, str, Hook], ...]
) -> Workspace | None:
    if hooks and (workspace is not None or path is not None):
        workspace = replace(workspace or Workspace(), of_targets=hooks)
    if path is not None:
        return replace(workspace or Workspace(), mode="static", path=Path(path).resolve())
    if workspace is None:
        return None
    if mode is not None:
        workspace = replace(workspace, mode=mode, path=workspace.path if mode == "static" else None)
    if workspace.mode == "static" and workspace.path is None and not workspace.repos:
        return replace(workspace, mode="temp")
    if workspace.path is not None:
        return replace(workspace, path=workspace.path.resolve())
    return workspace


def _problems(workspace: Workspace | None) -> Iterator[str]:
    if workspace is None:
        return
    if workspace.mode == "static" and workspace.path is None:
        yield "mode: static needs a path, or --workspace_path"
    if workspace.path is not None and workspace.mode != "static":
        yield f"path goes with mode: static, not {workspace.mode}"
    if workspace.in_place and workspace.isolation == "per_test":
        yield "isolation: per_test can't be had in one existing folder (mode: static)"
    if workspace.path is not None and workspace.path.exists() and not workspace.path.is_dir():
        yield f"{workspace.path} is no folder"
