"""What a kind of target is to the evaluations: settings that can be checked, opened and, if it calls models, judge; and what it is made and
opened with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from manyhands.core.jsonio import Json
from manyhands.core.settings import Secret
from manyhands.core.text import expand_home
from manyhands.graders.protocol import Judge
from manyhands.io.keys import Spellings
from manyhands.io.locations import Location
from manyhands.models.protocol import ChatModel
from manyhands.processes.commands import CommandRunner
from manyhands.processes.python_functions import Function
from manyhands.processes.templates import CommandTemplate
from manyhands.sandboxes.images.pins import Pins
from manyhands.sandboxes.settings import SandboxSettings
from manyhands.workloads.evals.targets.command import CommandSettings
from manyhands.workloads.evals.targets.kinds.model_keys import AgentTargetOptions
from manyhands.workloads.evals.targets.live import LiveTarget


@dataclass(frozen=True, slots=True)
class Making:
    """What the settings of a target are made with."""

    kind: str
    location: Location
    """The target's."""
    words: Spellings
    """How its keys are written."""
    folder: Path
    """The eval file's, from which its paths start."""
    eval_file: Path | None
    environ: Mapping[str, str]
    """Where API keys are looked for that it does not name."""

    def at(self, key: str) -> Location:
        """The location of a key, by its present name."""
        return self.location.at(self.words.get((key,), key))

    def path(self, named: str | None) -> Path:
        """An absolute path from the eval file's folder; the folder itself for None."""
        return self.folder if named is None else (self.folder / expand_home(named)).absolute()


@dataclass(frozen=True, slots=True)
class Checking:
    """What a target is checked with that will answer tests."""

    at: Callable[[str], Location]
    """The location of a key, by its present name."""
    location: Location
    """The target's."""
    given: Collection[str]
    """The keys that the person wrote, by their present names."""
    environ: Mapping[str, str]
    """The real environment."""
    hooked: bool
    """Whether it works in workspaces, where hooks may make what it needs."""
    images: bool = False
    """Whether tests bring container images."""
    functions: Mapping[str, Function] = field(default_factory=dict)
    """Those that were given in Python, by what they are recorded as."""


class TargetOpening(Protocol):
    """What a target is opened with by a session."""

    @property
    def identity(self) -> str:
        """What makes the target another one: its kind and settings, as the person wrote them."""
        ...

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment variables that its settings may name."""
        ...

    @property
    def additions(self) -> Mapping[str, str]:
        """To the environment of its commands."""
        ...

    @property
    def functions(self) -> Mapping[str, Function]:
        """Those that were given in Python, by what they are recorded as."""
        ...

    @property
    def eval_file(self) -> Path:
        """The file whose tests it answers."""
        ...

    @property
    def dataset(self) -> str:
        """What results call that file."""
        ...

    async def test_ids(self) -> Sequence[str]:
        """The ids of the tests that it answers, in their order."""
        ...

    @property
    def mark(self) -> str:
        """By which processes of this run are known."""
        ...

    @property
    def stack(self) -> AsyncExitStack:
        """Closes what was opened."""
        ...

    @property
    def run_folder(self) -> Path: ...

    @property
    def services(self) -> Mapping[str, Json]:
        """What was chosen of services for its tools."""
        ...

    @property
    def pins(self) -> Pins:
        """What the images mean in which it works."""
        ...

    @property
    def has_tasks(self) -> bool:
        """Whether the tests are task folders."""
        ...

    @property
    def task_limits(self) -> Mapping[str, Any]:
        """What the run says of their limits: ``multiplier`` and ``override`` of ``TaskRules``."""
        ...

    @property
    def task_environ(self) -> Mapping[str, str]:
        """The variables of this machine that tasks may have."""
        ...

    @property
    def end_processes(self) -> bool:
        """Whether what agents leave running goes on beside verifiers."""
        ...

    @property
    def agent_command(self) -> str | None:
        """The run's command that does tasks, whatever the target says."""
        ...

    @property
    def runner(self) -> CommandRunner:
        """Starts commands."""
        ...

    def at(self, key: str) -> Location:
        """The location of a key, by its present name."""
        ...

    def teller(self, verbose: bool) -> Callable[[str], None] | None:
        """Shows every command that the target runs, if that is wanted; ``verbose``: whether the target says so."""
        ...

    def cached(self, live: LiveTarget, files: Mapping[str, Json], fields: tuple[str, ...] = ()) -> LiveTarget:
        """The target with the answers of earlier runs, if these are wanted. ``files``: those that make it another one if they change;
        ``fields``: what it gets of a test besides the prompt and the input."""
        ...

    def model(self, options: AgentTargetOptions, api_keys: Sequence[Secret]) -> ChatModel:
        """A model; the session closes it."""
        ...

    async def batch(
        self, command: CommandSettings, workspace_template: Path | None, tell: Callable[[str], None] | None
    ) -> LiveTarget:
        """A command that answers all tests at once, started. ``workspace_template``: the folder that is copied for it; ``tell``: gets a
        line for every command that is run."""
        ...

    async def answers_in(self, path: Path) -> LiveTarget:
        """A file that holds the answers to all tests, as a command that answers them at once writes it."""
        ...


class JudgeOpening(Protocol):
    """What a judge is made ready with by a session."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment variables that its settings may name."""
        ...

    @property
    def additions(self) -> Mapping[str, str]:
        """To the environment of its commands."""
        ...

    @property
    def runner(self) -> CommandRunner:
        """Starts commands."""
        ...

    def at(self, key: str) -> Location:
        """The location of a key, by its present name."""
        ...

    def teller(self, verbose: bool) -> Callable[[str], None] | None:
        """Shows every command that the judge runs, if that is wanted; ``verbose``: whether the target says so."""
        ...

    def model(self, options: AgentTargetOptions, api_keys: Sequence[Secret]) -> ChatModel:
        """A model; the session closes it."""
        ...


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """A check before a command is used: an address that must answer with 2xx, or a command that must exit with 0."""

    seconds: float
    """Its time limit."""
    folder: Path
    """Where the command starts."""
    url: str | None = None
    template: CommandTemplate | None = None


class TargetSettings(ABC):
    """The settings of a target of one kind, with the values of the environment in them. They are not recorded."""

    __slots__ = ()

    @abstractmethod
    async def open(self, opening: TargetOpening) -> LiveTarget:
        """The target, ready to answer tests. Raises UserError if it can't be used."""

    def check(self, checking: Checking) -> None:  # noqa: B027 - most kinds need none
        """Check what can be before anything runs, if the target is to answer tests. Raises UserError."""

    def judge(self, name: str, opening: JudgeOpening) -> Judge | None:
        """The target as a judge; None if it can't be one. ``name``: the target's. Raises UserError if it can't be used."""
        return None

    def services(self, environ: Mapping[str, str]) -> Mapping[str, Json]:
        """What there is of services for its tools, to be recorded. Raises UserError for settings that can't be used."""
        return {}

    @property
    def image_settings(self) -> SandboxSettings | None:
        """What its sandboxes are made of and how, if that is a container image."""
        return None

    @property
    def sandbox_settings(self) -> SandboxSettings | None:
        """The settings of its sandboxes, if it can do task folders or work in tests' containers."""
        return None

    @property
    def healthcheck(self) -> Healthcheck | None:
        """What is checked before the first run of the target, if anything is."""
        return None

    @property
    def workspace_template(self) -> Path | None:
        """The folder that is copied as its workspace, if it names one."""
        return None
