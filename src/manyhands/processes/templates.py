"""Commands as people write them: a line for a shell, or words, with placeholders for what differs from call to call.

A placeholder is a name in braces, ``{NAME}`` or ``{name}``. In a line every value is quoted for where it stands, so that no shell ever
takes part of it for syntax (POSIX.1-2017, XCU 2.2 and 2.6); in words it is put in as it is, because no shell sees them. The line of a
further shell (``sh -c '…'``, also as words) is filled like a line of its own; only where that line is nothing but a placeholder is the
value itself the line, as the person says.

Whether a command's program is there is checked before it is run, as far as that is certain. Certain is what holds for every run of the
command: a list of words starts its first one; of a line for a shell that is a single command without anything to be worked out, so does
the shell. Everything else counts as there.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, without_surrogates
from manyhands.core.text import suggestion
from manyhands.io.locations import Location

MAX_ARGUMENT = 128 * 1024 - 1
"""Maximum bytes of one argument, or one ``NAME=value`` of the environment (Linux, MAX_ARG_STRLEN; the end counts one)."""
PREFIX = "MANYHANDS_"
"""What stands before a placeholder's name in the environment."""
INSTEAD = "have the command read it from standard input, or from {prompt_file}"
"""The way out for a value that can't be an argument."""
SHELL = ("/bin/sh", "-c")
_PLACEHOLDER = re.compile(r"(?<!\$)\{(?P<upper>[A-Z][A-Z0-9_]*)\}|\{(?P<lower>[a-z][a-z0-9_]*)\}")
"""``${NAME}`` is the shell's own; no variable is written in lower-case letters."""
NOT_ON_PATH = " on the path"
"""What a message ends with that names a program which this machine lacks, or its path."""
_SECONDS = 10.0
_WORKED_OUT = re.compile(r"""[|&;()<>$`\\*?\[\]{}#~=!\n\r]""")
"""What a shell, or a target's placeholders, may make something else of."""
_JOINED = re.compile(r"[|&;()`\n\r]|\$\(")
"""What may make more than one command of a line."""
_INTERPRETER = re.compile(r"python[\d.]*|node")
_SCRIPT = re.compile(r"[^-].*\.(py|js|mjs|cjs)")
"""Scripts of these; other interpreters have more ways to find theirs, and stand-ins on the path."""
_WORD_BREAKS = " \t\n;&|()"
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")
_WRAPPERS = frozenset(("env", "exec", "nice", "nohup", "setsid", "stdbuf", "sudo", "time", "timeout", "xargs"))
"""Programs that start another one, which their words name."""
_TAKES_LINE = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_HEAD = rf"(?<![\w.-])(?:{'|'.join(_SHELLS)})(?:[ \t]+-(?:[oO][ \t]+\w+|[^\s'\"]+))*?[ \t]+{_TAKES_LINE.pattern}\s+"
_NESTED_HEAD = re.compile(_HEAD)
"""The beginning of a further shell in a line, up to the line that it is given."""
_NESTED = re.compile(rf"{_HEAD}(?:'(?P<single>[^']*)'|\"(?P<double>[^\"\\$`]*)\")(?=[\s;&|()]|\Z)")
"""The same with a line of which nothing is worked out before that shell reads it."""
_ENDS = {"(": ")", "{": "}"}
_SPOILING = ("`", "{")
"""What makes a quotation within it hard to be sure of."""


@dataclass(frozen=True, slots=True)
class Words:
    """A value of several words."""

    line: str
    """Them as part of a shell's line."""
    words: Sequence[str]
    """Them where they stand as words of their own."""


Values = Mapping[str, str | Words]
"""What placeholders stand for, by name."""


