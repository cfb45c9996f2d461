"""The settings of every run, those of agents, and the rules for continuing a run with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BeforeValidator, field_validator

from manyhands.core.errors import RunError, UserError
from manyhands.core.jsonio import loads
from manyhands.core.settings import (
    Flag,
    OptionalList,
    OptionalPath,
    OptionalSecret,
    OptionalText,
    Path,
    Settings,
    Text,
    changed_settings,
    number,
    optional_number,
    optional_whole,
    setting,
    shown,
    suggestion,
    whole,
)

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
"""Reasoning efforts, from least to most."""

MODEL = "Model and provider"
CONVERSATION = "Conversation"
TOOLS = "Tools and sandbox"
SPEED = "Concurrency"
LIMITS = "Limits"
RESUME = "Resume"
OUTPUT = "Output"

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))
_Options = TypeVar("_Options", bound="RunOptions")


def _effort(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        return None
    if not isinstance(value, str) or value.strip().lower() not in EFFORTS:
        raise ValueError(f"must be one of {', '.join(EFFORTS)}")
    return value.strip().lower()


def _base_url(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("must be an address that starts with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("must not hold a name and password, which would be recorded; give a key with --api_key")
    return text


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


def load_prefill(path: str) -> tuple[dict[str, Any], ...]:
    """The messages of a prefill file.

    Raises UserError naming the file, and the message that is wrong.
    """
    try:
        value = loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    try:
        return check_messages(value)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def read_text(path: str) -> str:
    """The text of a file that a setting names. Raises UserError naming the file."""
    try:
        with FilePath(path).expanduser().open(encoding="utf-8-sig") as stream:
            text = stream.read(_LONGEST_TEXT + 1)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}") from error
    if len(text) > _LONGEST_TEXT:
        raise UserError(f"{path}: longer than {_LONGEST_TEXT >> 20} million characters")
    return text


_LONGEST_TEXT = 64 << 20


def check_messages(value: Any) -> tuple[dict[str, Any], ...]:
    """A list of chat messages, each an object with a role and content. Raises ValueError naming the first wrong one."""
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be an array of messages")
    for place, message in enumerate(value, 1):
        problem = _message_problem(message)
        if problem:
            raise ValueError(f"message {place} {problem}")
    return tuple(value)


def _message_problem(message: Any) -> str | None:
    if not isinstance(message, dict):
        return "is not an object"
    if message.get("role") not in _ROLES:
        return f'has no "role" out of {", ".join(sorted(_ROLES))}'
    if not isinstance(message.get("content"), (str, list)) and not message.get("tool_calls"):
        return 'has no "content" (text, or a list of content parts)'
    return None


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


class AgentOptions(RunOptions):
    """What can be set for agents, their model and the run that performs them."""

    contents: ClassVar[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
        "prefill_messages_file": ("prefill_messages", load_prefill)
    }
    files: ClassVar[tuple[str, ...]] = ("mcp_config", *RunOptions.files)

    model: Text = setting(
        "anthropic/claude-sonnet-4.6",
        'The model, as the endpoint names it; "simulated" is a built-in stand-in that costs nothing.',
        group=MODEL,
        identity=True,
        value="NAME",
    )
    api_key: OptionalSecret = setting(
        None,
        "Key for the endpoint; without it the environment is asked (OPENROUTER_API_KEY, …). Never recorded.",
        group=MODEL,
        recorded=False,
        secret=True,
        value="KEY",
    )
    base_url: Annotated[str, BeforeValidator(_base_url)] = setting(
        "https://openrouter.ai/api/v1",
        "Any endpoint that speaks OpenAI chat completions.",
        group=MODEL,
        value="URL",
    )
    max_turns: Annotated[int, whole(1)] = setting(
        10, "Model calls per conversation at most.", group=CONVERSATION, identity=True
    )
    ephemeral_system_prompt: OptionalText = setting(
        None,
        "Added to the system prompt of every call, and saved in no conversation.",
        group=CONVERSATION,
        identity=True,
    )
    log_prefix_chars: Annotated[int, whole(0)] = setting(
        100, "Length of previews of tool arguments and results in logs, in characters.", group=OUTPUT
    )
    providers_allowed: OptionalList = setting(None, "OpenRouter: use only these providers.", group=MODEL, identity=True)
    providers_ignored: OptionalList = setting(
        None, "OpenRouter: never use these providers.", group=MODEL, identity=True
    )
    providers_order: OptionalList = setting(
        None, "OpenRouter: try providers in this order.", group=MODEL, identity=True
    )
    provider_sort: OptionalText = setting(
        None,
        "OpenRouter: sort providers by price, throughput or latency.",
        group=MODEL,
        identity=True,
        value="price|throughput|latency",
    )
    max_tokens: Annotated[int | None, optional_whole(1)] = setting(
        None,
        "Tokens per model response at most; without it the server decides, but under a budget 8,192.",
        group=MODEL,
        identity=True,
    )
    reasoning_effort: Annotated[str | None, BeforeValidator(_effort)] = setting(
        None,
        "How much the model reasons. Without it, medium where the endpoint takes it.",
        group=MODEL,
        identity=True,
        value="|".join(EFFORTS),
    )
    reasoning_disabled: Flag = setting(
        False,
        "No reasoning; the same as --reasoning_effort=none, and stronger than any other.",
        group=MODEL,
        identity=True,
    )
    implied_think: Flag = setting(
        False,
        "A lone </think> in an answer ends reasoning that began with it: for servers whose chat template opens the block in the prompt.",
        group=MODEL,
        identity=True,
    )
    prefill_messages_file: OptionalPath = setting(
        None,
        "JSON file with an array of messages (role, content) that go before every conversation; they are not saved.",
        group=CONVERSATION,
        recorded=False,
        value="FILE",
    )
    seed: Annotated[int | None, optional_whole(0)] = setting(
        None,
        "Makes draws repeatable, and is sent to endpoints as a seed per conversation. Without it draws use 0 and nothing is sent.",
        group=MODEL,
        identity=True,
    )
    temperature: Annotated[float | None, optional_number(0, 2)] = setting(
        None, "Sampling temperature; without it the server decides.", group=MODEL, identity=True
    )
    top_p: Annotated[float | None, optional_number(0, 1)] = setting(
        None, "Nucleus sampling; without it the server decides.", group=MODEL, identity=True
    )
    sandbox: Text = setting(
        "auto",
        "Where tools run: auto (the row's image in a container, else bubblewrap), bubblewrap, or local: this machine, unprotected.",
        group=TOOLS,
        identity=True,
        value="KIND",
    )
    network: Flag = setting(False, "Let sandboxed commands use the network.", group=TOOLS, identity=True)
    sandbox_disk: Annotated[float, number(above=0)] = setting(
        8.0, "GiB that the files of one sandbox may take; see also --min_free.", group=TOOLS
    )
    min_free: Annotated[float | None, optional_number(0)] = setting(
        None,
        "GiB of its disk that a run leaves free: the sandbox that holds most is ended below that. Without it 1, or 2 % of a small disk.",
        group=TOOLS,
    )
    mcp_config: OptionalPath = setting(
        None, "File that names MCP servers to mount as toolsets.", group=TOOLS, identity=True, value="FILE"
    )
    sequential_tools: Flag = setting(
        False, "Run the tool calls of one turn one after another, not side by side.", group=TOOLS, identity=True
    )
    call_timeout: Annotated[float, number(above=0)] = setting(600.0, "Seconds for one model call.", group=LIMITS)
    simulated_latency: Annotated[float, number(0)] = setting(
        0.0, "Seconds that the built-in simulated model takes for an answer.", group=MODEL
    )
    tool_timeout: Annotated[float, number(above=0)] = setting(180.0, "Seconds for one tool call.", group=LIMITS)
    executor: Literal["processes", "local"] = setting(
        "processes", "processes: worker processes; local: everything in this one.", group=SPEED
    )
    reasoning_config: dict[str, Any] | None = setting(
        None, "The request's reasoning object, passed through.", typed=False, identity=True
    )
    prefill_messages: tuple[dict[str, Any], ...] | None = setting(
        None, "What prefill_messages_file holds.", typed=False, identity=True
    )

    @field_validator("prefill_messages", mode="before")
    @classmethod
    def _check_prefill(cls, value: Any) -> Any:
        return None if value is None else check_messages(value)


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
