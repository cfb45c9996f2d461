"""Datasets: the prompts of a run, read as a stream.

A dataset of a million rows is never held in memory: rows come one at a time, and what has to be remembered about all of
them (how often a prompt was seen, which ids are taken) lives in a private temporary database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

from manyhands.agents.worlds.item_world import ItemWorld
from manyhands.agents.worlds.row_fields import RowFields
from manyhands.agents.worlds.settings import checked_cwd
from manyhands.core.digests import content_key, digest
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, kind_of
from manyhands.core.messages import Message
from manyhands.io.digest_table import DigestTable
from manyhands.io.locations import problems_error
from manyhands.io.tables.base import MissingColumn, Record, Records, Unit
from manyhands.io.tables.formats import open_records
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.sandboxes.images.templates import FIELDS, RowImages
from manyhands.task_folders.contents import Task
from manyhands.task_folders.images import add_task
from manyhands.task_folders.variables import references
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.prompt_parts import BadPart, ReadParts, RowPictures, plain_parts
from manyhands.workloads.trajectories.dataset.chat_rows import (
    CHAT_FIELDS,
    SYSTEM,
    BadChat,
    Chat,
    read_chat,
)
from manyhands.workloads.trajectories.dataset.prompt_column import PROMPT, remedy
from manyhands.workloads.trajectories.dataset.source_fields import SourceFieldsBuilder
from manyhands.workloads.trajectories.dataset.task_rows import (
    TASK,
    is_task_dataset,
    source_of,
    tasks_in_order,
)

ID = "id"
PLAIN_FIELDS = frozenset((PROMPT, *FIELDS, "cwd", ID))
"""Fields with a meaning in runs of earlier versions."""
KNOWN_FIELDS = PLAIN_FIELDS | frozenset(CHAT_FIELDS)
"""Fields with a meaning here. All others are carried to the output as ``metadata.source``."""


Prompt = str | list[dict[str, Any]]
"""Text, or chat-completions content parts (objects with a "type")."""

BAD_ROWS_KEPT = 1000
"""Maximum bad rows that a scan keeps, and ``failures.jsonl`` lists."""


@dataclass(slots=True)  # not frozen: see Outcome
class Row:
    """One usable row."""

    line: int
    """Counts from 1 (lines, or rows of a table)."""
    prompt: Prompt
    """As written, or what the last user message says."""
    image: str | None = None
    own_image: bool = field(default=False, compare=False)
    """Whether a field of its own names the image, and no template of the run's."""
    cwd: str | None = None
    id: str | None = None
    source: dict[str, Any] = field(default_factory=dict)
    """The fields that this program does not know."""
    system: str | None = None
    """The row's own system prompt."""
    messages: tuple[Message, ...] = ()
    """The conversation up to where the model goes on, the prompt included, where there is more than that."""
    world: ItemWorld = field(default_factory=ItemWorld)
    """What the fields say that the person named for it."""
    fields: dict[str, Json] = field(default_factory=dict)
    """Those that commands of the run name."""
    task: Task | None = None
    """The task that it is, of a dataset of task folders."""

    def content(self) -> dict[str, Any]:
        """What it asks for: its prompt, image and cwd, and if it has any, its own system prompt and messages, what else it says of its
        world, and the fields that commands name."""
        content: dict[str, Any] = {"prompt": self.prompt, "image": self.image, "cwd": self.cwd}
        if self.system is not None:
            content["system"] = self.system
        if self.messages:
            content["messages"] = list(self.messages)
        if world := self.world.to_json():
            content["world"] = world
        if self.fields:
            content["fields"] = self.fields
        if self.task is not None:
            content["task"] = self.task.digest
        return content


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that can't be used, and why. ``str()`` gives ``line 7: no "prompt" field``."""

    line: int
    reason: str
    unit: Unit = "line"
    columns: tuple[str, ...] | None = None
    """Where its prompt is missing: what it has."""

    def __str__(self) -> str:
        return f"{self.unit} {self.line}: {self.reason}"


