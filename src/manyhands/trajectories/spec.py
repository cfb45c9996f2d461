"""The settings of a trajectory batch, and the rules for continuing one.

Names and defaults of the first twenty-three are those of the original batch runner (behaviour specification, section 1.1).
"""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Annotated, Any, Literal
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

_REQUIRED = "Required"
_MODEL = "Model and provider"
_AGENT = "Conversation"
_TOOLS = "Tools and sandbox"
_SPEED = "Concurrency"
_LIMITS = "Limits"
_RESUME = "Samples and resume"
_OUTPUT = "Output"

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))
_CONTENTS = {"prefill_messages_file": "prefill_messages", "system_template": "system_template_text"}
_FILES = ("distributions_file", "mcp_config", "prices")


def _run_name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must not be empty" if isinstance(value, str) else "must be text")
    if value in (".", "..") or any(mark in value for mark in "/\\"):
        raise ValueError("must be a plain folder name, without separators")
    if not value.isprintable():
        raise ValueError("must not hold control characters")
    if len(value.encode()) > 200:
        raise ValueError("must be at most 200 bytes long")
    return value


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


class BatchSpec(Settings):
    """Everything that can be set for a trajectory batch. ``BatchSpec.make`` gives clear messages, ``resolved`` reads the
    files that are named."""

    dataset_file: Path = setting(
        ...,
        'The prompts: .jsonl, .json, .csv, .jsonl.gz, .parquet, or a Hugging Face dataset folder; each row needs a "prompt".',
        group=_REQUIRED,
        value="FILE",
    )
    batch_size: Annotated[int, whole(1)] = setting(
        ...,
        "Prompts per output file (batch_0.jsonl, batch_1.jsonl …). Only a grouping: no prompt waits for its batch.",
        group=_REQUIRED,
        identity=True,
    )
    run_name: Annotated[str, BeforeValidator(_run_name)] = setting(
        ..., "Name of the run and of its folder.", group=_REQUIRED, value="NAME"
    )
    distribution: Text = setting(
        "default",
        "Toolset distribution from which each prompt's toolsets are drawn.",
        group=_TOOLS,
        identity=True,
        value="NAME",
    )
    model: Text = setting(
        "anthropic/claude-sonnet-4.6",
        'The model, as the endpoint names it; "simulated" is a built-in stand-in that costs nothing.',
        group=_MODEL,
        identity=True,
        value="NAME",
    )
    api_key: OptionalSecret = setting(
        None,
        "Key for the endpoint; without it the environment is asked (OPENROUTER_API_KEY, …). Never recorded.",
        group=_MODEL,
        recorded=False,
        secret=True,
        value="KEY",
    )
    base_url: Annotated[str, BeforeValidator(_base_url)] = setting(
        "https://openrouter.ai/api/v1",
        "Any endpoint that speaks OpenAI chat completions.",
        group=_MODEL,
        value="URL",
    )
    max_turns: Annotated[int, whole(1)] = setting(10, "Model calls per prompt at most.", group=_AGENT, identity=True)
    num_workers: Annotated[int, whole(1, 10_000)] = setting(4, "Worker processes.", group=_SPEED)
    resume: Flag = setting(
        False, "Continue the run of this name: only what is unfinished is performed.", group=_RESUME, recorded=False
    )
    verbose: Flag = setting(False, "Show each prompt's toolsets, and full tracebacks of errors.", group=_OUTPUT)
    list_distributions: Flag = setting(False, "Show all toolset distributions and stop.", group=_TOOLS, recorded=False)
    ephemeral_system_prompt: OptionalText = setting(
        None, "Added to the system prompt of every call, and saved in no trajectory.", group=_AGENT, identity=True
    )
    log_prefix_chars: Annotated[int, whole(0)] = setting(
        100, "Length of previews of tool arguments and results in logs, in characters.", group=_OUTPUT
    )
    providers_allowed: OptionalList = setting(
        None, "OpenRouter: use only these providers.", group=_MODEL, identity=True
    )
    providers_ignored: OptionalList = setting(
        None, "OpenRouter: never use these providers.", group=_MODEL, identity=True
    )
    providers_order: OptionalList = setting(
        None, "OpenRouter: try providers in this order.", group=_MODEL, identity=True
    )
    provider_sort: OptionalText = setting(
        None,
        "OpenRouter: sort providers by price, throughput or latency.",
        group=_MODEL,
        identity=True,
        value="price|throughput|latency",
    )
    max_tokens: Annotated[int | None, optional_whole(1)] = setting(
        None, "Tokens per model response at most; without it the server decides.", group=_MODEL, identity=True
    )
    reasoning_effort: Annotated[str | None, BeforeValidator(_effort)] = setting(
        None,
        "How much the model reasons. Without it, medium where the endpoint takes it.",
        group=_MODEL,
        identity=True,
        value="|".join(EFFORTS),
    )
    reasoning_disabled: Flag = setting(
        False,
        "No reasoning; the same as --reasoning_effort=none, and stronger than any other.",
        group=_MODEL,
        identity=True,
    )
    prefill_messages_file: OptionalPath = setting(
        None,
        "JSON file with an array of messages (role, content) that go before every conversation; they are not saved.",
        group=_AGENT,
        recorded=False,
        value="FILE",
    )
    max_samples: Annotated[int | None, optional_whole(1)] = setting(
        None, "Only the first N usable rows of the dataset.", group=_RESUME
    )

    concurrency: Annotated[int, whole(1, 100_000)] = setting(
        1, "Prompts in flight in each worker process.", group=_SPEED
    )
    samples: Annotated[int, whole(1)] = setting(
        1, "Trajectories for each row of the dataset.", group=_RESUME, identity=True
    )
    seed: Annotated[int | None, optional_whole(0)] = setting(
        None,
        "Makes draws repeatable, and is sent to endpoints as a seed per trajectory. Without it draws use 0 and nothing is sent.",
        group=_MODEL,
        identity=True,
    )
    temperature: Annotated[float | None, optional_number(0, 2)] = setting(
        None, "Sampling temperature; without it the server decides.", group=_MODEL, identity=True
    )
    top_p: Annotated[float | None, optional_number(0, 1)] = setting(
        None, "Nucleus sampling; without it the server decides.", group=_MODEL, identity=True
    )
    sandbox: Text = setting(
        "auto",
        "Where tools run: auto (the row's image in a container, else bubblewrap), bubblewrap, or local: this machine, unprotected.",
        group=_TOOLS,
        identity=True,
        value="KIND",
    )
    network: Flag = setting(False, "Let sandboxed commands use the network.", group=_TOOLS, identity=True)
    distributions_file: OptionalPath = setting(
        None, "YAML file with more toolset distributions.", group=_TOOLS, identity=True, value="FILE"
    )
    mcp_config: OptionalPath = setting(
        None, "File that names MCP servers to mount as toolsets.", group=_TOOLS, identity=True, value="FILE"
    )
    sequential_tools: Flag = setting(
        False, "Run the tool calls of one turn one after another, not side by side.", group=_TOOLS, identity=True
    )
    keep_workspaces: Flag = setting(False, "Keep the folders in which tools worked.", group=_TOOLS)
    item_timeout: Annotated[float, number(above=0)] = setting(3600.0, "Seconds for one prompt, in all.", group=_LIMITS)
    call_timeout: Annotated[float, number(above=0)] = setting(600.0, "Seconds for one model call.", group=_LIMITS)
    simulated_latency: Annotated[float, number(0)] = setting(
        0.0, "Seconds that the built-in simulated model takes for an answer.", group=_MODEL
    )
    tool_timeout: Annotated[float, number(above=0)] = setting(180.0, "Seconds for one tool call.", group=_LIMITS)
    max_attempts: Annotated[int | None, optional_whole(1)] = setting(
        None, "How often a failing prompt is tried; without it each cause has its own number.", group=_LIMITS
    )
    max_cost: Annotated[float | None, optional_number(above=0)] = setting(
        None,
        "US dollars that the run may cost, over all resumes. At the limit it stops and stays resumable.",
        group=_LIMITS,
    )
    max_total_tokens: Annotated[int | None, optional_whole(1)] = setting(
        None, "Tokens (in and out) that the run may use, over all resumes.", group=_LIMITS
    )
    max_seconds: Annotated[float | None, optional_number(above=0)] = setting(
        None, "Seconds that the run may take, over all resumes.", group=_LIMITS
    )
    prices: OptionalPath = setting(
        None, "File with prices per model, used before the built-in table.", group=_LIMITS, value="FILE"
    )
    executor: Literal["processes", "local"] = setting(
        "processes", "processes: worker processes; local: everything in this one.", group=_SPEED
    )
    keep_unreasoned: Flag = setting(
        False,
        "Keep trajectories in which no turn has reasoning; they are discarded otherwise.",
        group=_OUTPUT,
        identity=True,
    )
    keep_unknown_tools: Flag = setting(
        False,
        "Keep trajectories that call tools which do not exist; they are discarded otherwise.",
        group=_OUTPUT,
        identity=True,
    )
    keep_synthetic: Flag = setting(
        False,
        "Keep turns that this program wrote (requests to continue, to sum up) in the trajectories.",
        group=_OUTPUT,
        identity=True,
    )
    system_template: OptionalPath = setting(
        None, "Text file with the wording of the saved system turn.", group=_OUTPUT, recorded=False, value="FILE"
    )
    data_dir: Path = setting(
        "data", "Folder in which run folders are made.", group=_OUTPUT, recorded=False, value="FOLDER"
    )
    quiet: Flag = setting(False, "No progress bar; only the summary at the end.", group=_OUTPUT)
    on_divergence: Literal["fresh", "stop"] = setting(
        "fresh", "When recorded steps no longer fit: begin the prompt afresh, or stop.", group=_RESUME
    )
    override: OptionalList = setting(
        None, 'Settings whose change is accepted on resume, or "all".', group=_RESUME, recorded=False
    )

    reasoning_config: dict[str, Any] | None = setting(
        None, "The request's reasoning object, passed through.", typed=False, identity=True
    )
    prefill_messages: tuple[dict[str, Any], ...] | None = setting(
        None, "What prefill_messages_file holds.", typed=False, identity=True
    )
    system_template_text: str | None = setting(None, "What system_template holds.", typed=False, identity=True)

    @field_validator("prefill_messages", mode="before")
    @classmethod
    def _check_prefill(cls, value: Any) -> Any:
        return None if value is None else check_messages(value)

    @field_validator("override")
    @classmethod
    def _check_override(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        names = {name for name in cls.model_fields if cls.about(name).identity}
        given = tuple(name.lstrip("-").replace("-", "_") for name in value or ())
        for name in given:
            if name not in names and name != "all" and name not in _CONTENTS:
                raise ValueError(f"names {name!r}, which is no setting that a resume refuses{suggestion(name, names)}")
        return given or None

    @property
    def run_folder(self) -> FilePath:
        """Where the run is kept."""
        return FilePath(self.data_dir) / self.run_name

    def resolved(self) -> BatchSpec:
        """The same settings, independent of the current folder: absolute paths, and the contents of the prefill and template
        files read in, so that the run folder holds them. (A spec made from a record is resolved already.)

        Raises UserError naming the file (and the message) that can't be used.
        """
        given = self.model_fields_set
        changes: dict[str, Any] = {name: _absolute(getattr(self, name)) for name in ("dataset_file", "data_dir")}
        changes |= {name: _existing(name, getattr(self, name)) for name in _FILES if getattr(self, name)}
        if "prefill_messages_file" in given:
            changes["prefill_messages"] = self.prefill_messages_file and load_prefill(self.prefill_messages_file)
        if "system_template" in given:
            changes["system_template_text"] = self.system_template and _read_text(self.system_template)
        changes |= {name: _absolute(getattr(self, name)) for name in _CONTENTS if getattr(self, name)}
        return self.model_copy(update=changes)


def resume_spec(recorded: BatchSpec, given: BatchSpec) -> BatchSpec:
    """The settings with which a run goes on: what ``given`` sets explicitly, and for the rest what was recorded.

    Both must be ``resolved``. Raises RunError, naming each setting and how to override, if a setting changed that makes it
    another run and ``override`` does not accept it.
    """
    spec = given.inherit(recorded)
    accepted = {_CONTENTS.get(name, name) for name in given.override or ()}
    changes = [change for change in changed_settings(recorded, spec) if not accepted & {change[0], "all"}]
    if changes:
        raise RunError(refusal(changes))
    return spec


def refusal(changes: list[tuple[str, Any, Any]]) -> str:
    """One line that names changed settings and the option that accepts the change."""
    files = {content: file for file, content in _CONTENTS.items()}
    told = ", ".join(f"{files.get(name, name)} was {shown(old)} and is now {shown(new)}" for name, old, new in changes)
    names = ",".join(files.get(name, name) for name, _, _ in changes)
    return f"the run was made with other settings: {told}; leave them as they were, or accept with --override={names}"


def load_prefill(path: str) -> tuple[dict[str, Any], ...]:
    """The messages of a prefill file.

    Raises UserError naming the file, and the message that is wrong.
    """
    try:
        value = loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    try:
        return check_messages(value)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


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


def _absolute(path: str) -> str:
    return str(FilePath(path).expanduser().absolute())


def _existing(name: str, path: str) -> str:
    if not FilePath(path).expanduser().is_file():
        raise UserError(f"--{name}: no such file: {path}")
    return _absolute(path)


def _read_text(path: str) -> str:
    try:
        return FilePath(path).expanduser().read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}") from error