@dataclass(frozen=True, slots=True)
class CommandTemplate:
    """A command with placeholders."""

    line: str | None
    """For ``sh -c``; None if it was given in ``words``."""
    words: tuple[str, ...] = ()

    @classmethod
    def split(cls, text: str, *, name: str = "command") -> Self:
        """The words of a text, split as a shell does. ``name``: of the setting, for messages. Raises UserError."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"{name}: can't be read as a command line ({str(error).lower()}): {text}") from None
        if not words or not words[0] or "\0" in text:
            raise UserError(f"{name}: holds no command: {text!r}")
        return cls(None, tuple(words))

    @classmethod
    def parse(cls, value: Json, location: Location, known: Collection[str]) -> Self:
        """``value``: a text, or a list of texts; ``location``: the setting's; ``known``: the placeholders there are. Raises UserError for
        what is no command, for an unknown placeholder in upper-case letters, and for one where no quotation would hold it together."""
        template = cls(value) if isinstance(value, str) else cls(None, _checked_words(value, location))
        for text in template._texts():
            for found in _PLACEHOLDER.finditer(text):
                if found["upper"] and found["upper"] not in known:
                    listed = ", ".join(f"{{{each}}}" for each in known)
                    hint = suggestion(found["upper"], known)
                    raise location.error(f"unknown placeholder {found[0]}{hint}; known: {listed}")
        if template.line is not None:
            _check_line(template.line, known, location)
        elif (script := _script_at(template.words)) is not None and not _is_placeholder(template.words[script]):
            _check_line(template.words[script], known, location.at(script))
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

    def filled(self, values: Values, *, instead: str = INSTEAD) -> list[str]:
        """The words to start, with placeholders replaced in one pass; a name that has no value stays as it is. ``instead``: what is said to
        do about a value that can't be part of a command. Raises ItemError(INVALID_INPUT) for such a value."""
        words = self._filled_words(values) if self.line is None else [*SHELL, _filled_line(self.line, values)]
        return [_argument(word, instead) for word in words]

    def shown(self, values: Values) -> str:
        """The filled command as a person would type it."""
        return shlex.join(self._filled_words(values)) if self.line is None else _filled_line(self.line, values)

    def check(self, folder: Path, environ: Mapping[str, str], *, name: str = "command") -> None:
        """Raises UserError if the program of a command in words can't be found or run. ``folder``: where it is to start."""
        program = self.words[0]
        if not folder.is_dir():
            raise UserError(f"{name}: there is no folder {folder} to start {program} in")
        if program_path(program, folder, environ) is None:
            hint = "" if "/" in program else " (not found)"
            raise UserError(f"{name}: {program} is no program that can be run{hint}")

    def _filled_words(self, values: Values) -> list[str]:
        words: list[str] = []
        script = _script_at(self.words)
        for number, word in enumerate(self.words):
            if number == script and not _is_placeholder(word):
                words.append(_filled_line(word, values))
                continue
            found = _PLACEHOLDER.fullmatch(word)
            value = values.get(_name(found)) if found else None
            words += value.words if isinstance(value, Words) else [_PLACEHOLDER.sub(_inserted(values), word)]
        return words

    def _texts(self) -> tuple[str, ...]:
        return self.words if self.line is None else (self.line,)


def _name(found: re.Match[str]) -> str:
    return found["upper"] or found["lower"]


def _inserted(values: Values) -> Any:
    def replacement(found: re.Match[str]) -> str:
        value = values.get(_name(found), found[0])
        return " ".join(value.words) if isinstance(value, Words) else value

    return replacement


def _is_placeholder(text: str) -> bool:
    """Whether a line for a shell is nothing but a placeholder, so that its value is the line."""
    return _PLACEHOLDER.fullmatch(text.strip()) is not None


def _script_at(words: Sequence[str]) -> int | None:
    """The index of the word that is a line for a shell; None if there is none."""
    for start, word in enumerate(words):
        if Path(word).name in _SHELLS and (start == 0 or Path(words[0]).name in _WRAPPERS):
            index = start + 1
            while index < len(words) - 1 and words[index].startswith("-"):
                if _TAKES_LINE.fullmatch(words[index]):
                    return index + 1
                index += 2 if words[index] in ("-o", "-O") else 1
    return None


def _filled_line(line: str, values: Values) -> str:
    pieces, end = [], 0
    for found, spot in _in_line(line, values):
        if found.re is _NESTED:
            group = "single" if found["single"] is not None else "double"
            if not _is_placeholder(found[group]):
                pieces += [line[end : found.start(group) - 1], quoted(_filled_line(found[group], values))]
                end = found.end()
                continue
            found = _PLACEHOLDER.search(line, found.start(group)) or found
            spot = Spot.SINGLE if group == "single" else Spot.DOUBLE
            if _name(found) not in values:
                continue
        value = values[_name(found)]
        put = value.line if isinstance(value, Words) else quoted(value)
        pieces += [line[end : found.start()], spot.around(put)]
        end = found.end()
    return "".join([*pieces, line[end:]])


def _in_line(line: str, names: Collection[str]) -> Iterator[tuple[re.Match[str], Spot]]:
    """The placeholders of a line that are to be filled, none in comments; and further shells (``_NESTED``) with a line that has some."""
    walk = _Walk(line)
    while walk.index < len(line):
        spot = walk.spot
        nested = _NESTED.match(line, walk.index) if spot is Spot.BARE else None
        found = nested or _PLACEHOLDER.match(line, walk.index)
        if found is None:
            walk.step()
            continue
        walk.index = found.end()
        if nested is not None:
            if any(_name(each) in names for each in _PLACEHOLDER.finditer(nested[0])):
                yield nested, spot
        elif spot is not Spot.COMMENT and _name(found) in names:
            yield found, spot


