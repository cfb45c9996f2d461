"""Commands of targets: a line for the shell, or words, with placeholders for what differs from call to call.

In a line every value is quoted for the place where it stands, so that no shell ever takes part of it for syntax; in words it is put
in as it is. The names are those of AgentV, and some more.

What a target's command needs besides its placeholders' values.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, without_surrogates
from manyhands.core.text import suggestion
from manyhands.io.locations import Place
from manyhands.processes.commands import LONGEST_ARGUMENT
from manyhands.processes.shell_quoting import PREFIX, Spot, quoted, spots

SHELL = ("/bin/sh", "-c")
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
_WORD = re.compile(r"(?<!\$)\{([A-Z][A-Z0-9_]*)\}")
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
        return {name: text for name, text in named.items() if len(os.fsencode(f"{name}={text}")) <= LONGEST_ARGUMENT}

    def file_line(self) -> str:
        """The files as part of a shell's line."""
        return " ".join(map(self._file_in_line, self.files))

    def file_words(self) -> list[str]:
        """The files as words of their own."""
        return [
            _FILE_TOKENS.sub(lambda found, file=file: _file_part(found[1], file), word)  # type: ignore[misc]
            for file in self.files
            for word in shlex.split(self.files_format)
        ]

    def _file_in_line(self, file: Path) -> str:
        pieces, end = [], 0
        for found, spot in spots(self.files_format, _FILE_TOKENS):
            pieces += [self.files_format[end : found.start()], spot.around(quoted(_file_part(found[1], file)))]
            end = found.end()
        return "".join([*pieces, self.files_format[end:]])


@dataclass(frozen=True, slots=True)
class CommandTemplate:
    """A command with placeholders. ``line``: for ``sh -c``, or None if it was given in ``words``."""

    line: str | None
    words: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: Json, place: Place) -> Self:
        """``value``: a text, or a list of texts. ``place``: the setting's. Raises UserError for what is no command, for an unknown
        placeholder (upper-case letters in braces), and for one where no quotation would hold it together."""
        template = cls(value) if isinstance(value, str) else cls(None, _words(value, place))
        for word in template._texts():
            _check(word, place)
        if template.line is not None:
            _check_places(template.line, place)
        return template

    def uses(self, *names: str) -> bool:
        """Whether one of these placeholders is in it, or read from the environment by name."""
        pattern = "|".join(rf"\{{{name}\}}|\b{PREFIX}{name}\b" for name in names)
        return any(re.search(pattern, text) for text in self._texts())

    def with_word(self, word: str) -> CommandTemplate:
        """The command with a further argument."""
        if self.line is None:
            return CommandTemplate(None, (*self.words, word))
        return CommandTemplate(f"{self.line} {quoted(word)}")

    def filled(self, values: Values) -> list[str]:
        """The words to start. Raises ItemError(INVALID_INPUT) for a value that can't be part of a command."""
        words = self._filled_words(values) if self.line is None else [*SHELL, self._filled_line(self.line, values)]
        return [_argument(word) for word in words]

    def shown(self, values: Values) -> str:
        """The filled command as a person would type it."""
        return shlex.join(self._filled_words(values)) if self.line is None else self._filled_line(self.line, values)

    def _filled_line(self, line: str, values: Values) -> str:
        texts, pieces, end = values.texts(), [], 0
        for name, start, stop, spot in _found(line):
            put = values.file_line() if name == "FILES" else quoted(texts[name])
            pieces += [line[end:start], spot.around(put)]
            end = stop
        return "".join([*pieces, line[end:]])

    def _filled_words(self, values: Values) -> list[str]:
        texts = {**values.texts(), "FILES": " ".join(values.file_words())}
        words: list[str] = []
        for word in self.words:
            words += values.file_words() if word == "{FILES}" else [_WORD.sub(lambda found: texts[found[1]], word)]
        return words

    def _texts(self) -> tuple[str, ...]:
        return self.words if self.line is None else (self.line,)


def _found(line: str) -> Iterator[tuple[str, int, int, Spot]]:
    """The placeholders of a line that are to be filled; none in comments."""
    for found, spot in spots(line, _WORD):
        if spot is not Spot.COMMENT:
            yield found[1], found.start(), found.end(), spot


def _check(text: str, place: Place) -> None:
    for name in _WORD.findall(text):
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise place.error(f"unknown placeholder {{{name}}}{suggestion(name, PLACEHOLDERS)}; known: {known}")


def _check_places(line: str, place: Place) -> None:
    if not line.strip():
        raise place.error("the command is empty")
    if "\0" in line:
        raise place.error("a command can't hold a NUL character")
    for name, _, _, spot in _found(line):
        if not spot.safe:
            raise place.error(
                f"{{{name}}} can't be put into {spot.value}; use ${PREFIX}{name} there, which holds the same, or $(…)"
            )


def _words(value: Json, place: Place) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise place.error("expected a command: a text for the shell, or a list of words")
    for number, word in enumerate(value):
        if not isinstance(word, str) or "\0" in word:
            raise place.at(number).error("expected a text, as each word of a command (numbers need quotes)")
    if not value or not value[0].strip():
        raise place.error("the command is empty")
    return tuple(value)


def _argument(word: str) -> str:
    word = without_surrogates(word)
    if "\0" in word:
        raise ItemError(Cause.INVALID_INPUT, f"a NUL character can't be in a command; {_INSTEAD}")
    if len(os.fsencode(word)) > LONGEST_ARGUMENT:
        raise ItemError(Cause.INVALID_INPUT, f"the command is too long ({len(word)} characters); {_INSTEAD}")
    return word


_INSTEAD = "have it read from {PROMPT_FILE} or {BATCH_INPUT_FILE} what is long"


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