class DatasetItem(NamedTuple):
    """One item to be."""

    prompt_index: int
    """Counts usable rows from 0."""
    row: Row
    sample: int
    """Counts the repeats of a row from 0."""
    key: str
    """The item's identity."""


@dataclass(slots=True)
class DatasetScan:
    """What one pass over a dataset found."""

    rows: int = 0
    """Usable ones."""
    bad_rows: list[BadRow] = field(default_factory=list)
    """The first bad rows, at most ``BAD_ROWS_KEPT``."""
    bad_count: int = 0
    """The number of all."""
    images: ImageDemand = field(default_factory=ImageDemand)
    """The container images that rows name."""
    own_systems: int = 0
    """Rows that bring a system prompt."""
    own_messages: int = 0
    """Rows that bring messages."""
    command_fields: set[str] = field(default_factory=set)
    """Fields that commands name and at least one row has."""
    max_memory: int = 0
    """The most memory that a row asks for, in bytes."""
    max_cpus: float = 0.0
    """The most processors."""
    asked: set[str] = field(default_factory=set)
    """The attributes of ``ItemWorld`` that at least one row has."""
    own_images: int = 0
    """Rows with a field that names their image."""
    tasks: int = 0
    """Rows that are task folders."""
    variables: dict[str, str | None] = field(default_factory=dict)
    """The variables of this machine that tasks name, with the name of the first task that can't do without each, whoever does it (None:
    all can)."""
    fields: SourceFieldsBuilder = field(default_factory=SourceFieldsBuilder)
    """The fields that this program does not know."""

    def add(self, row: Row | BadRow) -> None:
        """Take a row into account."""
        if isinstance(row, BadRow):
            self.bad_count += 1
            if len(self.bad_rows) < BAD_ROWS_KEPT:
                self.bad_rows.append(row)
            return
        self.rows += 1
        if row.task is not None:
            self._add_task(row.task)
        else:
            self.images.add(row.image, row.line)
        self.own_images += row.own_image
        self.own_systems += row.system is not None
        self.own_messages += bool(row.messages)
        self.command_fields.update(row.fields)
        self.max_memory = max(self.max_memory, row.world.memory or 0)
        self.max_cpus = max(self.max_cpus, row.world.cpus or 0.0)
        self.asked.update(row.world.to_json())
        self.fields.add(row.source)

    def _add_task(self, task: Task) -> None:
        self.tasks += 1
        self.images.unit = TASK
        add_task(self.images, task)
        for each in references(task.config, solution=True):
            needed = each.default is None and not each.of_solution
            self.variables[each.variable] = self.variables.get(each.variable) or (task.name if needed else None)


class HowRead(TypedDict, total=False):
    """How a dataset is read."""

    max_samples: int | None
    """Up to so many good rows."""
    with_chat: bool
    """Whether ``system`` and ``messages`` have a meaning (by default); they are fields like any other without."""
    with_pictures: bool
    """Whether pictures in content parts become artifacts (by default); parts are taken as they are without."""
    artifacts: ArtifactStore | None
    """What keeps the pictures; by default they are only checked."""
    prompt_column: str | None
    """The field that holds the prompts; by default ``prompt``."""
    system_column: str | None
    """The field that holds the rows' own system prompts; by default ``system``."""
    id_field: str | None
    """The field that holds the rows' ids; by default ``id``."""
    split: str | None
    """Of a Hugging Face dataset with several."""
    reading: Mapping[str, Any]
    """What ``ReadingSettings.reading`` gives."""
    row_images: RowImages
    """Where rows name their images; by default in ``image``, else in ``docker_image``."""
    missing_images: Collection[str]
    """Images that do not exist: rows that name one are bad."""
    world: RowFields
    """The fields that say something about an item's world."""
    command_fields: tuple[str, ...]
    """The fields that commands of the run name."""
    skip_invalid: bool
    """Of a dataset of task folders: tasks that can't be taken are bad rows; otherwise they refuse all."""
    task_env: tuple[str, ...] | None
    """The variables of this machine that tasks may have, as the setting has them."""
    solutions: bool
    """Whether the tasks' own solutions are run."""


