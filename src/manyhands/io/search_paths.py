"""Where a command was given, and where files are looked for that a person's files name; and the ``.env`` files on that path.

A line of a ``.env`` file is ``NAME=value``, with or without ``export`` before it. A value may be in single quotes or backticks (as it is)
or in double quotes (in which the escapes of line breaks, tabs, quotes and backslashes mean these), also over several lines. Without quotes
it ends at a ``#`` that follows a blank. Nothing is expanded in it. A line that is none of this is refused with its number, where
python-dotenv leaves it out without a word: a key that was mistyped would then be missing much later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.core.redaction import protect_environment
from manyhands.io.locations import Location

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


@dataclass(frozen=True, slots=True)
class SearchPath:
    """The folders in which files are looked for that a person names: from a starting one up to the repository's, and the current one. All
    are absolute."""

    here: Path
    """The current folder."""
    root: Path
    """The repository's."""

    @classmethod
    def of(cls, here: Path, root: Path | None = None) -> SearchPath:
        """``root``: without one, the nearest folder from ``here`` upwards that holds ``.git``, else ``here``."""
        folder = here.absolute()
        return cls(folder, root.absolute() if root is not None else find_root(folder))

    def folders(self, start: Path) -> list[Path]:
        """From ``start`` up to the root (or only itself, if it is not below that), the root, and the current folder."""
        return list(dict.fromkeys((*self.upwards(start), self.root, self.here)))

    def upwards(self, start: Path) -> Iterator[Path]:
        """The folder and those above it, as far as the root."""
        folder = start.absolute()
        yield folder
        if folder.is_relative_to(self.root):
            yield from (parent for parent in folder.parents if parent.is_relative_to(self.root))

    def find(self, named: str, start: Path) -> Path | None:
        """The file that a person named: as it is if the path is absolute, otherwise (and if there is none, without its leading
        slashes) below the first of ``folders`` that has it."""
        if Path(named).is_absolute() and Path(named).is_file():
            return Path(named)
        relative = named.lstrip("/")
        tried = (folder / relative for folder in self.folders(start))
        return next((path.resolve() for path in tried if path.is_file()), None)

    def shown(self, path: Path) -> str:
        """A path for messages: relative to the current folder where it is below that."""
        absolute = path.absolute()
        return str(absolute.relative_to(self.here) if absolute.is_relative_to(self.here) else path)


def find_root(here: Path) -> Path:
    """The nearest folder from here upwards that holds ``.git``; without one, here."""
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def text_of(path: Path, location: Location) -> str:
    """What a file says, with line ends as LF. ``location``: where it is named. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise location.error(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise location.error(f"can't read {path}: {error.strerror or error}") from error


def environment(folder: Path, search_path: SearchPath, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for what an eval file, or a file of graders, in a folder names: the real environment above all, then ``.env`` of the
    folder, of those above it up to the root, and of the current one, the nearest first. The current one's can't say which code
    programs run (``PATH``, ``PYTHONPATH``, ``LD_PRELOAD`` …). Raises UserError for a file that can't be read."""
    found = dict(environ)
    own = set(search_path.upwards(folder))
    for each in search_path.folders(folder):
        path = each / NAME
        if path.is_file():
            values = read_dotenv(path, search_path.shown(path))
            if each not in own:  # a folder that somebody merely stands in says nothing about which code is run
                values = {name: value for name, value in values.items() if not _LOADS_CODE.fullmatch(name)}
            protect_environment(
                values
            )  # also what another file or the real environment overrules: programs read files, too
            found = {**values, **found}
    return found


def additions(folder: Path, search_path: SearchPath, environ: Mapping[str, str]) -> dict[str, str]:
    """What ``.env`` files add to the real environment: programs that are run for such a file in a folder have it in theirs. Raises
    UserError for a file that can't be read."""
    found = environment(folder, search_path, environ)
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
    position = 0
    while position < len(text):
        entry = _ENTRY.match(text, position)
        skipped = None if entry else _SKIPPED.match(text, position)
        if entry:
            values[entry["name"]] = _value(entry)
        elif skipped is None:
            line = text.count("\n", 0, position) + 1
            raise Location(name, (), {(): line}).error("expected NAME=value")
        position = (entry or skipped).end()  # type: ignore[union-attr]
    return values


def _value(entry: re.Match[str]) -> str:
    if entry["double"] is not None:
        return _ESCAPE.sub(lambda found: _ESCAPES[found[1]], entry["double"])
    quoted = entry["single"] if entry["single"] is not None else entry["back"]
    return quoted if quoted is not None else (entry["bare"] or "").strip()
