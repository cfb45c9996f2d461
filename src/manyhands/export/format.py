"""What an export format is: how a conversation becomes rows, and rows become files."""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.text import suggestion
from manyhands.engine.contract import import_attribute
from manyhands.export.conversations import Conversation
from manyhands.export.files import JsonLines, Sink
from manyhands.export.settings import ExportSettings
from manyhands.io.plugins import load_plugin, plugins

FORMATS_GROUP = "manyhands.export_formats"
"""The entry point group of export formats: the name, and the subclass of ``Format``."""
FORMATS: Mapping[str, str] = {
    "openai": "manyhands.export.formats.openai:OpenAI",
    "openai-dpo": "manyhands.export.formats.openai:OpenAIPreference",
    "messages": "manyhands.export.formats.trl:Messages",
    "preference": "manyhands.export.formats.trl:Preference",
    "kto": "manyhands.export.formats.trl:Kto",
    "axolotl": "manyhands.export.formats.axolotl:Axolotl",
    "llamafactory": "manyhands.export.formats.llamafactory:LlamaFactory",
    "sharegpt": "manyhands.export.formats.sharegpt:ShareGpt",
    "verifiers": "manyhands.export.formats.verifiers:Verifiers",
    "atif": "manyhands.export.formats.atif:Atif",
    "swebench": "manyhands.export.formats.swebench:SweBench",
    "hf-traces": "manyhands.export.formats.hf_traces:HfTraces",
    "parquet": "manyhands.export.formats.parquet:Parquet",
    "csv": "manyhands.export.formats.tables:Csv",
    "jsonl": "manyhands.export.formats.tables:Records",
}
"""The formats of this package, by name."""


OPTIONS = frozenset(
    {"tools", "layout", "threshold", "pairs", "min_gap", "best_of", "atif_version", "verifiers_version", "hf_layout"}
)
"""Settings that only some formats heed; the others refuse them."""


class Unfit(Exception):
    """A conversation that a format can't hold; it is left out and counted by this reason, a few words."""


class Losses:
    """What was left out of conversations because their format has no place for it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, what: str, number: int = 1) -> None:
        """Count it: ``what`` in words that follow a number, as ``images``."""
        if number:
            self.counts[what] += number


class Format(ABC):
    """One export format. Made once for an export."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One sentence of help."""
    suffix: str = ".jsonl"
    """Of its files; empty if what ``sink`` fills is no file but a folder: the output itself, or a folder in it for each split."""
    takes: ClassVar[Literal["conversations", "pairs"]] = "conversations"
    """Whether a row is made of a conversation, or of two of one prompt, the better one first."""
    reasoning: ClassVar[Literal["keep", "drop", "field"]] = "drop"
    """What becomes of reasoning unless it is said."""
    options: ClassVar[frozenset[str]] = frozenset({"best_of"})
    """Which of ``OPTIONS`` it heeds."""
    needs_score: ClassVar[bool] = False
    """Whether conversations without a score can't be used."""
    in_folder: bool = False
    """Whether an output is a folder even if it holds one file of rows. This and ``suffix`` may depend on the settings, in an instance; the
    default output is as the class says."""

    def __init__(self, settings: ExportSettings, losses: Losses) -> None:
        """Raises UserError for settings that it can't do."""
        self.settings = settings
        self.losses = losses
        self.reasoning_mode = settings.reasoning or self.reasoning

    @property
    def writes_folder(self) -> bool:
        """Whether the output is a folder."""
        return self.in_folder or bool(self.settings.split) or self.settings.shard_rows is not None

    simulated = 0
    """Exported conversations that a simulated model took part in: known when ``extra_files`` is called."""

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        """The rows of a conversation. Raises Unfit before the first."""
        raise NotImplementedError

    def pair(self, chosen: Conversation, rejected: Conversation) -> Mapping[str, Json]:
        """The row of two conversations of one prompt. Raises Unfit."""
        raise NotImplementedError

    def check_options(self) -> None:
        """Raises UserError if a setting was given that means nothing here."""
        if foreign := sorted(self.settings.given & OPTIONS - self.options):
            raise UserError(f"--{foreign[0]}: means nothing to the format {self.name} (see manyhands export --help)")

    def sink(self, path: Path) -> Sink:
        """What writes the rows of one file, which is new; without a ``suffix``, of one folder, which may be there."""
        return JsonLines(path)

    def notes(self, rows: Mapping[str, int]) -> Sequence[str]:
        """What should be known of an output with so many rows, by split (empty: there are no splits)."""
        return ()

    def extra_files(self, files: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        """Further files of a folder with rows (name: text). ``files``: the names of its files of rows, by split (empty: there are no
        splits); of splits without rows none, because loaders refuse those."""
        return {}


def load_format(name: str) -> type[Format]:
    """A format by name. Raises UserError if there is none, or one of an installed package that can't be used."""
    if name in FORMATS:
        found: type[Format] = import_attribute(FORMATS[name])
        return found
    entry = plugins(FORMATS_GROUP).get(name)
    if entry is None:
        known = formats()
        raise UserError(f"--to: there is no format {name!r}{suggestion(name, known)}; known: {', '.join(known)}")
    found = load_plugin(entry, "export format")
    if not (isinstance(found, type) and issubclass(found, Format)):
        raise UserError(
            f"the export format plug-in {name!r} ({entry.value}) is no subclass of {Format.__module__}.Format"
        )
    return found


def formats() -> list[str]:
    """The names of all formats there are."""
    return [*FORMATS, *sorted(plugins(FORMATS_GROUP).keys() - FORMATS.keys())]
