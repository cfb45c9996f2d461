"""What eval files say of workspaces: hooks and repositories.

A folder from which relative paths start is that of the file in which a workspace stands, which need not be the eval file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from manyhands.core.settings import shown
from manyhands.core.text import expand_home
from manyhands.io.keys import Read, collect
from manyhands.io.locations import Findings, Location
from manyhands.workloads.evals.evalfile.contents import (
    AFTER_ALL,
    AFTER_EACH,
    BEFORE_ALL,
    BEFORE_EACH,
    STAGES,
    Hook,
    Repo,
    Requirements,
    Workspace,
)
from manyhands.workloads.evals.evalfile.keys import (
    DockerBlock,
    HookBlock,
    HooksBlock,
    RepoBlock,
    RequirementsBlock,
    WorkspaceBlock,
)


def is_hooked(block: WorkspaceBlock | None) -> bool:
    """Whether something is put into workspaces before tests: by hooks, or out of repositories."""
    if block is None:
        return False
    given = block.hooks or HooksBlock()
    before = (block.before_all, block.before_each, given.before_all, given.before_each)
    return bool(block.repos) or any(hook is not None for hook in before)


def workspace_of(
    block: WorkspaceBlock | None, folder: Path, location: Location, findings: Findings
) -> Workspace | None:
    """The workspace of a block. ``folder``: of the file in which it stands; ``location``: the block's. A folder that is not there is a
    problem."""
    if block is None:
        return None
    given = block.hooks or HooksBlock()
    blocks: dict[str, tuple[HookBlock | None, Location]] = {}
    for stage in STAGES:
        own, inner = getattr(block, stage), getattr(given, stage)
        at = location.at(stage) if inner is None else location.at("hooks", stage)
        if own is not None and inner is not None:
            findings.problem(at, f"is given twice: here and as {location.at(stage).name}")
        blocks[stage] = (own if inner is None else inner), at
    hooks = {stage: hook_of(each, folder, at, findings) for stage, (each, at) in blocks.items()}
    resets = {stage: None if each is None else each.reset for stage, (each, _) in blocks.items()}
    template = None if block.template is None else _template(block.template, folder, location.at("template"), findings)
    needs = block.env
    return Workspace(
        template=template,
        before_all=hooks[BEFORE_ALL],
        after_all=hooks[AFTER_ALL],
        before_each=hooks[BEFORE_EACH],
        after_each=hooks[AFTER_EACH],
        hooks_enabled=given.enabled,
        reset_before=resets[BEFORE_EACH],
        reset_after=resets[AFTER_EACH],
        repos=_repos(block, folder, location.at("repos"), findings),
        requirements=None if needs is None else _requirements(needs, location.at("env"), findings),
        isolation=block.isolation,
        mode=block.mode or (None if block.path is None else "static"),
        path=None if block.path is None else (folder / expand_home(block.path)).absolute(),
        **({} if block.docker is None else _container(block.docker)),
    )


def _container(block: DockerBlock) -> dict[str, Any]:
    return {"image": block.image, "memory": block.memory, "cpus": block.cpus}


def _requirements(block: RequirementsBlock, location: Location, findings: Findings) -> Requirements:
    modules = block.required_python_modules or ()
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            findings.problem(location.at("required_python_modules"), f"{shown(name)} is no name of a module")
    return Requirements(block.required_commands or (), modules)


def hook_of(block: HookBlock | None, folder: Path, location: Location, findings: Findings) -> Hook | None:
    """The command of a hook; None if it has none. ``folder``: of the file in which it stands."""
    if block is None or block.script is None:
        if block is not None and block.reset is None:
            findings.problem(location, "script is required")
        return None
    seconds = None if block.timeout_ms is None else block.timeout_ms / 1000
    start = folder.absolute() if block.cwd is None else _folder(block.cwd, folder, location.at("cwd"), findings)
    return Hook(block.script, start, seconds)


def _template(named: str, folder: Path, location: Location, findings: Findings) -> Path:
    path = (folder / expand_home(named)).absolute()
    if (
        path.suffix == ".code-workspace" and path.is_file()
    ):  # it names folders for an editor, and is copied with its own
        return path.parent
    return _folder(named, folder, location, findings)


def _folder(named: str, folder: Path, location: Location, findings: Findings) -> Path:
    path = (folder / expand_home(named)).absolute()
    if not path.is_dir():
        findings.problem(location, f"there is no folder {path}")
    return path


# --- Repositories

_SHORT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SSH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^:-][^:]*")
_SCHEMES = ("http", "https", "ssh", "file")


def _repos(block: WorkspaceBlock, folder: Path, location: Location, findings: Findings) -> tuple[Repo, ...] | None:
    if block.repos is None:
        return None
    if not isinstance(block.repos, list):
        findings.problem(location, f"must be a list of repositories, not {shown(block.repos)}")
        return None
    found: list[Repo] = []
    for index, value in enumerate(block.repos):
        at = location.at(index)
        if isinstance(value, dict) and "commit" in value and value["commit"] == value.get("base_commit"):
            value = {name: each for name, each in value.items() if name != "base_commit"}  # two names that agree
        source = collect(RepoBlock, value, at, findings)
        if source is None:
            continue
        if source.block.path is not None and source.block.repo is not None:
            with findings.catching():
                found.append(_repo(source, source.block.path, source.block.repo, folder))
        elif block.docker is not None and source.block.repo is None:
            found.append(Repo(source.block.path or ".", "", source.block.commit or "HEAD"))
        else:
            findings.problem(at, f"{'path' if source.block.path is None else 'repo'} is required")
    return tuple(found)


def _repo(source: Read[RepoBlock], path: str, repo: str, folder: Path) -> Repo:
    """Raises UserError."""
    block = source.block
    for name, named in (("path", path), *(("sparse", each) for each in block.sparse or ())):
        if not is_within(named):
            raise source.at(name).error(f"must be a folder within, not {shown(named)}")
    sparse = tuple(os.path.normpath(each) for each in block.sparse or ())
    cloned = _cloned(repo, folder, source.at("repo"))
    return Repo(os.path.normpath(path), cloned, block.commit or "HEAD", block.ancestor, sparse)


def is_within(path: str) -> bool:
    """Whether a path, relative to a folder, stays in it, and is nothing that a program would take for an option."""
    parts = path.split("/")
    return not (path.startswith(("/", "-", "~")) or ".." in parts or ".git" in parts or "\0" in path or "\n" in path)


def _cloned(repo: str, folder: Path, location: Location) -> str:
    """What git is given to clone. Raises UserError for what it is not to be given: other protocols run programs."""
    scheme, separator, rest = repo.partition("://")
    if any(ord(mark) < 33 for mark in repo) or repo.startswith("-"):
        raise location.error(f"is no repository: {shown(repo)}")
    if separator and scheme in _SCHEMES:
        host = rest.partition("/")[0]
        if "@" in host and (scheme != "ssh" or ":" in host.partition("@")[0]):
            raise location.error("must not hold a user or a password; leave them to git's credential helper")
        return repo
    if repo.startswith(("/", "./", "../", "~")) or repo in (".", ".."):
        return str((folder / expand_home(repo)).absolute())
    if _SHORT.fullmatch(repo):
        return f"https://github.com/{repo}.git"
    if _SSH.fullmatch(repo):
        return repo
    raise location.error(
        f"is no repository: {shown(repo)}; give a URL (https, ssh, file), OWNER/NAME at GitHub, or a path with ./ or /"
    )
