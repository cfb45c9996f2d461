"""The files of an export: written aside, whole or not at all, and the same bytes for the same rows; and the card of a dataset."""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from itertools import count
from pathlib import Path
from typing import BinaryIO

from manyhands.core.errors import StorageError, UserError
from manyhands.core.jsonio import Json, compact_line, without_surrogates
from manyhands.core.text import counted
from manyhands.io.files import folder_name

SUMMARY = "export_summary.json"
"""In a folder that an export wrote; of a file, ``.NAME.export_summary.json`` beside it, hidden, so that loaders of the folder don't take it
for data."""
_serial = count()
_BUFFER = 1 << 18


class Sink(ABC):
    """Writes rows into one file."""

    rows = 0

    @abstractmethod
    def write(self, row: Mapping[str, Json]) -> None: ...

    def close(self) -> None:
        """The file is whole."""
        return


class JsonLines(Sink):
    """JSON, one line a row, in UTF-8."""

    def __init__(self, path: Path | None, stream: BinaryIO | None = None) -> None:
        """``path``: a new file; without one, ``stream`` gets the lines."""
        self._own = path is not None
        self._file: BinaryIO = stream if path is None and stream is not None else _opened(path)

    def write(self, row: Mapping[str, Json]) -> None:
        self._file.write(compact_line(row))
        self.rows += 1

    def close(self) -> None:
        self._file.flush()
        if self._own:
            os.fsync(self._file.fileno())
            self._file.close()


class OneFileEach(Sink):
    """A file for each row, in a folder."""

    def __init__(
        self,
        folder: Path,
        suffix: str,
        named: Callable[[Mapping[str, Json]], str],
        written: Callable[[Mapping[str, Json]], bytes] = compact_line,
    ) -> None:
        """``named``: what a row's file is called, the ``suffix`` apart (one that is taken gets a number); ``written``: what it holds."""
        folder.mkdir(exist_ok=True)
        self._folder, self._suffix, self._named, self._written = folder, suffix, named, written

    def write(self, row: Mapping[str, Json]) -> None:
        with self._free(self._named(row)) as file:
            file.write(self._written(row))
        self.rows += 1

    def close(self) -> None:
        os.sync()  # once for all files: each by itself would take milliseconds

    def _free(self, name: str) -> BinaryIO:
        for number in count(1):
            with suppress(FileExistsError):
                return (self._folder / f"{name}{f'-{number}' * (number > 1)}{self._suffix}").open("xb")
        raise AssertionError("not reached")


def file_name(item: int, key: str, name: str = "") -> str:
    """What the file of a conversation is called: by its item's number and key, and its own name if it has one."""
    return "-".join([f"{item:06}", *(folder_name(each) for each in (key, name) if each)])


def _opened(path: Path | None) -> BinaryIO:
    if path is None:
        raise ValueError("neither a path nor a stream")
    return path.open("xb", buffering=_BUFFER)


class SplitFiles:
    """The files of rows of an export in a folder: one for each split, or several where they are bounded."""

    def __init__(
        self,
        folder: Path,
        opened: Callable[[Path], Sink],
        *,
        suffix: str,
        splits: Sequence[str],
        shard_rows: int | None,
    ) -> None:
        """``opened``: makes what writes one file, or without a ``suffix`` one folder; ``splits``: their names, one that is empty if there
        are none."""
        self._folder = folder
        self._opened = opened
        self._suffix = suffix
        self._shard_rows = shard_rows
        self._sinks: dict[str, list[Sink]] = {split: [] for split in splits}
        for split in splits:
            self._open(split)

    def write(self, split: str, row: Mapping[str, Json]) -> None:
        """Add a row."""
        sink = self._sinks[split][-1]
        if self._shard_rows is not None and sink.rows >= self._shard_rows:
            sink.close()
            sink = self._open(split)
        sink.write(row)

    def close(self) -> dict[str, list[str]]:
        """All files are whole; their names, by split."""
        names: dict[str, list[str]] = {}
        for split, sinks in self._sinks.items():
            sinks[-1].close()
            if self._is_folder:
                names[split] = ["."]
                continue
            names[split] = [self._named(split, number, len(sinks)) for number in range(len(sinks))]
            for number, name in enumerate(names[split]):
                (self._folder / self._part(split, number)).replace(self._folder / name)
        return names

    def rows(self) -> dict[str, int]:
        """How many rows there are, by split."""
        return {split: sum(sink.rows for sink in sinks) for split, sinks in self._sinks.items()}

    def _open(self, split: str) -> Sink:
        sinks = self._sinks[split]
        sinks.append(self._opened(self._folder / self._part(split, len(sinks))))
        return sinks[-1]

    @property
    def _is_folder(self) -> bool:
        """Whether the folder is filled by one sink."""
        return not self._suffix and self._shard_rows is None and list(self._sinks) == [""]

    def _part(self, split: str, number: int) -> str:
        return "." if self._is_folder else f".{split}.{number}{self._suffix}"

    def _named(self, split: str, number: int, of: int) -> str:
        name = split or "train"
        return f"{name}{self._suffix}" if self._shard_rows is None else f"{name}-{number:05}-of-{of:05}{self._suffix}"


