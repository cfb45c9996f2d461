"""Where a command was given, and where the files are looked for that files of a person's name.

Files that eval files name, and where they are looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from manyhands.io.locations import Place


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a command was given: ``here``, the current folder, and ``root``, that of the repository. Both absolute."""

    here: Path
    root: Path

    @classmethod
    def of(cls, here: Path, root: Path | None = None) -> Surroundings:
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


__all__ = ["Surroundings", "text_of"]


def text_of(path: Path, place: Place) -> str:
    """What a file says, with line ends as LF. ``place``: where it is named. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise place.error(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise place.error(f"can't read {path}: {error.strerror or error}") from error
