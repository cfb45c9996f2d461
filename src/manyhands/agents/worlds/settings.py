"""The settings of the worlds of agents: what each item's sandbox is given, beside where it runs and what it may use."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from manyhands.core.errors import UserError
from manyhands.core.redaction import protect, secrets_of
from manyhands.core.settings import Checked, OptionalPath, OptionalText, Settings, number, optional_number, setting
from manyhands.runs.options import WORLD, FileSettings, absolute
from manyhands.sandboxes.settings import SandboxSettings

MAX_VARIABLES = 200
MAX_VALUE = 32_000
"""Characters of a variable's value."""
_WORKSPACE = "/workspace"
"""Where a relative ``cwd`` begins, whatever the workspace is called."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_OURS = re.compile(r"MANYHANDS_.*", re.IGNORECASE)
_OPAQUE = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_+=-]{24,}")
"""Values that are no words, paths or lists."""


def check_variable(name: str, value: str) -> None:
    """Raises ValueError for what can't be a variable of commands' environment."""
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"must begin with the name of a variable, as in NAME=value, not {name[:40]!r}")
    if _OURS.fullmatch(name):
        raise ValueError(f"can't set {name}, which belongs to this program")
    if "\0" in value or len(value) > MAX_VALUE:
        raise ValueError(f"{name} must have a value of at most {MAX_VALUE:,} characters, without NUL")


def checked_cwd(path: str) -> str:
    """Where commands start, as it was given. Raises ValueError for what is in no sandbox."""
    from manyhands.sandboxes.project import PROJECT  # which imports the journal, and options are read for each --help

    inside = posixpath.normpath(posixpath.join(_WORKSPACE, path))
    if "\0" in path:
        raise ValueError("holds a NUL character")
    if not posixpath.isabs(path) and "/" + inside.split("/")[1] not in (_WORKSPACE, PROJECT):
        raise ValueError(f"leads out of the workspace: {path[:100]}")
    return path


def _read_cwd(value: Any) -> str | None:
    if value in (None, ""):
        return None
    if not isinstance(value, str):
        raise ValueError("must be text")
    return checked_cwd(value)


def read_variables(value: Any) -> tuple[str, ...] | None:
    """``NAME=value`` or ``NAME``, several such, or a mapping (where None is the like of ``NAME`` alone). Raises ValueError."""
    if value in (None, "", [""]):
        return None
    if isinstance(value, Mapping):
        value = [name if each is None else f"{name}={each}" for name, each in value.items()]
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, str) for each in given):
        raise ValueError("must be NAME=value, or NAME, or a list of such")
    if len(given) > MAX_VARIABLES:
        raise ValueError(f"may be given {MAX_VARIABLES} times")
    found: dict[str, str] = {}
    for text in given:
        name, sign, content = text.partition("=")
        name = name.strip()
        check_variable(name, content)
        found[name] = f"{name}={content}" if sign else name
    return tuple(found.values()) or None


def looks_secret(variable: str) -> bool:
    """Whether the name of ``NAME=value``, or the look of its value, says that this is a secret. ``NAME`` alone holds none."""
    name, _, content = _parted(variable)
    return bool(content) and bool(secrets_of({name: content}) or _OPAQUE.fullmatch(content))


def refuse_secrets(variables: Variables) -> None:
    """Raises ValueError for a variable whose value would be recorded although it looks like a secret."""
    for variable in filter(looks_secret, variables or ()):
        secret, _, content = _parted(variable)
        protect([content])
        raise ValueError(
            f"{secret} looks like a secret, which would be recorded: give its name alone, and the value in the environment"
        )


def _parted(variable: str) -> tuple[str, str, str]:
    return variable.partition("=")


Variables = Annotated[tuple[str, ...] | None, Checked(read_variables)]


class WorldSettings(SandboxSettings, FileSettings):
    """Where agents' tools run, what they find there, and what is taken from there in the end."""

    workspace: OptionalPath = setting(
        None,
        "Folder that is copied into the workspace of each item before it begins.",
        group=WORLD,
        identity=True,
        value="FOLDER",
    )
    workspace_digest: str | None = setting(None, "What identifies the contents of workspace.", typed=False)
    project: OptionalPath = setting(
        None,
        "Folder that commands can read, and start in; read-only unless --sandbox=local.",
        group=WORLD,
        identity=True,
        value="FOLDER",
    )
    setup: OptionalText = setting(
        None,
        "Command to run in each item's sandbox before it begins; {name} is the row's field of that name, quoted.",
        group=WORLD,
        identity=True,
        value="COMMAND",
    )
    collect: OptionalText = setting(
        None,
        "Command to run in each item's sandbox when its conversation has ended, whose output is kept with the result: 'git diff' for "
        "example; {name} as in --setup.",
        group=WORLD,
        identity=True,
        value="COMMAND",
    )
    setup_timeout: Annotated[float, number(above=0)] = setting(
        600.0, "Time limit of --setup, of --collect and of the like of rows, in seconds.", group=WORLD
    )
    container_env: Variables = setting(
        None,
        "Environment variable of commands in the sandbox (repeatable); NAME alone takes its value from the environment of manyhands, and "
        "does not record it.",
        group=WORLD,
        identity=True,
        repeated=True,
        value="NAME[=VALUE]",
    )
    user: OptionalText = setting(
        None, "User who runs commands in a container (default: the image's).", group=WORLD, identity=True, value="NAME"
    )
    cwd: Annotated[str | None, Checked(_read_cwd)] = setting(
        None,
        "Folder in the sandbox where commands start (default: the project, the image's, or the workspace).",
        group=WORLD,
        identity=True,
        value="FOLDER",
    )
    cpus: Annotated[float | None, optional_number(0.01)] = setting(
        None, "Maximum processors that one sandbox may keep busy (containers only).", group=WORLD
    )
    memory: Annotated[float | None, optional_number(0.0625)] = setting(
        None, "Maximum memory of one sandbox in GiB (default: 4).", group=WORLD
    )

    @classmethod
    def check(cls, name: str, value: Any) -> Any:
        if name == "container_env" and cls.about(name).recorded:
            refuse_secrets(value)
        return super().check(name, value)

    def resolved(self) -> Self:
        made = super().resolved()
        return made if made.workspace is None else made.changed({"workspace": absolute(made.workspace)})


