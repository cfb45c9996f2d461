"""``environment`` and ``extensions`` as a workspace: ``workdir`` is the folder that is copied, ``setup`` and functions before all tests are
``before_all``, and so on.

Theirs is worked in as it stands; here each test has a copy. A program of ``setup`` gets the copy as ``AGENTV_ENVIRONMENT_WORKDIR``. An
extension, ``file://PATH:beforeAll``, is a function of a JavaScript or TypeScript file, which node or bun calls with an object that has
``workspace_path`` and ``eval_dir``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.keys import snake
from manyhands.io.locations import Findings, Location
from manyhands.io.search_paths import SearchPath
from manyhands.io.yaml_files import read_source
from manyhands.workloads.evals.evalfile.agentv5.given import Given

_SCHEME = "file://"
_RULES = "agentv:agent-rules"
_HOOKS = ("before_all", "before_each", "after_each", "after_all")
_DOCKER = ("image", "cpus", "memory")
_TYPESCRIPT = (".ts", ".mts", ".cts")
_CALL = """
const [path, name, folder] = process.argv.slice(-3);
const { readFileSync } = require("node:fs");
import(require("node:url").pathToFileURL(path).href).then(async (found) => {
  const hook = found[name] ?? found.default?.[name];
  if (typeof hook !== "function") throw new Error(`${path} exports no function ${name}`);
  const given = JSON.parse(readFileSync(0, "utf8") || "{}");
  await hook({ ...given, workspace_path: process.env.AGENTV_WORKSPACE_PATH, eval_dir: folder }, { hookName: name });
});
"""


class Environments:
    """Translates environments."""

    def __init__(self, folder: Path, search_path: SearchPath) -> None:
        """``folder``: the eval file's."""
        self._folder = folder
        self._search_path = search_path

    def workspace(self, value: Json, location: Location, findings: Findings, hook: str) -> dict[str, Json] | None:
        """The workspace of an environment, with paths from the eval file's folder; None if there is none, or if it is wrong. ``hook``:
        when its ``setup`` is run."""
        if value is None:
            return None
        folder = self._folder
        if isinstance(value, str):
            if not value.strip().startswith(_SCHEME):
                findings.problem(location, "must be a mapping, or file:// and the path of a file that holds one")
                return None
            path = folder / value.strip().removeprefix(_SCHEME)
            if not path.is_file():
                findings.problem(location, f"there is no file {path}")
                return None
            with findings.catching():
                source = read_source(path, self._search_path.shown(path))
                value, location, folder = source.value, source.location, path.parent
        if not isinstance(value, Mapping):
            findings.problem(location, f"must be a mapping with type and workdir, not {shown(value)}")
            return None
        return _workspace(Given(value, location, findings), folder, findings, hook)

    def hooks(self, value: Json, location: Location, findings: Findings) -> dict[str, list[str]]:
        """The shell's lines of extensions, by the hook in which they are run."""
        found = dict[str, list[str]]()
        if value is not None and not isinstance(value, list):
            findings.problem(location, f"must be a list, not {shown(value)}")
            return {}
        for index, entry in enumerate(value or ()):
            with findings.catching():
                self._extension(entry, location.at(index), findings, found)
        return found

    def _extension(self, entry: Any, location: Location, findings: Findings, found: dict[str, list[str]]) -> None:
        named = entry.get("id") if isinstance(entry, Mapping) else entry
        if not isinstance(named, str):
            raise location.error(f"must be {_SCHEME}PATH:beforeAll, not {shown(entry)}")
        if named.startswith(_RULES):
            findings.notice(
                location.says("has no effect here: an agent looks for its rules in the workspace by itself")
            )
            return
        path, _, function = named.removeprefix(_SCHEME).rpartition(":")
        if not named.startswith(_SCHEME) or snake(function) not in _HOOKS:
            raise location.error(f"must be {_SCHEME}PATH and one of :beforeAll, :beforeEach, :afterEach, :afterAll")
        file = (self._folder / path).absolute()
        if not file.is_file():
            raise location.error(f"there is no file {file}")
        runner = "bun" if file.suffix in _TYPESCRIPT else "node"
        words = [runner, "-e", _CALL, str(file), function, str(self._folder.absolute())]
        found.setdefault(snake(function), []).append(shlex.join(words))


def with_lines(workspace: Mapping[str, Json], lines: Mapping[str, Sequence[str]]) -> dict[str, Json]:
    """A workspace whose hooks run further lines, after what they run already; each line gets what the hook gets on standard input."""
    found = dict(workspace)
    for hook, further in lines.items():
        own = found.get(hook)
        before = own if isinstance(own, Mapping) else {}
        commands = [*([shlex.join(map(str, before["command"]))] if before else []), *further]
        if len(commands) > 1:
            commands = [f"printf '%s' \"$given\" | {line}" for line in commands]
            text = "given=$(cat) && " + " && ".join(commands)
        else:
            text = commands[0]
        found[hook] = {**before, "command": ["sh", "-c", text]}
    return found


def _workspace(given: Given, folder: Path, findings: Findings, hook: str) -> dict[str, Json] | None:
    kind, workdir = given.take("type"), given.take("workdir")
    if kind not in ("host", "docker"):
        findings.problem(given.at("type"), f"must be host or docker, not {shown(kind)}")
        return None
    if not isinstance(workdir, str) or not workdir.strip():
        findings.problem(given.at("workdir"), "must be the path of a folder")
        return None
    environ = given.mapping("env")
    found: dict[str, Json] = {}
    if kind == "docker":
        given.refuse(
            dict.fromkeys(("context", "dockerfile", "mounts", "secrets"), "name an image that has what is needed")
        )
        resources = given.within("resources")
        docker = {"image": given.take("image"), **{key: resources.take(key) for key in _DOCKER[1:]}}
        resources.idle({"disk": "", "gpu": ""})
        found["docker"] = {key: value for key, value in docker.items() if value is not None}
    elif (path := folder / workdir).is_dir():
        found["template"] = str(path.absolute())
    setup = given.within("setup")
    command = setup.take("command")
    if command is not None:
        if not isinstance(command, list) or not command or not all(isinstance(word, str) and word for word in command):
            findings.problem(setup.at("command"), 'must be a list of words, as ["bash", "-c", "…"]')
            return found
        found[hook] = _setup(command, setup, folder, environ)
    setup.tell_left("setup")
    given.tell_left("environment")
    return found


def _setup(command: list[str], setup: Given, folder: Path, environ: Mapping[str, Json]) -> dict[str, Json]:
    cwd, limit = setup.take("cwd"), setup.take("timeout_ms")
    exports = "".join(f"export {name}={shlex.quote(str(value))}; " for name, value in environ.items())
    line = f'{exports}export AGENTV_ENVIRONMENT_WORKDIR="$AGENTV_WORKSPACE_PATH"; '
    if isinstance(cwd, str) and Path(cwd).is_absolute():
        line += f"cd {shlex.quote(cwd)} && "
    elif isinstance(cwd, str):
        line += f'cd "$AGENTV_WORKSPACE_PATH" && cd ./{shlex.quote(cwd)} && '
    hook: dict[str, Json] = {
        "command": ["sh", "-c", f'{line}exec "$@"', "setup", *command],
        "cwd": str(folder.absolute()),
    }
    return hook | ({} if limit is None else {"timeout_ms": limit})
