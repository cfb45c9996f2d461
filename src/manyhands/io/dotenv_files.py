"""``.env`` files beside files of graders and above them.

A line is ``NAME=value``, with or without ``export`` before it. A value may be in single quotes or backticks (as it is) or in double
quotes (in which the escapes of line breaks, tabs, quotes and backslashes mean these), also over several lines. Without quotes it
ends at a ``#`` that follows a blank. Nothing is expanded in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.core.redaction import protect_environment
from manyhands.io.locations import Place
from manyhands.io.search_paths import Surroundings

NAME = ".env"
_ENTRY = re.compile(
    r"""[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*
    (?:'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|`(?P<back>[^`]*)`|(?P<bare>(?!['"`\#])(?:[^#\r\n]|(?<![ \t])\#)*))?
    [ \t]*(?:\#[^\r\n]*)?(?:\r?\n|$)""",
    re.VERBOSE | re.DOTALL,
)
_LOADS_CODE = re.compile(
    r"PATH|(LD|DYLD|GIT|GLIBC|GCONV)_.*|PYTHON.*|BASH_ENV|BASH_FUNC_.*|ENV|SHELLOPTS|BASHOPTS|IFS|PS4|PROMPT_COMMAND"
    r"|NODE_(OPTIONS|PATH)|PERL5?(LIB|OPT|DB)|RUBY(OPT|LIB)|(JAVA|JDK_JAVA|_JAVA)_(TOOL_)?OPTIONS|CLASSPATH|ZDOTDIR"
)
"""Variables that make programs run, or look for, other code."""
_SKIPPED = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?:\r?\n|$)")
_ESCAPE = re.compile(r'\\([nrt"\\])')
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


def environment(folder: Path, surroundings: Surroundings, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for what an eval file, or a file of graders, in a folder names: the real environment above all, then ``.env`` of the
    folder, of those above it up to the root, and of the current one, the nearest first. The current one's can't say which code
    programs run (``PATH``, ``PYTHONPATH``, ``LD_PRELOAD`` …). Raises UserError for a file that can't be read."""
    found = dict(environ)
    own = set(surroundings.upwards(folder))
    for each in surroundings.folders(folder):
        path = each / NAME
        if path.is_file():
            values = read_dotenv(path, surroundings.shown(path))
            if each not in own:  # a folder that somebody merely stands in says nothing about which code is run
                values = {name: value for name, value in values.items() if not _LOADS_CODE.fullmatch(name)}
            protect_environment(
                values
            )  # also what another file or the real environment overrules: programs read files, too
            found = {**values, **found}
    return found


def additions(folder: Path, surroundings: Surroundings, environ: Mapping[str, str]) -> dict[str, str]:
    """What ``.env`` files add to the real environment: programs that are run for such a file in a folder have it in theirs. Raises
    UserError for a file that can't be read."""
    found = environment(folder, surroundings, environ)
    return {name: value for name, value in found.items() if name not in environ}


def read_dotenv(path: Path, name: str | None = None) -> dict[str, str]:
    """What a file sets; of a name that comes twice, the last. Raises UserError with the line."""
    called = name or str(path)
    try:
        return parse_dotenv(path.read_text(encoding="utf-8-sig"), called)
    except UnicodeDecodeError:
        raise UserError(f"{called}: not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"can't read {called}: {error.strerror or error}") from error


def parse_dotenv(text: str, name: str) -> dict[str, str]:
    """The same for a text."""
    values: dict[str, str] = {}
    place = 0
    while place < len(text):
        entry = _ENTRY.match(text, place)
        skipped = None if entry else _SKIPPED.match(text, place)
        if entry:
            values[entry["name"]] = _value(entry)
        elif skipped is None:
            line = text.count("\n", 0, place) + 1
            raise Place(name, (), {(): line}).error("expected NAME=value")
        place = (entry or skipped).end()  # type: ignore[union-attr]
    return values


def _value(entry: re.Match[str]) -> str:
    if entry["double"] is not None:
        return _ESCAPE.sub(lambda found: _ESCAPES[found[1]], entry["double"])
    quoted = entry["single"] if entry["single"] is not None else entry["back"]
    return quoted if quoted is not None else (entry["bare"] or "").strip()
