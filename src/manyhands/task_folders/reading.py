"""Reads task folders: one, or a folder of them in the order of their names. Nothing is run or built here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from manyhands.core.errors import UserError
from manyhands.sandboxes.images.templates import checked_reference
from manyhands.task_folders.contents import (
    DOCKERFILE,
    ENVIRONMENT,
    IMAGE_SEED,
    INSTRUCTION,
    SOLUTION,
    SOLVE_SCRIPT,
    TASK_FILE,
    TEST_SCRIPT,
    TESTS,
    Task,
    Unreadable,
    digest_of,
    leads_out,
)
from manyhands.task_folders.schema import ALLOWLIST, MAIN, PUBLIC, SCHEMA, TaskConfig, problems_of, unknown_keys
from manyhands.task_folders.variables import wrong_reference

COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
IGNORED_KEYS = ("container_name", "command", "entrypoint", "init", "stdin_open", "tty", "hostname", "restart")
"""Keys of a compose file's service that say nothing about what an agent finds: commands are run in it whatever its own would be."""
OLD_TASK_FILE = "task.yaml"
"""Of Terminal-Bench 1."""
BUILT = "manyhands-task"
"""The repository of images that are built."""
MAX_FILE = 4 << 20
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)

Notice = Callable[[str], None]


class BadTask(UserError):
    """A task that can't be taken; the message names it, and what of it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that can't be taken, as a value."""

    name: str
    reason: str
    left_out: bool = False
    """Whether the person chose that such are left out."""


def is_task_folder(path: Path) -> bool:
    """Whether a folder is a task."""
    return (path / TASK_FILE).is_file()


def holds_tasks(path: Path) -> bool:
    """Whether a folder is a task, or has tasks directly in it (also such of Terminal-Bench 1, which ``read_tasks`` refuses)."""
    if not path.is_dir():
        return False
    return any(_is_any_task(each) for each in (path, *(each for each in path.iterdir() if each.is_dir())))


def _is_any_task(folder: Path) -> bool:
    return is_task_folder(folder) or _is_old_task(folder)


def _is_old_task(folder: Path) -> bool:
    return (folder / OLD_TASK_FILE).is_file() and (folder / "run-tests.sh").is_file()


def task_folders(path: Path) -> list[Path]:
    """The task folders that a path stands for, in the order of their names. Folders in it that are none are left out."""
    if _is_any_task(path):
        return [path]
    return sorted((each for each in path.iterdir() if each.is_dir() and _is_any_task(each)), key=lambda each: each.name)


def read_tasks(path: Path, notice: Notice = lambda line: None) -> Iterator[Task | Refused]:
    """The tasks of a folder, streamed in the order of their names. Of two with one name the second is refused. ``notice``: gets a line for
    everything in them that has no effect."""
    names: dict[str, str] = {}
    for folder in task_folders(path):
        try:
            task = read_task(folder, notice)
        except BadTask as error:
            yield Refused(folder.name, str(error))
            continue
        taken = names.setdefault(task.name, folder.name)
        if taken != folder.name:
            yield Refused(
                task.name, f"{folder / TASK_FILE}: task.name: {task.name} is the name of the task in {taken}, too"
            )
            continue
        yield task


def read_task(folder: Path, notice: Notice = lambda line: None) -> Task:
    """One task. Raises BadTask, one line that names the file and the field, or the task and the word of what is not taken."""
    if not is_task_folder(folder) and _is_old_task(folder):
        raise BadTask(
            f"{folder / OLD_TASK_FILE}: task {folder.name} is one of Terminal-Bench 1, which is not taken; "
            "Harbor converts it (harbor tasks migrate)"
        )
    folder = folder.absolute()
    config = _config(folder, notice)
    name = folder.name if config.task is None else config.task.name
    reader = _Reader(folder, name, config, notice)
    return reader.task()


