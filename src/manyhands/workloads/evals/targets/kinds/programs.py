"""Programs as targets: a command of the person's own, and what all programs have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

from pydantic import WithJsonSchema

from manyhands.core.jsonio import Json
from manyhands.core.settings import Flag, Text, shown
from manyhands.graders.protocol import Judge
from manyhands.io.keys import collect, key
from manyhands.io.locations import Findings, Location, problems_error
from manyhands.processes.templates import CommandTemplate, missing
from manyhands.workloads.evals.evalfile.keys import REFERENCE, Block
from manyhands.workloads.evals.targets.answers import Answer
from manyhands.workloads.evals.targets.command import (
    CommandInvoker,
    CommandSettings,
    CommandTarget,
    Question,
    Read,
    check_files_format,
    parse_command,
    read_answer,
)
from manyhands.workloads.evals.targets.judging import Asked, judge_of
from manyhands.workloads.evals.targets.keys import Command, Seconds, TargetBlock
from manyhands.workloads.evals.targets.kinds.protocol import (
    Checking,
    Healthcheck,
    JudgeOpening,
    Making,
    TargetOpening,
    TargetSettings,
)
from manyhands.workloads.evals.targets.live import LiveTarget
from manyhands.workloads.evals.targets.recorded import content, named_files

HEALTHCHECK_FLAG = "--healthcheck"
HEALTHCHECK_SECONDS = 60.0
"""What a healthcheck may take where neither it nor its target says."""
_HTTP = ("http://", "https://")


class HealthcheckBlock(Block):
    """A check of whether a command can be used."""

    spellings: ClassVar = {"command_template": "command"}

    type: Text | None = key(None, "`http` or `command` (default: whichever of url and command is given).")
    url: Text | None = key(None, "Address that must answer with 2xx.")
    command: Command = key(None, "Command that must exit with 0.")
    cwd: Text | None = key(None, "Working directory, relative to the eval file (default: the target's).")
    timeout_seconds: Seconds | None = key(None, "Time limit in seconds (default: the target's, else 60).")


class ProgramBlock(TargetBlock):
    """Keys of targets that are programs."""

    heading: ClassVar = "Programs: `cli` and known agents"
    mappings: ClassVar = {"healthcheck": HealthcheckBlock}
    spellings: ClassVar = {
        **TargetBlock.spellings,
        "attachments_format": "files_format",
        "cli_verbose": "verbose",
        "keep_output_files": "keep_temp_files",
    }

    cwd: Text | None = key(None, "Working directory, relative to the eval file (default: the eval file's folder).")
    workspace_template: Text | None = key(None, "Folder that is copied as its workspace, relative to the eval file.")
    timeout_seconds: Seconds | None = key(None, "Time limit of an invocation in seconds (default: none).")
    files_format: Text = key("{path}", "Format of each file in {FILES}, with {path} and {basename}.")
    healthcheck: Annotated[
        Any, WithJsonSchema({"anyOf": [{REFERENCE: "HealthcheckBlock"}, {"type": ["string", "boolean"]}]})
    ] = key(None, "Check before anything else runs; true: the command itself with --healthcheck.")
    verbose: Flag = key(False, "Show the commands that are run.")
    keep_temp_files: Flag = key(False, "Keep its prompt and output files.")


class CliBlock(ProgramBlock):
    """A command of the person's own."""

    spellings: ClassVar = {**ProgramBlock.spellings, "command_template": "command"}

    command: Command = key(..., "The command: a line for sh, or a list of words, with {PLACEHOLDERS}.")


# --- Its settings


