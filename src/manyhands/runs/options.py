"""The settings that every run has: of its budget, of the run itself; and the rules for continuing a run with others."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeGuard, TypeVar

from manyhands.core.errors import RunError, UserError
from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalList,
    OptionalPath,
    OptionalText,
    Path,
    Settings,
    changed_settings,
    optional_number,
    optional_whole,
    setting,
    shown,
)
from manyhands.core.text import expand_home, suggestion

if TYPE_CHECKING:
    from manyhands.engine.contract import Execution

MODEL = "Model and provider"
CONVERSATION = "Conversation"
TOOLS = "Tools"
SERVICES = "Tools: web, browser, pictures, mixtures of agents"
SANDBOX = "Sandbox"
WORLD = "Files for agents"
SPEED = "Concurrency"
LIMITS = "Limits"
RESUME = "Resume"
OUTPUT = "Output"

_MAX_CHARACTERS = 64 << 20
_Options = TypeVar("_Options", bound="ResumeSettings")


def check_run_name(value: Any) -> str:
    """A name for a run and its folder. Raises ValueError."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must not be empty" if isinstance(value, str) else "must be text")
    if value in (".", "..") or any(mark in value for mark in "/\\"):
        raise ValueError("must be a plain folder name, without separators")
    if not value.isprintable():
        raise ValueError("must not hold control characters")
    if len(value.encode()) > 200:
        raise ValueError("must be at most 200 bytes long")
    return value


def read_text(path: str) -> str:
    """The text of a file that a setting names. Raises UserError naming the file."""
    try:
        with expand_home(path).open(encoding="utf-8-sig") as stream:
            text = stream.read(_MAX_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}") from error
    if len(text) > _MAX_CHARACTERS:
        raise UserError(f"{path}: longer than {_MAX_CHARACTERS >> 20} million characters")
    return text


def json_object(value: Any) -> dict[str, Any] | None:
    """An object: as it is, or as typed: its JSON text, or the name of a file that holds it. Raises ValueError, or UserError for a file
    that can't be read."""
    if value is None or isinstance(value, Mapping):
        return None if value is None else dict(value)
    if not isinstance(value, str):
        raise ValueError("must be a JSON object")
    text, name = value.strip(), "it"
    if not text:
        return None
    if not text.startswith("{"):
        text, name = read_text(value), value
    try:
        found = json.loads(text)
        json.dumps(found, allow_nan=False)  # NaN and numbers that are too large are sent by nobody
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} must hold a JSON object")
    return found


def recorded_object(value: Any) -> dict[str, Any] | None:
    """An object, as it is recorded. Raises ValueError for anything else, also for the name of a file that holds one."""
    if value is not None and not isinstance(value, Mapping):
        raise ValueError("must be a JSON object")
    return json_object(value)


def _resources(value: Any) -> dict[str, float] | None:
    return _amounts(json_object(value))


def _recorded_resources(value: Any) -> dict[str, float] | None:
    return _amounts(recorded_object(value))


def _amounts(found: dict[str, Any] | None) -> dict[str, float] | None:
    for name, amount in (found or {}).items():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount <= 1_000_000:
            raise ValueError(f"{name} must be a number, at least 0")
    return found


