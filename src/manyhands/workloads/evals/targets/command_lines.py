"""Commands of targets: their placeholders, which have AgentV's names and some more, and what a command needs besides their values."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, without_surrogates
from manyhands.io.locations import Place
from manyhands.processes.templates import MAX_ARGUMENT, PREFIX, CommandTemplate, Words, quoted, spots

PLACEHOLDERS: Mapping[str, str] = {
    "PROMPT": "the prompt",
    "PROMPT_FILE": "a file with the prompt",
    "GUIDELINES": "the text of the guideline files",
    "EVAL_ID": "the test's id; `batch` in a batch command",
    "ATTEMPT": "how often this was asked before: 0 the first time",
    "FILES": "all files that the input names, guidelines first, each once and as `files_format` says",
    "OUTPUT_FILE": "where the answer is to be written",
    "EVAL_FILE": "the eval file",
    "EVAL_DIR": "the folder of the eval file",
    "TEST_IDS_FILE": "a file with the ids of the tests to answer, one a line",
    "BATCH_INPUT_FILE": "a file with the tests to answer, a JSON object a line",
    "WORKSPACE": "the folder to work in: the workspace, or where there is none, the one in which the command starts",
}
"""Every placeholder, and what it stands for. All paths are absolute."""
_INSTEAD = "have it read from {PROMPT_FILE} or {BATCH_INPUT_FILE} what is long"
_FILE_TOKENS = re.compile(r"\{(path|basename)\}")


@dataclass(frozen=True, slots=True)
class Values:
    """What placeholders stand for in one call. ``files_format``: how each file stands in ``{FILES}``, with ``{path}`` and
    ``{basename}`` in it. A path that is None is empty text."""

    prompt: str = ""
    guidelines: str = ""
    eval_id: str = ""
    attempt: int = 0
    files: Sequence[Path] = ()
    files_format: str = "{path}"
    prompt_file: Path | None = None
    output_file: Path | None = None
    eval_file: Path | None = None
    test_ids_file: Path | None = None
    batch_input_file: Path | None = None
    workspace: Path | None = None

    def filled(self, template: CommandTemplate) -> list[str]:
        """The words to start. Raises ItemError(INVALID_INPUT) for a value that can't be part of a command."""
        return template.filled(self._values(), instead=_INSTEAD)

    def shown(self, template: CommandTemplate) -> str:
        """The filled command as a person would type it."""
        return template.shown(self._values())

    def texts(self) -> dict[str, str]:
        """Each placeholder's value; those of ``FILES`` stand on a line each."""
        return {
            "PROMPT": self.prompt,
            "PROMPT_FILE": _path(self.prompt_file),
            "GUIDELINES": self.guidelines,
            "EVAL_ID": self.eval_id,
            "ATTEMPT": str(self.attempt),
            "FILES": "\n".join(map(_path, self.files)),
            "OUTPUT_FILE": _path(self.output_file),
            "EVAL_FILE": _path(self.eval_file),
            "EVAL_DIR": _path(None if self.eval_file is None else self.eval_file.absolute().parent),
            "TEST_IDS_FILE": _path(self.test_ids_file),
            "BATCH_INPUT_FILE": _path(self.batch_input_file),
            "WORKSPACE": _path(self.workspace),
        }

    def environment(self) -> dict[str, str]:
        """The same for a command's environment. A value too long for one is left out: it is in its file."""
        named = {PREFIX + name: without_surrogates(text) for name, text in self.texts().items()}
        return {name: text for name, text in named.items() if len(os.fsencode(f"{name}={text}")) <= MAX_ARGUMENT}

    def _values(self) -> dict[str, str | Words]:
        words = [
            _FILE_TOKENS.sub(lambda found, file=file: _file_part(found[1], file), word)  # type: ignore[misc]
            for file in self.files
            for word in shlex.split(self.files_format)
        ]
        return {**self.texts(), "FILES": Words(" ".join(map(self._file_in_line, self.files)), words)}

    def _file_in_line(self, file: Path) -> str:
        pieces, end = [], 0
        for found, spot in spots(self.files_format, _FILE_TOKENS):
            pieces += [self.files_format[end : found.start()], spot.around(quoted(_file_part(found[1], file)))]
            end = found.end()
        return "".join([*pieces, self.files_format[end:]])


def parse_command(value: Json, place: Place) -> CommandTemplate:
    """A target's command: a text for the shell, or a list of words. Raises UserError as ``CommandTemplate.parse``."""
    return CommandTemplate.parse(value, place, PLACEHOLDERS)


def _file_part(token: str, file: Path) -> str:
    return _path(file) if token == "path" else file.name


def _path(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


def check_files_format(value: str, place: Place) -> str:
    """``files_format`` as it is. Raises UserError if it can't be split into words, or if no quotation would hold a file together."""
    try:
        shlex.split(value)
    except ValueError as error:
        raise UserError(place.says(f"can't be split into words ({str(error).lower()})")) from None
    for found, spot in spots(value, _FILE_TOKENS):
        if not spot.safe:
            raise place.error(f"{found[0]} can't be put into {spot.value}")
    return value


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """A target's command. ``folder``: where it starts; ``seconds``: its time limit, None for none; ``eval_file``: whose tests it
    answers; ``files_format``: see ``placeholders.Values``; ``keep_files``: whether its files in a temporary place stay there;
    ``own_folder``: whether it starts in its folder also where there is a workspace; ``additions``: to its environment, besides what
    its placeholders stand for."""

    template: CommandTemplate
    folder: Path
    eval_file: Path | None = None
    seconds: float | None = None
    files_format: str = "{path}"
    keep_files: bool = False
    own_folder: bool = False
    additions: Mapping[str, str] = field(default_factory=dict)

    def within(self, workspace: Path | None) -> CommandSettings:
        """The command as it starts in a workspace, if there is one."""
        return self if workspace is None or self.own_folder else replace(self, folder=workspace)
