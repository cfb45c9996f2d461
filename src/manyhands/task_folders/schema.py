"""``task.toml`` of a task folder, in the words of Harbor's schema 1.4 and those before it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from manyhands.core.jsonio import finite
from manyhands.network.rules import NetworkRules

MAIN = "main"
"""The service that agents work in."""
PUBLIC, NO_NETWORK, ALLOWLIST = "public", "no-network", "allowlist"
SCHEMA = "1.4"
"""The version of the schema that is read. Of later ones with the same first number, which add to it, what is known is read."""
_VERSION = re.compile(r"1(?:\.[0-9]{1,6})?")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([GMK])")
_MEGABYTES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
_OLD_SIZES = {"memory": "memory_mb", "storage": "storage_mb"}
"""Former keys of ``[environment]``, whose values are texts such as ``2G``."""

User = str | int | None


class _Section(BaseModel):
    """A section. Keys that are not known are left alone: ``unknown_keys`` names them."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


def allowed_host(entry: str) -> str:
    """An entry of ``allowed_hosts`` in its usual form: a name, a name behind ``*.``, an address or a CIDR block. Raises ValueError."""
    host = entry.strip().lower().rstrip(".")
    if "/" in host or ":" in host:
        try:
            return _readable(str(ipaddress.ip_network(host) if "/" in host else ipaddress.IPv6Address(host)))
        except ValueError:
            raise ValueError(
                f"{entry!r} is no host: names, addresses and CIDR blocks, without ports or paths"
            ) from None
    labels = host.removeprefix("*.").split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or (host.startswith("*.") and _is_address(host[2:])):
        raise ValueError(
            f"{entry!r} is no host: names, *. and a name, addresses and CIDR blocks, without ports or paths"
        )
    return _readable(host)


def _readable(host: str) -> str:
    """Raises ValueError for a host that no sandbox could be allowed."""
    NetworkRules.read((host,))
    return host


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


NetworkMode = Literal["public", "no-network", "allowlist"]
Host = Annotated[str, BeforeValidator(lambda value: allowed_host(value) if isinstance(value, str) else value)]


class _Network(_Section):
    """What may be reached. None: as around it."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[Host, ...] | None = None

    @model_validator(mode="after")
    def _hosts_of_a_list(self) -> _Network:
        if self.allowed_hosts and (self.network_mode or self._usual_mode) != ALLOWLIST:
            raise ValueError('allowed_hosts is for network_mode = "allowlist" alone')
        return self

    @property
    def _usual_mode(self) -> str:
        return PUBLIC


class Author(_Section):
    """Who made a task."""

    name: str
    email: str | None = None


class TaskSection(_Section):
    """``[task]``: what the task is called."""

    name: str
    version: str | None = None
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()

    @field_validator("name")
    @classmethod
    def _with_organisation(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ValueError("must be ORGANISATION/NAME of letters, digits, hyphens, underscores and dots")
        return name


class AgentSection(_Network):
    """``[agent]``: how the agent works."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: User = None


class Healthcheck(_Section):
    """A command that must succeed before the agent begins."""

    command: str
    interval_sec: float = Field(default=5.0, ge=0)
    timeout_sec: float = Field(default=30.0, gt=0)
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, ge=0)
    retries: int = Field(default=3, ge=1)


class McpServer(_Section):
    """An MCP server in the environment."""

    name: str
    transport: str = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: Mapping[str, str] = Field(default_factory=dict)