def read_rows(path: Path | str, **how: Unpack[HowRead]) -> Iterator[Row | BadRow]:
    """All rows of a dataset in order, good and bad.

    Formats: ``.jsonl`` (and any other name), ``.json``, ``.csv``, ``.tsv``, each also with ``.gz``; ``.parquet`` and folders
    written by Hugging Face ``save_to_disk``, which need the extra ``datasets``; ``.xlsx``, which needs the extra ``xlsx``; and task
    folders, or folders of such. A second row with an id is a bad one.

    Raises UserError, naming the path, at once if the file can't be opened, and while iterating if the rest of it
    can't be read.
    """
    fields = _Fields(
        how.get("prompt_column") or PROMPT,
        how.get("system_column") or SYSTEM,
        with_chat=how.get("with_chat", True),
        id=how.get("id_field") or ID,
        images=how.get("row_images", RowImages()),
        missing_images=frozenset(how.get("missing_images", ())),
        world=how.get("world", RowFields()),
        commands=how.get("command_fields", ()),
        folder=Path(path) if Path(path).is_dir() else Path(path).parent,
        with_pictures=how.get("with_pictures", True),
        artifacts=how.get("artifacts"),
    )
    if is_task_dataset(path):
        return _task_rows(Path(path), how)
    records = open_records(Path(path), fields.prompt, how.get("split"), **how.get("reading", {}))
    return _rows(records, fields, how.get("max_samples"))


def _task_rows(path: Path, how: HowRead) -> Iterator[Row | BadRow]:
    """Raises UserError, while iterating, for tasks that can't be taken, unless they are to be bad rows."""
    good, refused, wanted = 0, list[str](), how.get("max_samples")
    allowed, solutions = how.get("task_env"), how.get("solutions", False)
    for number, task in tasks_in_order(path, allowed, how.get("missing_images", ()), solutions=solutions):
        if wanted is not None and good >= wanted:
            break
        if isinstance(task, Task):
            good += 1
            if not refused:
                yield Row(
                    number,
                    task.instruction,
                    task.image,
                    cwd=task.config.environment.workdir,
                    id=task.name,
                    source=source_of(task),
                    task=task,
                )
        elif task.left_out or how.get("skip_invalid"):
            yield BadRow(number, task.reason, TASK)
        else:
            refused.append(task.reason)
    if refused:
        raise problems_error([*refused, "--skip_invalid leaves such tasks out"])


def scan(path: Path | str, **how: Unpack[HowRead]) -> DatasetScan:
    """Read a dataset once through.

    Raises UserError, naming the path, if the dataset can't be read or has no usable row.
    """
    found = DatasetScan()
    for row in read_rows(path, **how):
        found.add(row)
    if not found.rows:
        raise _nothing_usable(path, found.bad_rows[:1], how)
    if (column := how.get("system_column")) and not found.own_systems:
        raise UserError(f'{path}: no row has a system prompt in "{column}", which --system_column names')
    image_field = how.get("row_images", RowImages()).fields
    if image_field != FIELDS and not found.own_images and not found.tasks and not how.get("missing_images"):
        raise UserError(f'{path}: no row has anything in "{image_field[0]}", which --image_field names')
    for option, column in how.get("world", RowFields()).lacking(found.asked):
        raise UserError(f'{path}: no row has anything in "{column}", which --{option} names')
    return found


def check_usable(path: Path | str, **how: Unpack[HowRead]) -> None:
    """Read a dataset up to its first usable row. Raises UserError, as ``scan`` does, if there is none."""
    first: list[BadRow] = []
    for row in read_rows(path, **how):
        if isinstance(row, Row):
            return
        first = first or [row]
    raise _nothing_usable(path, first, how)


def _nothing_usable(path: Path | str, first: Sequence[BadRow], how: HowRead) -> UserError:
    message = f"the dataset has no usable row: {path}"
    for bad in first:
        message += f" ({bad})"
        if bad.columns is not None:
            message += remedy(how.get("prompt_column") or PROMPT, bad.columns, KNOWN_FIELDS)
    return UserError(message)