class FileSettings(Settings):
    """Settings that may name files and folders. A subclass adds its own to the class variables below."""

    contents: ClassVar[Mapping[str, tuple[str, Callable[[str], Any]]]] = {}
    """Settings that name a file whose contents are recorded: the setting that holds the contents, and how they are read."""
    files: ClassVar[tuple[str, ...]] = ()
    """Settings that name a file which must be there, and is read later."""
    paths: ClassVar[tuple[str, ...]] = ()
    """Settings that name a file or folder which need not be there yet, or is checked when it is read."""
    listed: ClassVar[tuple[str, ...]] = ()
    """Settings whose values may be in a file, which is then named as ``@FILE``."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = [vars(each) for each in reversed(cls.__mro__)]
        cls.contents = {name: how for each in own for name, how in each.get("contents", {}).items()}
        cls.files = tuple(dict.fromkeys(name for each in own for name in each.get("files", ())))
        cls.paths = tuple(dict.fromkeys(name for each in own for name in each.get("paths", ())))
        cls.listed = tuple(dict.fromkeys(name for each in own for name in each.get("listed", ())))

    def resolved(self) -> Self:
        """The same settings, independent of the current folder: absolute paths, and what is in the files of ``contents`` read in, so
        that the run folder holds it. (Settings made from a record are resolved already.)

        Raises UserError naming the file (and the message) that can't be used.
        """
        changes: dict[str, Any] = {name: absolute(path) for name in self.paths if (path := getattr(self, name))}
        changes |= {name: _existing(name, getattr(self, name)) for name in self.files if getattr(self, name)}
        changes |= {
            name: f"@{absolute(value[1:])}" for name in self.listed if is_file_of_values(value := getattr(self, name))
        }
        for name, (content, read) in self.contents.items():
            path = getattr(self, name)
            if name in self.given:
                changes[content] = path and read(path)
            if path:
                changes[name] = absolute(path)
        return self.changed(changes)


class PriceSettings(FileSettings):
    """What calls cost."""

    files: ClassVar[tuple[str, ...]] = ("prices",)

    prices: OptionalPath = setting(
        None, "File with prices per model, used before the built-in table.", group=LIMITS, value="FILE"
    )


class BudgetSettings(PriceSettings):
    """What a run may use, over all resumes."""

    max_cost: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        "Maximum cost of the run in US dollars, over all resumes; the run stops there and can be resumed.",
        group=LIMITS,
    )
    max_total_tokens: Annotated[int | None, optional_whole(1)] = setting(
        None, "Maximum tokens of the run (input and output), over all resumes.", group=LIMITS
    )
    max_seconds: Annotated[float | None, optional_number(above=0)] = setting(
        None, "Maximum seconds of work on the run, over all resumes.", group=LIMITS
    )

    @property
    def bounded(self) -> bool:
        """Whether there is a budget that calls must keep to."""
        return self.max_cost is not None or self.max_total_tokens is not None


class TerminalSettings(Settings):
    """What is shown on the terminal where a run was started."""

    verbose: Flag = setting(
        False, "Print each item's tool calls as it ends, and full tracebacks of errors.", group=OUTPUT
    )
    quiet: Flag = setting(False, "Do not show a progress bar, only the summary at the end.", group=OUTPUT)


class ViewSettings(Settings):
    """Whether a run is shown in a browser while a command executes it."""

    view: Flag = setting(
        False,
        "Also show the run in a browser while this command runs, as manyhands view does; it is opened where there is a display.",
        group=OUTPUT,
        recorded=False,
    )


class ResumeSettings(FileSettings):
    """What can be set only when a run is continued: how changes of its settings are taken."""

    override: OptionalList = setting(
        None, 'Settings whose change is accepted on resume, or "all".', group=RESUME, recorded=False
    )

    @classmethod
    def check(cls, name: str, value: Any) -> Any:
        return cls._known(value) if name == "override" else super().check(name, value)

    @classmethod
    def _known(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        names = {name for name in cls.fields if cls.about(name).identity}
        given = tuple(name.lstrip("-").replace("-", "_") for name in value or ())
        for name in given:
            if name not in names and name != "all" and name not in cls.contents:
                raise ValueError(f"names {name!r}, which is no setting that a resume refuses{suggestion(name, names)}")
        return given or None


class ClusterSettings(Settings):
    """Where worker processes are, if they are on other machines (``executor=ray``)."""

    ray_address: OptionalText = setting(
        None,
        "Address of the Ray cluster, for --executor=ray (default: $RAY_ADDRESS, or a cluster of this machine).",
        group=SPEED,
        value="HOST:PORT",
    )
    ray_resources: Annotated[dict[str, float] | None, Checked(_resources, _recorded_resources)] = setting(
        None,
        'What Ray reserves for each worker, such as \'{"num_cpus": 2, "docker": 1}\' (default: one CPU).',
        group=SPEED,
        value="JSON|FILE",
    )
    ray_listen: OptionalText = setting(
        None,
        "Address at which the nodes reach this process (default: the one by which Ray knows this machine, any port).",
        group=SPEED,
        value="HOST[:PORT]",
    )


class BaseRunOptions(BudgetSettings):
    """What can be set for every run, also for one that is executed in this process alone."""

    headings: ClassVar[tuple[str, ...]] = (
        MODEL,
        CONVERSATION,
        TOOLS,
        SERVICES,
        SANDBOX,
        WORLD,
        SPEED,
        LIMITS,
        RESUME,
        OUTPUT,
    )
    paths: ClassVar[tuple[str, ...]] = ("data_dir",)

    max_attempts: Annotated[int | None, optional_whole(1)] = setting(
        None, "Maximum attempts per item; by default it depends on the cause of the failure.", group=LIMITS
    )
    data_dir: Path = setting("data", "Folder for run folders.", group=OUTPUT, recorded=False, value="FOLDER")
    on_end: OptionalText = setting(
        None,
        "Shell command to run when the run ends or stops; gets the ledger as JSON on standard input. Recorded, so let it read keys from a "
        "file.",
        group=OUTPUT,
        value="COMMAND",
    )
    on_divergence: Literal["fresh", "stop"] = setting(
        "fresh", "Action when recorded steps no longer match: start a fresh attempt, or stop.", group=RESUME
    )

    def execution(self, **own: Any) -> Execution:
        """How the engine executes a run with these settings. ``own``: fields for which each workload has settings of its own."""
        from manyhands.engine.contract import Execution  # the engine takes long to import

        cluster = (
            {**self.to_json(ClusterSettings.fields), "ray_resources": self.ray_resources or {}}
            if isinstance(self, ClusterSettings)
            else {}
        )
        return Execution(
            **{
                "max_attempts": self.max_attempts,
                "max_cost": self.max_cost,
                "max_total_tokens": self.max_total_tokens,
                "max_seconds": self.max_seconds,
                "on_divergence": self.on_divergence,
                **cluster,
                **own,
            }
        )


class RunOptions(BaseRunOptions, ClusterSettings):
    """What can be set for every run that worker processes may execute. A workload's own settings are a subclass."""