class Environment(_Network):
    """``[environment]``: what the agent works in."""

    docker_image: str | None = None
    build_timeout_sec: float = Field(default=600.0, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: Mapping[str, Any] | None = None
    os: Literal["linux", "windows"] = "linux"
    workdir: str | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    skills_dir: str | None = None
    allow_internet: bool | None = None
    """The former ``network_mode``."""

    @model_validator(mode="before")
    @classmethod
    def _present_words(cls, data: Any) -> Any:
        """Former keys by their present names. Raises ValueError for values that contradict each other."""
        if not isinstance(data, Mapping):
            return data
        found = {name: value for name, value in data.items() if name not in _OLD_SIZES}
        if isinstance(found.get("os"), str):
            found["os"] = found["os"].lower()
        for old, name in _OLD_SIZES.items():
            if not isinstance(data.get(old), str):
                continue
            size = _megabytes(old, data[old])
            if found.setdefault(name, size) != size:
                raise ValueError(f"{old} = {data[old]!r} and {name} = {found[name]} contradict each other")
        return found

    @property
    def policy(self) -> tuple[str, tuple[str, ...]]:
        """The network mode, and the hosts of an allowlist."""
        mode: str | None = self.network_mode
        if mode is None:
            mode = NO_NETWORK if self.allow_internet is False and self.allowed_hosts is None else PUBLIC
        return mode, self.allowed_hosts or ()


def _megabytes(name: str, text: str) -> int:
    found = _SIZE.fullmatch(text.strip().upper())
    if found is None:
        raise ValueError(f"{name} = {text!r} is no size, as 2G, 512M or 100K are")
    return int(float(found[1]) * _MEGABYTES[found[2]])


class Collect(_Section):
    """A command that is run when the agent has ended."""

    command: str
    service: str = MAIN
    timeout_sec: float = Field(default=60.0, gt=0)
    user: User = None


class VerifierSection(_Network):
    """``[verifier]``: how the agent's work is verified."""

    timeout_sec: float = Field(default=600.0, gt=0)
    env: Mapping[str, str] = Field(default_factory=dict)
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: tuple[Collect, ...] = ()

    @model_validator(mode="after")
    def _mode_fits(self) -> VerifierSection:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('environment_mode = "shared" contradicts [verifier.environment]')
        return self

    @property
    def separate(self) -> bool:
        """Whether it has an environment of its own."""
        mode = self.environment_mode or ("shared" if self.environment is None else "separate")
        return mode == "separate"


class Artifact(_Section):
    """A file or folder that is kept."""

    source: str
    """Where it is inside; a relative path starts where commands start."""
    destination: str | None = None
    """Where it is kept; None: at the path that it has inside."""
    exclude: tuple[str, ...] = ()
    """Patterns of tar."""
    service: str | None = None

    @field_validator("source")
    @classmethod
    def _stays_below(cls, source: str) -> str:
        if not source or ".." in PurePosixPath(source).parts:
            raise ValueError(f"{source!r} is no path without ..")
        path = PurePosixPath(source)
        if not path.name:  # the names in an archive of it would begin otherwise than those of a named folder
            raise ValueError(f"{source!r} names no file or folder: say which of it is kept")
        return source if source.rstrip("/").rpartition("/")[2] == path.name else str(path)

    @field_validator("destination")
    @classmethod
    def _below(cls, destination: str | None) -> str | None:
        if not destination:
            return None
        path = PurePosixPath(destination)
        if "\\" in destination or path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{destination!r} is no relative path without ..")
        return destination

    @model_validator(mode="after")
    def _leaves_the_list(self) -> Artifact:
        if PurePosixPath(self.destination or self.source).parts[-2:] in (("manifest.json",), ("/", "manifest.json")):
            raise ValueError("manifest.json is taken by the list of what was kept")
        return self


class SolutionSection(_Section):
    """``[solution]``: how the task's own solution is run."""

    env: Mapping[str, str] = Field(default_factory=dict)


class TaskConfig(_Section):
    """All of ``task.toml``."""

    schema_version: str = SCHEMA
    source: str | None = None
    task: TaskSection | None = None
    metadata: Annotated[Mapping[str, Any], AfterValidator(finite)] = Field(default_factory=dict)
    """What the author says of it: difficulty, tags …"""
    agent: AgentSection = Field(default_factory=AgentSection)
    environment: Environment = Field(default_factory=Environment)
    verifier: VerifierSection = Field(default_factory=VerifierSection)
    solution: SolutionSection = Field(default_factory=SolutionSection)
    artifacts: tuple[Artifact, ...] = ()
    steps: tuple[Mapping[str, Any], ...] | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None

    @field_validator("schema_version")
    @classmethod
    def _known_version(cls, version: str) -> str:
        if not _VERSION.fullmatch(version):
            raise ValueError(f"{version!r} is no version that is read: 1.0 to {SCHEMA}")
        return version

    @property
    def is_newer(self) -> bool:
        """Whether its version is a later one than that which is read whole."""
        return int(self.schema_version.partition(".")[2] or 0) > int(SCHEMA.partition(".")[2])

    @model_validator(mode="before")
    @classmethod
    def _present_words(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        found = dict(data)
        if "version" in found:
            found.setdefault("schema_version", found.pop("version"))
        if isinstance(found.get("artifacts"), list):
            found["artifacts"] = [{"source": each} if isinstance(each, str) else each for each in found["artifacts"]]
        return found

    def to_json(self) -> dict[str, Any]:
        """What is not as it is by default; ``from_json`` takes it back."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TaskConfig:
        return cls.model_validate(value)


def problems_of(error: ValidationError) -> Iterator[str]:
    """What is wrong with a ``task.toml``, each with its field: ``environment.cpus: …``."""
    for each in error.errors(include_url=False, include_input=False):
        at = ".".join(str(part + 1) if isinstance(part, int) else part for part in each["loc"])
        said = each["msg"].removeprefix("Value error, ")
        yield f"{at}: {said}" if at else said


_SAME_WORDS = {Environment: frozenset(_OLD_SIZES), TaskConfig: frozenset(("version",))}


def unknown_keys(data: Mapping[str, Any], model: type[BaseModel] = TaskConfig, within: str = "") -> Iterator[str]:
    """The keys of a ``task.toml`` that mean nothing, as ``environment.cpu``. ``data``: what is right but for them."""
    for name, value in data.items():
        if name in _SAME_WORDS.get(model, ()):
            continue
        field = model.model_fields.get(name)
        if field is None:
            yield within + name
            continue
        inner = _model_in(field.annotation)
        for each in value if isinstance(value, list) else [value]:
            if inner is not None and isinstance(each, Mapping):
                yield from unknown_keys(each, inner, f"{within}{name}.")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section in an annotation such as ``tuple[Section, ...]`` or ``Section | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