def iterate_items(path: Path | str, samples: int = 1, **how: Unpack[HowRead]) -> Iterator[DatasetItem]:
    """The items of a dataset in order: each usable row ``samples`` times. Bad rows are left out (``scan`` reports them).

    An item's key is ``id:<id>`` or the hash of the row's content, then ``#k``, so that the k-th copy of a row is sample k. Equal rows are
    counted in a private table on disk. Raises as ``read_rows`` does.
    """
    return _items(read_rows(path, **how), samples)


def row_digest(row: Row) -> bytes:
    """16 bytes that identify what a row asks for, without white space around its prompt."""
    prompt = row.prompt.strip() if isinstance(row.prompt, str) else row.prompt
    return bytes.fromhex(content_key({**row.content(), "prompt": prompt}))


def prompt_digest(prompt: Json) -> bytes:
    """16 bytes that identify a prompt alone, without surrounding white space, and whatever the form of its pictures."""
    if isinstance(prompt, list):
        with suppress(BadPart):  # it has them as artifacts already, or was never read
            prompt = RowPictures().parts(prompt, PROMPT)
    return digest("prompt", prompt.strip() if isinstance(prompt, str) else prompt)


def _items(rows: Iterable[Row | BadRow], samples: int) -> Iterator[DatasetItem]:
    with closing(DigestTable()) as seen:
        prompt_index = 0
        for row in rows:
            if isinstance(row, BadRow):
                continue
            base, copy = f"id:{row.id}", 0
            if row.id is None:
                identity = row_digest(row)
                base, copy = identity.hex(), seen.count(identity)
            for sample in range(samples):
                yield DatasetItem(prompt_index, row, sample, f"{base}#{copy * samples + sample}")
            prompt_index += 1


@dataclass(frozen=True, slots=True)
class _Fields:
    """Which fields of a row have a meaning."""

    prompt: str
    system: str
    with_chat: bool
    id: str
    images: RowImages
    missing_images: frozenset[str]
    world: RowFields
    commands: tuple[str, ...]
    folder: Path
    """From which the paths of pictures start."""
    with_pictures: bool
    artifacts: ArtifactStore | None

    def parts_of_row(self) -> ReadParts:
        """What reads the content parts of one row."""
        return RowPictures(self.folder, self.artifacts).parts if self.with_pictures else plain_parts

    @property
    def known(self) -> frozenset[str]:
        plain = PLAIN_FIELDS - {*FIELDS, ID} | {*self.images.fields, self.id}
        if not self.with_chat:
            return plain
        return plain - {PROMPT} | set(CHAT_FIELDS) - {SYSTEM} | {self.prompt, self.system} | self.world.names

    def image(self, value: dict[str, Any]) -> str | None:
        """The image that a row names."""
        try:
            image = self.images.image(value)
        except ValueError as error:
            raise _Invalid(str(error)) from None
        if image in self.missing_images:
            raise _Invalid(f"its image {image} does not exist")
        return None if image is None else _usable("image", image)


def _rows(found: Records, fields: _Fields, max_samples: int | None) -> Iterator[Row | BadRow]:
    good, unit, records = 0, found.unit, _with_remedy(found.read(), fields)
    with ExitStack() as stack:
        ids: DigestTable | None = None
        while max_samples is None or good < max_samples:
            record = next(records, None)
            if record is None:
                return
            row = _row(record, unit, fields)
            if isinstance(row, Row) and row.id is not None:
                ids = ids or stack.enter_context(closing(DigestTable()))
                row = _unique(row, ids, unit)
            good += isinstance(row, Row)
            yield row


def _with_remedy(records: Iterator[Record], fields: _Fields) -> Iterator[Record]:
    try:
        yield from records
    except MissingColumn as error:
        raise UserError(f"{error}{remedy(fields.prompt, error.columns, KNOWN_FIELDS)}") from None