class _Reader:
    """Reads what there is beside ``task.toml``."""

    def __init__(self, folder: Path, name: str, config: TaskConfig, notice: Notice) -> None:
        self._folder = folder
        self._name = name
        self._config = config
        self._notice = notice

    def task(self) -> Task:
        self._refuse_kinds()
        instruction = self._instruction()
        self._check_variables()
        for name in (ENVIRONMENT, TESTS, SOLUTION):
            if (self._folder / name).is_symlink():
                raise self._not_taken(f"{name} is a link")
            if (self._folder / name).is_dir() and (link := leads_out(self._folder / name)) is not None:
                raise self._not_taken(f"{name}/{link} is a link that leads out of {name}/")
        image, built = self._environment()
        verifier_image, verifier_built, own_tests = self._verifier(image, built)
        if own_tests and not (self._folder / TESTS / TEST_SCRIPT).is_file():
            raise self._not_taken(f"there is no {TESTS}/{TEST_SCRIPT}")
        if (self._folder / ".harborignore").exists():
            self._notice(f"task {self._name}: .harborignore has no effect, all files of its folders are copied")
        if self._config.environment.skills_dir is not None:
            self._notice(f"task {self._name}: environment.skills_dir has no effect")
        try:
            digest = digest_of(self._folder)
        except (OSError, Unreadable) as error:
            raise self._not_taken(str(error)) from error
        solved = (self._folder / SOLUTION / SOLVE_SCRIPT).is_file()
        return Task(
            self._name,
            self._folder,
            digest,
            instruction,
            self._config,
            image,
            built,
            verifier_image,
            verifier_built,
            own_tests,
            solved,
        )

    def _not_taken(self, why: str) -> BadTask:
        return BadTask(f"{self._folder}: task {self._name}: {why}")

    def _refuse_kinds(self) -> None:
        config = self._config
        environments = [("environment", config.environment)]
        if config.verifier.environment is not None:
            environments.append(("verifier.environment", config.verifier.environment))
        for name, environment in environments:
            if environment.os != "linux":
                raise self._not_taken(f'{name}.os = "{environment.os}" is not taken, only linux')
            for word in ("gpus", "gpu_types", "tpu", "mcp_servers"):
                if getattr(environment, word):
                    raise self._not_taken(f"{name}.{word} is not taken")
        if config.steps:
            raise self._not_taken(f"steps: tasks of several steps are not taken (this has {len(config.steps)})")
        if (self._folder / "trajectory.json").is_file():
            raise self._not_taken("trajectory.json: earlier context is not taken")
        others = [
            f"verifier.collect: service {each.service!r}" for each in config.verifier.collect if each.service != MAIN
        ]
        others += [
            f"artifacts: service {each.service!r}" for each in config.artifacts if each.service not in (None, MAIN)
        ]
        if others:
            raise self._not_taken(f"{others[0]} is not taken, only {MAIN}")
        self._refuse_changing_networks()

    def _refuse_changing_networks(self) -> None:
        """What a container may reach is settled when it is made."""
        config = self._config
        agent, verifier = agent_policy(config), verifier_policy(config)
        if not config.verifier.separate and agent != verifier:
            raise self._not_taken(
                f'verifier.network_mode: "{verifier[0]}" for the verifier and "{agent[0]}" for the agent in one environment is not taken '
                "where they differ"
            )

    def _instruction(self) -> str:
        path = self._folder / INSTRUCTION
        text = without_canary(_read_text(path, f"task {self._name}: ")).rstrip()
        if not text:
            raise BadTask(f"{path}: task {self._name}: the instruction is empty")
        return text

    def _check_variables(self) -> None:
        config = self._config
        places: list[tuple[str, Mapping[str, str]]] = [
            ("environment.env", config.environment.env),
            ("verifier.env", config.verifier.env),
            ("solution.env", config.solution.env),
        ]
        if config.verifier.environment is not None:
            places.append(("verifier.environment.env", config.verifier.environment.env))
        for place, values in places:
            for name, value in values.items():
                if (wrong := wrong_reference(name, value)) is not None:
                    raise BadTask(f"{self._folder / TASK_FILE}: task {self._name}: {place}.{name}: {wrong}")

    def _environment(self) -> tuple[str | None, str | None]:
        """The image, and the folder whose Dockerfile makes it."""
        compose = self._compose(ENVIRONMENT)
        named = self._config.environment.docker_image or compose.get("image")
        if named is not None:
            return self._named_image(str(named)), None
        built = compose.get("build") or (ENVIRONMENT if (self._folder / ENVIRONMENT / DOCKERFILE).is_file() else None)
        return (None, None) if built is None else (self._tag(built), built)

    def _verifier(self, image: str | None, built: str | None) -> tuple[str | None, str | None, bool]:
        """The image of a verifier's own environment, the folder whose Dockerfile makes it, and whether tests are copied to it."""
        if not self._config.verifier.separate:
            return None, None, True
        environment = self._config.verifier.environment
        if environment is not None and environment.docker_image is not None:
            return self._named_image(environment.docker_image), None, False
        compose = self._compose(TESTS)
        if compose or (self._folder / TESTS / DOCKERFILE).is_file():
            if compose.get("image") is not None:
                return self._named_image(str(compose["image"])), None, False
            return self._tag(TESTS), TESTS, False
        return image, built, True

    def _named_image(self, name: str) -> str:
        """Raises BadTask for what can't be the name of an image, such as a file of this machine."""
        try:
            return checked_reference(name)
        except ValueError as error:
            raise self._not_taken(f"docker_image: {error}") from None

    def _tag(self, name: str) -> str:
        try:
            return f"{BUILT}:{digest_of(self._folder / name, seed=IMAGE_SEED)}"
        except (OSError, Unreadable) as error:
            raise self._not_taken(f"{name}: {error}") from error

    def _compose(self, name: str) -> dict[str, Any]:
        """The ``image``, or the folder to ``build``, that a compose file's only service names; empty without a compose file."""
        path = next((each for file in COMPOSE_FILES if (each := self._folder / name / file).is_file()), None)
        if path is None:
            return {}
        from manyhands.io.yaml_files import read_yaml

        value, _ = read_yaml(path, str(path))
        services = value.get("services") if isinstance(value, Mapping) else None
        if not isinstance(services, Mapping) or MAIN not in services:
            raise self._not_taken(f"{name}/{path.name}: compose without a service {MAIN} is not taken")
        others = [str(each) for each in services if each != MAIN]
        if others:
            raise self._not_taken(
                f"{name}/{path.name}: compose with more than {MAIN} is not taken (it has {', '.join(others)})"
            )
        service = services[MAIN] or {}
        if not isinstance(service, Mapping):
            raise self._not_taken(f"{name}/{path.name}: compose: services.{MAIN} is no mapping")
        beyond = [str(each) for each in service if each not in ("image", "build", *IGNORED_KEYS)]
        if beyond:
            raise self._not_taken(f"{name}/{path.name}: compose with services.{MAIN}.{beyond[0]} is not taken")
        return self._compose_image(f"{name}/{path.name}", name, service)

    def _compose_image(self, file: str, name: str, service: Mapping[str, Any]) -> dict[str, Any]:
        build = service.get("build")
        if build is None:
            image = service.get("image")
            return {} if image is None else {"image": str(image)}
        context = build.get("context", ".") if isinstance(build, Mapping) else build
        beyond = [str(each) for each in build if each != "context"] if isinstance(build, Mapping) else []
        if beyond or str(context).rstrip("/") not in (".", ""):
            raise self._not_taken(
                f"{file}: compose with services.{MAIN}.build.{(beyond or ['context'])[0]} is not taken"
            )
        if not (self._folder / name / DOCKERFILE).is_file():
            raise self._not_taken(f"{file}: compose: there is no {name}/{DOCKERFILE} to build")
        return {"build": name}