@dataclass(frozen=True, slots=True)
class CliTargetSettings(TargetSettings):
    """A program."""

    command: CommandSettings
    batching: bool = False
    """Whether one invocation answers all tests, and not one each."""
    healthcheck: Healthcheck | None = None
    workspace_template: Path | None = None
    """The folder that is copied for it."""
    verbose: bool = False
    """Whether the commands that are run are shown."""
    is_agent: bool = False
    """Whether it is a known agent, which looks at workspaces also as a judge."""

    def check(self, checking: Checking) -> None:
        if checking.hooked or self.workspace_template is not None:
            return
        template, folder = self.command.template, self.command.folder
        problem = missing(template.line or template.words, folder, checking.environ)
        if problem is not None:
            written = next(key for key in ("command", "executable", "provider") if key in checking.given)
            raise checking.at(written).error(problem)

    async def open(self, opening: TargetOpening) -> LiveTarget:
        command, tell = self._command(opening), opening.teller(self.verbose)
        if self.batching:
            return await opening.batch(command, self.workspace_template, tell)
        files = await asyncio.to_thread(named_files, command.template, command.folder)
        invoker = CommandInvoker(command, opening.runner, environ=opening.environ, tell=tell)
        if command.template.uses("EVAL_FILE", "EVAL_DIR"):
            files |= {str(opening.eval_file): await asyncio.to_thread(content, opening.eval_file)}
        target = CommandTarget(invoker, opening.identity, keep_files=command.keep_files)
        return opening.cached(target, files)

    def judge(self, name: str, opening: JudgeOpening) -> Judge | None:
        if self.batching:
            return None
        command = self._command(opening)
        if not self.is_agent:
            command = replace(command, own_folder=True)
        invoker = CommandInvoker(command, opening.runner, environ=opening.environ, tell=opening.teller(self.verbose))

        async def ask(asked: Asked) -> Answer:
            with TemporaryDirectory(prefix="manyhands-judge-", ignore_cleanup_errors=True) as folder:
                question = Question(asked.test_id, asked.prompt)
                return (await invoker.ask(question, Path(folder), asked.workspace)).answer

        return judge_of(name, ask)

    def _command(self, opening: TargetOpening | JudgeOpening) -> CommandSettings:
        return replace(self.command, additions={**opening.additions, **self.command.additions})


def cli_settings(block: CliBlock, making: Making) -> CliTargetSettings:
    """A command of the person's own. Raises UserError for one with unknown placeholders, or a healthcheck that is none."""
    template = parse_command(block.command, making.at("command"))
    return program_settings(block, template, making)


def program_settings(
    block: ProgramBlock,
    template: CommandTemplate,
    making: Making,
    *,
    own: Mapping[str, str] | None = None,
    before: str = "",
    read: Read = read_answer,
    log_folder: Path | None = None,
) -> CliTargetSettings:
    """A program. ``own``: what it has in its environment of its own; ``before``: a text before each prompt; ``read``: how its answers are
    read; ``log_folder``: for what it prints. Raises UserError for what can't be together, or is not there."""
    if block.cwd is not None and block.workspace_template is not None:
        raise making.at("cwd").error("can't be given together with workspace_template")
    folder = making.path(block.cwd)
    if not folder.is_dir():
        raise making.at("cwd").error(f"there is no folder {folder}")
    command = CommandSettings(
        template,
        folder,
        making.eval_file,
        block.timeout_seconds,
        check_files_format(block.files_format, making.at("files_format")),
        block.keep_temp_files,
        own_folder=block.cwd is not None,
        additions=own or {},
        before=before,
        read=read,
        log_folder=log_folder,
    )
    return CliTargetSettings(
        command,
        batching=block.provider_batching,
        healthcheck=_healthcheck(block.healthcheck, command, making),
        workspace_template=_template_folder(block.workspace_template, making),
        verbose=block.verbose,
        is_agent=read is not read_answer,
    )


def _template_folder(named: str | None, making: Making) -> Path | None:
    path = making.path(named)
    if named is not None and not path.is_dir():
        raise making.at("workspace_template").error(f"there is no folder {path}")
    return None if named is None else path


def _healthcheck(value: Json, command: CommandSettings, making: Making) -> Healthcheck | None:
    """``true``: the command itself with ``--healthcheck``; a text: an address, such a flag, or a command; or a mapping."""
    location = making.at("healthcheck")
    seconds = command.seconds or HEALTHCHECK_SECONDS
    if value is None or value is False:
        return None
    if value is True or (isinstance(value, str) and value.startswith("-")):
        flag = HEALTHCHECK_FLAG if value is True else str(value)
        return Healthcheck(seconds, command.folder, template=command.template.with_word(flag))
    if isinstance(value, str):
        value = {"url" if value.startswith(_HTTP) else "command": value}
    return _healthcheck_mapping(value, seconds, command, making, location)


def _healthcheck_mapping(
    value: Any, seconds: float, command: CommandSettings, making: Making, location: Location
) -> Healthcheck:
    findings = Findings()
    found = collect(HealthcheckBlock, value, location, findings)
    if found is None:
        raise problems_error(findings.problems)
    block = found.block
    if (block.url is None) == (block.command is None) or block.type not in (None, "http" if block.url else "command"):
        raise location.error("needs either type http with a url, or type command with a command")
    if block.url is not None and not block.url.startswith(_HTTP):
        raise found.at("url").error(f"must be an address that starts with http:// or https://, not {shown(block.url)}")
    template = None if block.command is None else parse_command(block.command, found.at("command"))
    folder = command.folder if block.cwd is None else making.path(block.cwd)
    return Healthcheck(block.timeout_seconds or seconds, folder, block.url, template)