def _unique(row: Row, ids: DigestTable, unit: Unit) -> Row | BadRow:
    first = ids.first(digest("id", row.id), row.line)
    if first == row.line:
        return row
    return BadRow(row.line, f"the id {row.id!r} is taken by {unit} {first} already", unit)


class _Invalid(Exception):
    """Why a value is not a row."""


class _NoPrompt(_Invalid):
    """A row without the field of the prompt."""


def _row(record: Record, unit: Unit, fields: _Fields) -> Row | BadRow:
    if record.problem is not None:
        return BadRow(record.number, record.problem, unit)
    try:
        return _parse(record.number, record.value, fields)
    except _NoPrompt as error:
        return BadRow(record.number, str(error), unit, tuple(record.value))
    except (_Invalid, BadChat, BadPart) as error:
        return BadRow(record.number, str(error), unit)


def _parse(number: int, value: Json, fields: _Fields) -> Row:
    if not isinstance(value, dict):
        raise _Invalid(f"not an object but {kind_of(value)}")
    read_parts = fields.parts_of_row()
    chat = read_chat(value, fields.system, read_parts) if fields.with_chat else Chat()
    prompt, messages = _beginning(value, chat, fields.prompt, read_parts)
    known = fields.known
    return Row(
        line=number,
        prompt=prompt,
        image=fields.image(value),
        own_image=fields.images.named(value) is not None,
        cwd=_cwd(value),
        id=_id(value, fields.id),
        source={name: part for name, part in value.items() if name not in known},
        system=chat.system,
        messages=messages,
        world=_world(value, fields.world),
        fields={name: value[name] for name in fields.commands if name in value},
    )


def _world(value: dict[str, Any], fields: RowFields) -> ItemWorld:
    try:
        return fields.read(value)
    except ValueError as error:
        raise _Invalid(str(error)) from None


def _beginning(
    value: dict[str, Any], chat: Chat, column: str, read_parts: ReadParts
) -> tuple[Prompt, tuple[Message, ...]]:
    """The prompt, and the messages with it where there is more than the prompt. ``column``: the field of the prompt."""
    if not chat.messages:
        if column not in value:
            raise _NoPrompt(f'no "{column}" field')
        return _prompt(value[column], column, read_parts), ()
    written = value.get(column)  # a table has an empty field where the messages say it
    opening = chat.opening(None if written in (None, "", []) else _prompt(written, column, read_parts))
    prompt = next(message["content"] for message in reversed(opening) if message["role"] == "user")
    return prompt, () if len(opening) == 1 else opening


def _prompt(value: Json, column: str, read_parts: ReadParts) -> Prompt:
    if isinstance(value, str):
        if not value.strip():
            raise _Invalid(f'"{column}" is empty')
        return value
    if not isinstance(value, list):
        raise _Invalid(f'"{column}" is {kind_of(value)}, expected text or a list of content parts')
    if not value:
        raise _Invalid(f'"{column}" is an empty list')
    return read_parts(value, column)


def _optional_text(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    if not text:
        return None
    if not isinstance(text, str):
        raise _Invalid(f'"{name}" is {kind_of(text)}, expected text')
    return _usable(name, text.strip()) or None


def _cwd(value: dict[str, Any]) -> str | None:
    text = _optional_text(value, "cwd")
    try:
        return None if text is None else checked_cwd(text)
    except ValueError as error:
        raise _Invalid(f'"cwd" {error}') from None


def _id(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is None or value == "":
        if name != ID:
            raise _Invalid(f'no "{name}" field')
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise _Invalid(f'"{name}" is {kind_of(value)}, expected text or a whole number')
    text = _usable(name, str(value).strip())
    if not text:
        raise _Invalid(f'"{name}" is empty')
    return text


def _usable(name: str, text: str) -> str:
    """Text that goes to other programs and into keys: no NUL, and nothing that UTF-8 can't hold."""
    if "\0" in text or (not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)):
        raise _Invalid(f'"{name}" holds characters that are not text')
    return text