def agent_policy(config: TaskConfig) -> tuple[str, tuple[str, ...]]:
    """What the agent may reach: the network mode, and the hosts of an allowlist."""
    return _phase(config.agent, config.environment.policy)


def verifier_policy(config: TaskConfig) -> tuple[str, tuple[str, ...]]:
    """The like of the verifier."""
    environment = config.environment
    if config.verifier.separate and config.verifier.environment is not None:
        environment = config.verifier.environment
    return _phase(config.verifier, environment.policy)


def _phase(section: Any, around: tuple[str, tuple[str, ...]]) -> tuple[str, tuple[str, ...]]:
    return around if section.network_mode is None else (section.network_mode, section.allowed_hosts or ())


def without_canary(text: str) -> str:
    """An instruction without the lines at its beginning that keep it out of training data, and the empty ones behind them."""
    lines = text.split("\n")
    while lines and _CANARY.fullmatch(lines[0].strip()):
        lines.pop(0)
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines)


def _config(folder: Path, notice: Notice) -> TaskConfig:
    path = folder / TASK_FILE
    try:
        data = tomllib.loads(_read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadTask(f"{path}: not TOML: {error}") from error
    data = _plain(data)
    try:
        config = TaskConfig.model_validate(data)
    except ValidationError as error:
        raise BadTask(f"{path}: {'; '.join(problems_of(error))}") from error
    if config.is_newer:
        notice(f"{path}: schema_version {config.schema_version} is later than {SCHEMA}, and read as far as it is known")
    for key in unknown_keys(data):
        notice(f"{path}: {key} is not known, and has no effect")
    for key in ("memory", "storage"):
        environments = (data.get("environment"), data.get("verifier", {}).get("environment"))
        if any(isinstance(each, Mapping) and key in each and not isinstance(each[key], str) for each in environments):
            notice(f"{path}: environment.{key} has no effect, as it is no text such as 2G; use {key}_mb")
    return config


def _plain(value: Any) -> Any:
    """Dates and times as text, as JSON has none."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, (date, time)) else value


def _read_text(path: Path, of: str = "") -> str:
    try:
        if not path.resolve(strict=True).is_relative_to(path.parent.resolve()):
            raise BadTask(f"{path}: {of}is a link that leads out of the task's folder")
        if not path.is_file():
            raise BadTask(f"{path}: {of}is no file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise BadTask(f"{path}: {of}more than {MAX_FILE:,} bytes")
        return data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise BadTask(f"{path}: {of}there is no such file") from None
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        raise BadTask(f"{path}: {of}can't be read: {getattr(error, 'strerror', None) or error}") from error


def policy_text(policy: tuple[str, tuple[str, ...]]) -> str:
    """A network policy for people."""
    mode, hosts = policy
    return f"{mode} ({', '.join(hosts)})" if mode == ALLOWLIST and hosts else "the network" if mode == PUBLIC else mode