class DatasetCard:
    """The ``README.md`` of a folder that people and the Hugging Face Hub take for a dataset. The same rows give the same text."""

    NAME = "README.md"

    def __init__(self, columns: Mapping[str, str], features: Sequence[str] = ()) -> None:
        """``columns``: what each holds; ``features``: for files that don't say it, the type of each for ``datasets``, as YAML."""
        self._columns, self._features = columns, features
        self._runs: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._simulated = 0

    def add(self, run: str, model: str | None, *, simulated: bool) -> None:
        """Count a conversation."""
        self._runs[run] += 1
        self._models[model or "unknown"] += 1
        self._simulated += simulated

    def text(self, files: Mapping[str, Sequence[str]]) -> str:
        """The card of a folder with these files, by split; ``*`` in a name stands for whatever is there."""
        return "\n".join([*self._head(files), "", *self._body()]) + "\n"

    def _head(self, files: Mapping[str, Sequence[str]]) -> Iterator[str]:
        yield from ("---", "# license: (to be filled in before this is published)", "tags:", "- manyhands")
        if self._simulated:
            yield "- simulated"
        yield from ("configs:", "- config_name: default", "  data_files:")
        for split, names in files.items():
            yield from (f"  - split: {split or 'train'}", "    path:", *(f'    - "{name}"' for name in names))
        if self._features:
            yield from ("dataset_info:", "  features:", *(f"  {line}" for line in self._features))
        yield "---"

    def _body(self) -> Iterator[str]:
        total = self._runs.total()
        yield "# Conversations of agents"
        yield ""
        yield f"Exported by manyhands: {counted(total, 'conversation')} of {counted(len(self._runs), 'run')}."
        if self._simulated:
            many = "All" if self._simulated == total else f"{self._simulated:,}"
            yield ""
            yield f"**Made by simulation.** {many} of them were answered by a simulated model: they show what the data looks like, no more."
        yield ""
        yield "No licence is stated here. It is for whoever publishes this to choose one that the models' providers and the sources allow."
        for title, counts in (("Model", self._models), ("Run", self._runs)):
            yield from ("", f"| {title} | Conversations |", "| --- | ---: |")
            yield from (f"| {_cell(name)} | {number:,} |" for name, number in sorted(counts.items()))
        if self._columns:
            yield from ("", "| Column | Content |", "| --- | --- |")
            yield from (f"| `{name}` | {about} |" for name, about in self._columns.items())


def _cell(text: str) -> str:
    """A text as a cell of a table in Markdown."""
    return re.sub(r"([\\`*_\[<|])", r"\\\1", " ".join(without_surrogates(text).split()))


@contextmanager
def folder_written_aside(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A new folder to fill; it takes the place of ``path`` only when all of it is on disk.

    Raises UserError if ``path`` is there and no earlier export (unless it is to be overwritten), StorageError if it can't be written.
    """
    path = _named(path)
    _sweep(path)
    check_target(path, overwrite=overwrite)
    aside = _aside(path)
    old = aside.with_suffix(".old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
        yield aside
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            path.replace(old)
        aside.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: can't be written ({error.strerror or error})") from error
    finally:
        if old.exists() and not path.exists():  # whatever came between, an earlier export stays
            old.replace(path)
        for each in (aside, old):
            shutil.rmtree(each, ignore_errors=True)


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A new folder beside a path, for as long as it is needed. Raises StorageError."""
    aside = _aside(_named(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        aside.mkdir()
        yield aside
    except OSError as error:
        raise StorageError(f"{path}: can't be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{next(_serial)}.{os.getpid()}.new")


def _named(path: Path) -> Path:
    """The path with a name of its own at its end: ``.`` and ``..`` are none."""
    return path if path.name and ".." not in path.parts else path.resolve()


def check_target(path: Path, *, overwrite: bool, runs: Iterable[Path] = ()) -> None:
    """Whether an export may write there. ``runs``: folders that must stay, whatever is to be overwritten. Raises UserError."""
    target = path.parent.resolve() / path.name if path.is_symlink() else path.resolve()
    for run in (each.resolve() for each in runs):
        is_its = target.is_relative_to(run) and not target.is_relative_to(run / "exports")
        if run.is_relative_to(target) or (is_its and path.exists() and not _is_export(path)):
            raise UserError(f"{path}: an export does not replace the run that it is of; give another --output")
    if overwrite or not path.exists() or _is_export(path):
        return
    if path.is_dir() and not any(path.iterdir()):
        return
    raise UserError(f"{path}: is there already, and no earlier export; give another --output, or --overwrite")


def _is_export(path: Path) -> bool:
    if not path.is_dir():
        return summary_path(path).is_file()
    # Exports have no folders within: where there is one, somebody works in it, as a trainer that leaves its checkpoints there.
    return (path / SUMMARY).is_file() and not any(each.is_dir() for each in path.iterdir())


def summary_path(path: Path) -> Path:
    """Where the summary of an export is."""
    return path / SUMMARY if path.is_dir() else path.with_name(f".{path.name}.{SUMMARY}")


def _sweep(path: Path) -> None:
    """Remove what exports to that path left that were killed; put back what one had just moved away."""
    for each in sorted(path.parent.glob(f".{escape(path.name)}.*.*")):
        if each.suffix not in (".new", ".old"):
            continue
        with suppress(ValueError, OSError):
            process = int(each.name.split(".")[-2])
            try:
                os.kill(process, 0)
            except ProcessLookupError:
                if each.suffix == ".old" and not path.exists():
                    each.replace(path)
                shutil.rmtree(each, ignore_errors=True)