def _hidden(line: str, names: Collection[str]) -> Iterator[re.Match[str]]:
    """The placeholders in what a further shell is given in such a way that it might take a value for syntax."""
    walk = _Walk(line)
    while walk.index < len(line):
        head = _NESTED_HEAD.match(line, walk.index) if walk.spot is Spot.BARE else None
        if head is None or _NESTED.match(line, walk.index):
            walk.step()
            continue
        walk.index, start = head.end(), head.end()
        found = list[re.Match[str]]()
        while walk.index < len(line) and not (walk.spot is Spot.BARE and line[walk.index] in _WORD_BREAKS):
            placeholder = _PLACEHOLDER.match(line, walk.index)
            if placeholder and _name(placeholder) in names:
                found.append(placeholder)
            walk.step()
        if not _is_placeholder(line[start : walk.index].strip("\"'")):
            yield from found


def _check_line(line: str, known: Collection[str], location: Location) -> None:
    if not line.strip():
        raise location.error("the command is empty")
    if "\0" in line:
        raise location.error("a command can't hold a NUL character")
    for found in _hidden(line, known):
        raise location.error(
            f"{found[0]} can't be put into a further shell's line that is written so; put that line into single quotes, "
            f"without others in it, or use ${PREFIX}{_name(found)} there"
        )
    for found, spot in _in_line(line, known):
        if found.re is _NESTED:
            script = found["single"] if found["single"] is not None else found["double"]
            if not _is_placeholder(script):
                _check_line(script, known, location)
        elif not spot.safe:
            other = f"${PREFIX}{_name(found)}"
            raise location.error(
                f"{found[0]} can't be put into {spot.value}; use {other} there, which holds the same, or $(…)"
            )


def _checked_words(value: Json, location: Location) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise location.error("expected a command: a text for the shell, or a list of words")
    for number, word in enumerate(value):
        if not isinstance(word, str) or "\0" in word:
            raise location.at(number).error("expected a text, as each word of a command (numbers need quotes)")
    if not value or not value[0].strip():
        raise location.error("the command is empty")
    return tuple(value)


def _argument(word: str, instead: str) -> str:
    word = without_surrogates(word)
    if "\0" in word:
        raise ItemError(Cause.INVALID_INPUT, f"a NUL character can't be in an argument; {instead}")
    if len(word) > MAX_ARGUMENT // 4 and len(os.fsencode(word)) > MAX_ARGUMENT:
        said = f"a word of the command is too long for an argument ({len(word)} characters)"
        raise ItemError(Cause.INVALID_INPUT, f"{said}; {instead}")
    return word


# --- Whether the program is there


def script_of(value: Any) -> str | tuple[str, ...]:
    """A program: a line for ``sh``, or argv. Raises ValueError."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a line for sh, or a list of a program and its arguments")
    if not words or not words[0].strip():
        raise ValueError("must not be empty")
    if any("\0" in word for word in words):
        raise ValueError("must not hold a NUL character")
    return value if isinstance(value, str) else tuple(words)


def program_path(word: str, folder: Path, environ: Mapping[str, str]) -> str | None:
    """The path of a program as ``execvp`` finds it from a folder; None if it can't be run."""
    if "/" in word:
        path = folder / word
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(word, path=environ.get("PATH", os.defpath))


