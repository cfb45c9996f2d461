"""The settings that every run has, and the rules for continuing a run with others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import field_validator

from manyhands.core.errors import RunError, UserError
from manyhands.core.settings import (
    Flag,
    OptionalList,
    OptionalPath,
    Path,
    Settings,
    changed_settings,
    optional_number,
    optional_whole,
    setting,
    shown,
    suggestion,
)

MODEL = "Model and provider"
CONVERSATION = "Conversation"
TOOLS = "Tools and sandbox"
SPEED = "Concurrency"
LIMITS = "Limits"
RESUME = "Resume"
OUTPUT = "Output"

_MAX_TEXT = 64 << 20
_Options = TypeVar("_Options", bound="RunOptions")


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
        with FilePath(path).expanduser().open(encoding="utf-8-sig") as stream:
            text = stream.read(_MAX_TEXT + 1)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}") from error
    if len(text) > _MAX_TEXT:
        raise UserError(f"{path}: longer than {_MAX_TEXT >> 20} million characters")
    return text


class RunOptions(Settings):
    """What can be set for every run. A workload's own settings are a subclass, which may also say more with the class variables below."""

    headings: ClassVar[tuple[str, ...]] = (MODEL, CONVERSATION, TOOLS, SPEED, LIMITS, RESUME, OUTPUT)

    contents: ClassVar[Mapping[str, tuple[str, Callable[[str], Any]]]] = {}
    """Settings that name a file whose contents are recorded: the setting that holds the contents, and how they are read."""
    files: ClassVar[tuple[str, ...]] = ("prices",)
    """Settings that name a file which must be there, and is read later."""
    paths: ClassVar[tuple[str, ...]] = ("data_dir",)
    """Settings that name a file or folder which need not be there yet, or is checked when it is read."""

    verbose: Flag = setting(
        False, "Show each item's tool calls as it ends, and full tracebacks of errors.", group=OUTPUT
    )
    keep_workspaces: Flag = setting(False, "Keep the folders in which tools worked.", group=TOOLS)
    max_attempts: Annotated[int | None, optional_whole(1)] = setting(
        None, "How often a failing item is tried; without it each cause has its own number.", group=LIMITS
    )
    max_cost: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        "US dollars that the run may cost, over all resumes. At the limit it stops and stays resumable.",
        group=LIMITS,
    )
    max_total_tokens: Annotated[int | None, optional_whole(1)] = setting(
        None, "Tokens (in and out) that the run may use, over all resumes.", group=LIMITS
    )
    max_seconds: Annotated[float | None, optional_number(above=0)] = setting(
        None, "Seconds that the run may take, over all resumes.", group=LIMITS
    )
    prices: OptionalPath = setting(
        None, "File with prices per model, used before the built-in table.", group=LIMITS, value="FILE"
    )
    data_dir: Path = setting(
        "data", "Folder in which run folders are made.", group=OUTPUT, recorded=False, value="FOLDER"
    )
    quiet: Flag = setting(False, "No progress bar; only the summary at the end.", group=OUTPUT)
    on_divergence: Literal["fresh", "stop"] = setting(
        "fresh", "When recorded steps no longer fit: begin the item afresh, or stop.", group=RESUME
    )
    override: OptionalList = setting(
        None, 'Settings whose change is accepted on resume, or "all".', group=RESUME, recorded=False
    )

    @property
    def bounded(self) -> bool:
        """Whether the run has a budget that calls must keep to."""
        return self.max_cost is not None or self.max_total_tokens is not None

    @field_validator("override")
    @classmethod
    def _check_override(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        names = {name for name in cls.model_fields if cls.about(name).identity}
        given = tuple(name.lstrip("-").replace("-", "_") for name in value or ())
        for name in given:
            if name not in names and name != "all" and name not in cls.contents:
                raise ValueError(f"names {name!r}, which is no setting that a resume refuses{suggestion(name, names)}")
        return given or None

    def resolved(self) -> Self:
        """The same settings, independent of the current folder: absolute paths, and what is in the files of ``contents`` read in, so
        that the run folder holds it. (Settings made from a record are resolved already.)

        Raises UserError naming the file (and the message) that can't be used.
        """
        changes: dict[str, Any] = {name: _absolute(getattr(self, name)) for name in self.paths}
        changes |= {name: _existing(name, getattr(self, name)) for name in self.files if getattr(self, name)}
        for name, (content, read) in self.contents.items():
            path = getattr(self, name)
            if name in self.model_fields_set:
                changes[content] = path and read(path)
            if path:
                changes[name] = _absolute(path)
        return self.model_copy(update=changes)


def resume_spec(recorded: _Options, given: _Options) -> _Options:
    """The settings with which a run goes on: what ``given`` sets explicitly, and for the rest what was recorded.

    Both must be ``resolved``. Raises RunError, naming each setting and how to override, if a setting changed that makes it
    another run and ``override`` does not accept it.
    """
    spec = given.inherit(recorded)
    accepted = {given.contents[name][0] if name in given.contents else name for name in given.override or ()}
    changes = [change for change in changed_settings(recorded, spec) if not accepted & {change[0], "all"}]
    if changes:
        raise RunError(_refusal(type(given), changes))
    return spec


def _refusal(options: type[RunOptions], changes: list[tuple[str, Any, Any]]) -> str:
    """One line that names changed settings and the option that accepts the change."""
    files = {content: name for name, (content, _) in options.contents.items() if not options.about(content).typed}
    told = ", ".join(f"{files.get(name, name)} was {shown(old)} and is now {shown(new)}" for name, old, new in changes)
    names = ",".join(files.get(name, name) for name, _, _ in changes)
    return f"the run was made with other settings: {told}; leave them as they were, or accept with --override={names}"


def _absolute(path: str) -> str:
    return str(FilePath(path).expanduser().absolute())


def _existing(name: str, path: str) -> str:
    if not FilePath(path).expanduser().is_file():
        raise UserError(f"--{name}: no such file: {path}")
    return _absolute(path)