class RowWorldSettings(Settings):
    """Which fields of a row say something about its item's world. Only what a person names here is heeded, and it can only tighten what
    the run allows."""

    files_field: OptionalText = setting(
        None, "Field of rows with files to write into the workspace: an object of texts by path.", group=WORLD,
        identity=True, value="NAME",
    )  # fmt: skip
    setup_field: OptionalText = setting(
        None, "Field of rows with a command to run after --setup.", group=WORLD, identity=True, value="NAME"
    )
    env_field: OptionalText = setting(
        None,
        "Field of rows with environment variables: an object of texts by name; --container_env counts before it.",
        group=WORLD,
        identity=True,
        value="NAME",
    )
    user_field: OptionalText = setting(
        None, "Field of rows with the user who runs commands in a container.", group=WORLD, identity=True, value="NAME"
    )
    cpus_field: OptionalText = setting(
        None, "Field of rows with a number of processors; at most --cpus counts.", group=WORLD, identity=True,
        value="NAME",
    )  # fmt: skip
    memory_field: OptionalText = setting(
        None, "Field of rows with memory in GiB; at most --memory counts.", group=WORLD, identity=True, value="NAME"
    )
    network_field: OptionalText = setting(
        None,
        "Field of rows with no, which takes the network away, or a list of hosts, which leaves these of it.",
        group=WORLD,
        identity=True,
        value="NAME",
    )


COLUMNS = tuple(RowWorldSettings.fields)
"""The settings that name fields of rows."""
ENVIRONMENT = "container_env"
"""The name among a workload's secrets of what the environment holds for ``--container_env NAME``."""


def looked_up(
    variables: Variables, environ: Mapping[str, str], *, option: str = ENVIRONMENT, needed: bool = True
) -> dict[str, str]:
    """The values of variables that were named alone. They are taken out of everything that is recorded. ``option``: where they were
    named. Raises UserError for one that is not set; without ``needed`` it is left out."""
    found: dict[str, str] = {}
    for name in variables or ():
        if "=" in name:
            continue
        if name not in environ and not needed:
            continue
        if name not in environ:
            raise UserError(f"--{option} {name}: the environment variable {name} is not set")
        try:
            check_variable(name, environ[name])
        except ValueError as error:
            raise UserError(f"--{option}: {error}") from None
        found[name] = environ[name]
    protect(found.values())
    return found


def environment_of(variables: Variables, secret: Mapping[str, str]) -> dict[str, str]:
    """The variables with their values. ``secret``: what ``looked_up`` gave."""
    parts = map(_parted, variables or ())
    return {name: value if sign else secret.get(name, "") for name, sign, value in parts}