def missing(command: str | Sequence[str], folder: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """What a command names and is not there, in words; None if nothing is missing for certain. ``folder``: where it is started;
    ``environ``: what it inherits, without it this process's environment."""
    line = isinstance(command, str)
    words = _words(command) if isinstance(command, str) else list(command)
    if not words or _is_worked_out(words[0], line):
        return None
    path = (os.environ if environ is None else environ).get("PATH", os.defpath)
    return _missing_program(words[0], folder, path, line) or _missing_script(words, folder, line)


def _words(line: str) -> list[str]:
    """The words of a line that is one command; none of any other."""
    if _JOINED.search(line):
        return []
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _is_worked_out(word: str, line: bool) -> bool:
    return bool((_WORKED_OUT if line else re.compile(r"[{}]")).search(word))


def _missing_program(word: str, folder: Path, path: str, line: bool) -> str | None:
    if program_path(word, folder, {"PATH": path}) is not None or (line and "/" not in word and _knows(word, path)):
        return None
    if "/" not in word:
        return f"there is no program {word}{NOT_ON_PATH}"
    found = folder / word
    return f"{found} can't be executed" if found.is_file() else f"there is no program {found}"


@lru_cache(maxsize=256)
def _knows(word: str, path: str) -> bool:
    """Whether the shell itself has something of that name."""
    ask = ["/bin/sh", "-c", 'command -v -- "$1"', "sh", word]
    try:
        done = subprocess.run(ask, env={"PATH": path}, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode == 0


def _missing_script(words: Sequence[str], folder: Path, line: bool) -> str | None:
    """Of ``python3 FILE …`` and its like, whether there is the file."""
    if not _INTERPRETER.fullmatch(Path(words[0]).name):
        return None
    script = words[1] if len(words) > 1 else ""
    if not _SCRIPT.fullmatch(script) or _is_worked_out(script, line) or (folder / script).exists():
        return None
    return f"there is no file {folder / script}"


# --- Where in a shell's line something stands


def quoted(text: str) -> str:
    """A text as one word of a POSIX shell, always in single quotes (POSIX.1-2017, XCU 2.2.2)."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


class Spot(Enum):
    """What surrounds a position. The value names it for people."""

    BARE = "unquoted text"
    DOUBLE = '"…"'
    SINGLE = "'…'"
    COMMENT = "a comment"
    BACKTICK = "`…`"
    PARAMETER = "${…}"
    HEREDOC = "a text that follows <<"

    @property
    def safe(self) -> bool:
        """Whether a quoted word put there, by way of ``around``, reaches the command as it is."""
        return self in (Spot.BARE, Spot.DOUBLE, Spot.SINGLE)

    def around(self, word: str) -> str:
        """A quoted word so that it keeps its meaning there: the surrounding quotation ends before it and goes on behind it."""
        quote = {Spot.DOUBLE: '"', Spot.SINGLE: "'"}.get(self, "")
        return quote + word + quote


def spots(line: str, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Spot]]:
    """What of a line matches the pattern, and where it stands. A match is looked for at every character."""
    walk = _Walk(line)
    while walk.index < len(line):
        found = pattern.match(line, walk.index)
        if found:
            yield found, walk.spot
            walk.index = found.end()
        else:
            walk.step()


class _Walk:
    """Goes through a line, and knows what it is in: a stack of what was opened and not yet closed."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._open: list[str] = []
        self._heredoc = False
        self.index = 0

    @property
    def spot(self) -> Spot:
        inner = self._open[-1] if self._open else ""
        found = _INSIDE.get(inner, Spot.BARE)
        if found is not Spot.COMMENT:
            found = next((_INSIDE[each] for each in self._open if each in _SPOILING), found)
        return Spot.HEREDOC if self._heredoc and found.safe else found

    def step(self) -> None:
        """Go on by one character, or by what belongs together."""
        inner = self._open[-1] if self._open else ""
        if inner == "'":
            self._close_at("'")
        elif inner == "#":
            self._close_at("\n")
        elif self._line[self.index] == "\\":
            self.index += 2
        elif inner == '"':
            self._quoted()
        else:
            self._bare(inner)

    def _quoted(self) -> None:
        if self._line[self.index] == '"':
            self._close_at('"')
        elif not self._substitution():
            self.index += 1

    def _bare(self, inner: str) -> None:
        character = self._line[self.index]
        if character == _ENDS.get(inner):
            self._close_at(character)
        elif self._substitution():
            return
        elif character in "'\"(" or (character == "#" and self._begins_word()):
            self._open.append(character)
            self.index += 1
        else:
            self._heredoc = self._heredoc or self._line.startswith("<<", self.index)
            self.index += 1

    def _substitution(self) -> bool:
        """Enter ``$(``, ``${`` or a backtick, or leave the latter."""
        if self._line[self.index] == "`":
            if "`" in self._open:
                while self._open.pop() != "`":
                    pass
            else:
                self._open.append("`")
            self.index += 1
            return True
        start = self._line[self.index : self.index + 2]
        if start in ("$(", "${"):
            self._open.append("(" if start == "$(" else "{")
            self.index += 2
            return True
        return False

    def _close_at(self, end: str) -> None:
        if self._line[self.index] == end:
            self._open.pop()
        self.index += 1

    def _begins_word(self) -> bool:
        return self.index == 0 or self._line[self.index - 1] in _WORD_BREAKS


_INSIDE = {"'": Spot.SINGLE, '"': Spot.DOUBLE, "#": Spot.COMMENT, "`": Spot.BACKTICK, "{": Spot.PARAMETER}