def resume_spec(recorded: Settings, given: _Options) -> _Options:
    """The settings with which a run goes on: what ``given`` sets explicitly, and for the rest what was recorded.

    Both must be ``resolved``. Raises RunError, naming each setting and how to override, if a setting changed that makes it
    another run and ``override`` does not accept it; UserError as ``check_cluster``.
    """
    spec = given.inherit(recorded)
    accepted = {given.contents[name][0] if name in given.contents else name for name in given.override or ()}
    changes = [change for change in changed_settings(recorded, spec) if not accepted & {change[0], "all"}]
    if changes:
        raise RunError(_refusal(type(given), changes))
    check_cluster(spec, given.given)
    return spec


def check_cluster(spec: Settings, given: Collection[str]) -> None:
    """Raises UserError for settings of a cluster that were ``given`` for a run which uses none."""
    executor = getattr(spec, "executor", None)
    names = [f"--{name}" for name in ClusterSettings.fields if name in given and getattr(spec, name, None) is not None]
    if names and executor != "ray":
        has = "" if executor is None else f", and this run has --executor={executor}"
        raise UserError(f"{', '.join(names)}: only with --executor=ray{has}")


def _refusal(options: type[ResumeSettings], changes: list[tuple[str, Any, Any]]) -> str:
    """One line that names changed settings and the option that accepts the change."""
    files = {content: name for name, (content, _) in options.contents.items() if not options.about(content).typed}
    listed = ", ".join(
        f"{files.get(name, name)} was {shown(old)} and is now {shown(new)}" for name, old, new in changes
    )
    names = ",".join(files.get(name, name) for name, _, _ in changes)
    return f"the run was made with other settings: {listed}; leave them as they were, or accept with --override={names}"


def is_file_of_values(value: Any) -> TypeGuard[str]:
    """Whether a setting's value is ``@FILE``."""
    return isinstance(value, str) and value.startswith("@")


def absolute(path: str) -> str:
    """A path as it is recorded: from the root, whichever folder the command is given in."""
    return str(expand_home(path).absolute())


def _existing(name: str, path: str) -> str:
    if not expand_home(path).is_file():
        raise UserError(f"--{name}: no such file: {path}")
    return absolute(path)
