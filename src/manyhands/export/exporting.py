"""An export from beginning to end: which conversations of which runs, into which files, and what was left out and why.

Everything is streamed from the journals in order of the input. Where a choice depends on several conversations (the best of a prompt,
pairs), they are gone through once before, and what the choice needs of each is kept in a temporary database.
"""

from __future__ import annotations

import hashlib
import statistics
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypedDict, cast

from manyhands.core.digests import content_key
from manyhands.core.errors import ToolError, UserError
from manyhands.core.jsonio import Json, dumps, pretty
from manyhands.core.messages import Message, text_of
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.export.choice import Choice, Entry
from manyhands.export.conversations import (
    PAGE,
    Conversation,
    ConversationSource,
    Turn,
    conversations_of,
    source_of,
    without_synthetic,
)
from manyhands.export.files import (
    SUMMARY,
    JsonLines,
    Sink,
    SplitFiles,
    check_target,
    folder_beside,
    folder_written_aside,
    summary_path,
)
from manyhands.export.format import Format, Losses, Unfit, load_format
from manyhands.export.repetition import Repetitions
from manyhands.export.secrets import SecretFound, find_secret, may_hold_secret, without_secrets
from manyhands.export.settings import ExportSettings
from manyhands.export.tokens import ConversationTokens, nearest_rank
from manyhands.io.files import written_aside
from manyhands.runs.folders import open_reader
from manyhands.runs.steering.selection import Selection
from manyhands.tools.services.artifacts import ArtifactStore, refers

STANDARD_OUTPUT = "-"
WITHOUT_SCORE = "without a score"


@dataclass(slots=True)
class Report:
    """What an export came to."""

    format: str
    output: str
    runs: list[str]
    items: int = 0
    """Of all runs, in whatever state."""
    exported_items: int = 0
    """Of which at least one conversation was written."""
    conversations: int = 0
    """That were looked at: those of items that were not left out as a whole."""
    rows: int = 0
    """That were written."""
    left_out_items: Counter[str] = field(default_factory=Counter)
    """Whole items, by reason."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Conversations, by reason."""
    left_out_pairs: Counter[str] = field(default_factory=Counter)
    """Pairs that the format can't hold, by reason."""
    lost: Counter[str] = field(default_factory=Counter)
    """What the format has no place for."""
    redacted: int = 0
    """Conversations in which secrets were replaced."""
    simulated: int = 0
    """Exported conversations that a simulated model took part in."""
    tools_changed: int = 0
    """Exported conversations whose tools are known only as this version of the program has them."""
    pairs: int = 0
    splits: dict[str, int] = field(default_factory=dict)
    """Rows, by split."""
    files: list[str] = field(default_factory=list)
    tokens: TokenSummary | None = None
    notes: list[str] = field(default_factory=list)
    """What the format has to say of the output."""

    def to_json(self) -> ExportSummary:
        """The summary beside the output: it holds no time, so that the same input gives the same bytes."""
        return {
            "format": self.format,
            "runs": self.runs,
            "items": self.items,
            "exported_items": self.exported_items,
            "left_out_items": _sorted(self.left_out_items),
            "conversations": self.conversations,
            "left_out_conversations": _sorted(self.left_out),
            "pairs": self.pairs,
            "left_out_pairs": _sorted(self.left_out_pairs),
            "rows": self.rows,
            "rows_by_split": self.splits,
            "not_held_by_format": _sorted(self.lost),
            "redacted_conversations": self.redacted,
            "simulated_conversations": self.simulated,
            "conversations_with_changed_tools": self.tools_changed,
            "tokens": self.tokens,
            "notes": self.notes,
        }


class TokenSummary(TypedDict):
    """The tokens of exported conversations."""

    tokenizer: str
    with_chat_template: bool
    """Whether the tokenizer's chat template wrote what was counted."""
    total: int
    median: int
    p95: int
    """What 95 % have at most."""
    longest: int


class ExportSummary(TypedDict):
    """What an export came to, as ``export_summary.json`` has it."""

    format: str
    runs: list[str]
    """The names of the runs' folders."""
    items: int
    """Of all runs, in whatever state."""
    exported_items: int
    """Of which at least one conversation was written."""
    left_out_items: dict[str, int]
    """Whole items, by reason."""
    conversations: int
    """Of the items that were not left out as a whole."""
    left_out_conversations: dict[str, int]
    """By reason."""
    pairs: int
    """That were written."""
    left_out_pairs: dict[str, int]
    """Pairs that the format can't hold, by reason."""
    rows: int
    rows_by_split: dict[str, int]
    """Empty if there are no splits."""
    not_held_by_format: dict[str, int]
    """What the format has no place for."""
    redacted_conversations: int
    """Exported ones in which secrets were replaced."""
    simulated_conversations: int
    """That a simulated model took part in."""
    conversations_with_changed_tools: int
    """Whose tools are known only as this version of the program has them."""
    tokens: TokenSummary | None
    """Null without a tokenizer."""
    notes: list[str]
    """What the format has to say of the output."""


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def export(
    folders: Sequence[Path],
    settings: ExportSettings,
    output: Path | None = None,
    *,
    stream: BinaryIO | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Export the conversations of runs. ``output``: a file or folder (None: as ``default_output`` says); ``stream``: gets the rows
    instead; ``progress``: called with the items done, and how many there are.

    Raises UserError for settings, runs and contents that can't be exported, SecretFound for a secret, StorageError.
    """
    losses = Losses()
    if stream is None and output is None:
        output = default_output(folders[0], load_format(settings.to), settings)
    settings = settings.changed({"output": STANDARD_OUTPUT if output is None else str(output)})  # what formats go by
    with ExitStack() as stack:
        format = load_format(settings.to)(settings, losses)
        format.check_options()
        runs = [_Run.opened(stack, folder, settings) for folder in folders]
        return _Export(runs, format, settings, losses, progress).run(output, stream)


def default_output(folder: Path, format: type[Format], settings: ExportSettings) -> Path:
    """Where an export of a run goes unless it is said."""
    plain = not (format.in_folder or settings.split or settings.shard_rows)
    return folder / "exports" / f"{format.name}{format.suffix if plain else ''}"


@dataclass(slots=True)
class _Run:
    """A run that is exported."""

    reader: JournalReader
    source: ConversationSource
    selected: frozenset[int] | None
    """The numbers of the items that were selected; None: all."""

    @classmethod
    def opened(cls, stack: ExitStack, folder: Path, settings: ExportSettings) -> _Run:
        reader = stack.enter_context(closing(open_reader(folder)))
        stack.enter_context(reader.snapshot())
        source = source_of(reader)
        if source is None:
            raise UserError(
                f"{folder}: runs of the workload {reader.meta('workload')!r} have no conversations to export"
            )
        selected = None
        if settings.select:
            selected = frozenset(each.number for each in Selection.parse(settings.select).found(reader))
        return cls(reader, source, selected)

    def items(self) -> Iterator[list[ItemRow]]:
        """All items, a page at a time."""
        rows = self.reader.items()
        while page := list(islice(rows, PAGE)):
            yield page


class _Export:
    """One export while it goes on."""

    def __init__(
        self,
        runs: Sequence[_Run],
        format: Format,
        settings: ExportSettings,
        losses: Losses,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._runs, self._format, self._settings, self._losses = runs, format, settings, losses
        self._report = Report(format.name, "", [run.reader.folder.name for run in runs])
        self._tokens = None if settings.tokenizer is None else ConversationTokens(settings.tokenizer)
        if self._tokens is None and (settings.max_length or settings.min_length):
            raise UserError("--max_length and --min_length count tokens: name a --tokenizer")
        self._lengths = array("L")
        self._unfit_lengths: tuple[int, ...] = ()  # the least and the most tokens of those left out for their length
        self._states = frozenset(settings.states or ("completed",))
        self._progress = progress
        self._left = "nothing was written"
        """What is there after an error."""
        self._tools_seen: dict[int, tuple[Sequence[Mapping[str, Any]], bool]] = {}
        self._all = sum(sum(run.reader.counts().values()) for run in runs)

    def run(self, output: Path | None, stream: BinaryIO | None) -> Report:
        settings, report = self._settings, self._report
        if stream is not None:
            if self._format.writes_folder or self._format.suffix != ".jsonl":
                raise UserError(f"--output -: {self._format.name} is not one file of lines here; name a path")
            self._left = "the rows before it were written"
            sink: Sink = JsonLines(None, stream)
            self._write(lambda split, row: sink.write(row))
            sink.close()
            report.output = STANDARD_OUTPUT
            return self._finished({"": sink.rows})
        assert output is not None, "a path or a stream"
        path, in_folder = output, self._format.writes_folder
        report.output = str(path)
        if in_folder and self._format.suffix and path.suffix == self._format.suffix:
            raise UserError(f"--output {path}: this makes a folder of files; name it without {path.suffix}")
        with self._target(path, in_folder=in_folder) as folder:
            names = [name for name, _ in settings.split or ()] or [""]
            files = SplitFiles(
                folder, self._format.sink, suffix=self._format.suffix, splits=names, shard_rows=settings.shard_rows
            )
            self._write(files.write)
            written = files.close()
            report.files = [name for each in written.values() for name in each]
            self._finished(files.rows())
            filled = {split: names for split, names in written.items() if files.rows()[split]}
            self._format.simulated = self._report.simulated
            for name, text in self._format.extra_files(filled).items() if in_folder and filled else ():
                (folder / name).write_text(text, encoding="utf-8")
            if in_folder:
                (folder / SUMMARY).write_text(pretty(report.to_json()) + "\n", encoding="utf-8")
        return report

    @contextmanager
    def _target(self, path: Path, *, in_folder: bool) -> Iterator[Path]:
        """A folder to write into, whose contents become the output when all is well."""
        runs = [run.reader.folder for run in self._runs]
        check_target(path, overwrite=self._settings.overwrite, runs=runs)
        if in_folder:
            with folder_written_aside(path, overwrite=self._settings.overwrite) as folder:
                yield folder
            return
        if path.is_dir():
            raise UserError(f"{path}: is a folder; {self._format.name} is one file")
        with folder_beside(path) as folder:
            yield folder
            with written_aside(summary_path(path)) as handle:
                handle.write(pretty(self._report.to_json()) + "\n")
            (folder / self._report.files[0]).replace(path)

    def _finished(self, splits: Mapping[str, int]) -> Report:
        report = self._report
        report.rows = sum(splits.values())
        report.notes = list(self._format.notes(splits))
        if self._unfit_lengths:
            least, most = self._unfit_lengths
            report.notes.append(f"Left out for their length: conversations of {least:,} to {most:,} tokens")
        report.splits = {name: rows for name, rows in splits.items() if name}
        report.lost = self._losses.counts
        if self._tokens is not None and self._lengths:
            lengths = sorted(self._lengths)
            report.tokens = {
                "tokenizer": self._tokens.name,
                "with_chat_template": self._tokens.uses_template,
                "total": sum(lengths),
                "median": statistics.median_low(lengths),
                "p95": nearest_rank(lengths, 95),
                "longest": lengths[-1],
            }
        return report

    # --- Rows

    def _write(self, write: Callable[[str, Mapping[str, Json]], None]) -> None:
        if self._format.takes == "pairs":
            self._write_pairs(write)
            return
        items, exported = 0, set[tuple[int, int]]()
        with ExitStack() as stack:
            choice = None
            if self._settings.best_of is not None:
                choice = stack.enter_context(closing(self._indexed()))
                choice.choose_best(self._settings.best_of)
            repetitions = stack.enter_context(
                closing(Repetitions.of(self._settings.dedup, self._settings.near_threshold))
            )
            for run, item, conversation in self._conversations(self._report):
                reason = self._misfit(conversation)
                if reason is None and choice is not None and not choice.is_chosen(run, item):
                    reason = WITHOUT_SCORE if conversation.score is None else "not among the best of their prompt"
                if reason is None:
                    reason = repetitions.seen(conversation)
                if reason is not None:
                    self._report.left_out[reason] += 1
                    continue
                items += self._write_one(run, conversation, write) and self._first(exported, run, item)
        self._report.exported_items = items

    def _first(self, exported: set[tuple[int, int]], run: int, item: int) -> bool:
        """Whether this is the first conversation of its item; those of an item follow each other."""
        if (run, item) in exported:
            return False
        exported.clear()
        exported.add((run, item))
        return True

    def _write_one(
        self, run: int, conversation: Conversation, write: Callable[[str, Mapping[str, Json]], None]
    ) -> bool:
        split, lost = self._split(conversation.prompt_key), self._losses.counts.copy()
        clean = self._without_secrets(conversation)
        try:
            for row in self._format.rows(self._with_pictures(run, clean)):
                write(split, row)
        except Unfit as unfit:
            self._losses.counts = lost
            self._report.left_out[str(unfit)] += 1
            return False
        self._count(clean, redacted=clean is not conversation)
        return True

    def _with_pictures(self, run: int, conversation: Conversation) -> Conversation:
        """With the pictures that it refers to as data addresses, since files are read elsewhere. Raises Unfit for one that is gone."""
        if not any(refers(turn.message) for turn in conversation.turns):
            return conversation
        artifacts = ArtifactStore(self._runs[run].reader.folder)
        try:
            turns = [replace(turn, message=artifacts.with_pictures(turn.message)) for turn in conversation.turns]
        except ToolError:
            raise Unfit("with a picture that is not in the run's folder any more") from None
        return replace(conversation, turns=turns)

    def _count(self, conversation: Conversation, *, redacted: bool) -> None:
        self._report.redacted += redacted
        if conversation.tokens is not None:
            self._lengths.append(conversation.tokens)
        self._report.simulated += conversation.simulated
        self._report.tools_changed += conversation.tools_changed

    def _misfit(self, conversation: Conversation) -> str | None:
        """Why a conversation has not the wanted length, which is noted in it; None if it has."""
        if self._tokens is None:
            return None
        tokens = conversation.tokens = self._tokens.count(conversation)
        maximum, minimum = self._settings.max_length, self._settings.min_length
        reason = None
        if maximum is not None and tokens > maximum:
            reason = f"longer than {maximum:,} tokens"
        elif minimum is not None and tokens < minimum:
            reason = f"shorter than {minimum:,} tokens"
        if reason is not None:
            known = (*self._unfit_lengths, tokens)
            self._unfit_lengths = (min(known), max(known))
        return reason

    def _split(self, prompt_key: str) -> str:
        """The split of a prompt, which depends on nothing else."""
        if not self._settings.split:
            return ""
        digest = hashlib.blake2b(prompt_key.encode(), digest_size=8, person=b"split").digest()
        at, total = int.from_bytes(digest, "big") / 2**64, 0.0
        for name, share in self._settings.split:
            total += share
            if at < total:
                return name
        return self._settings.split[-1][0]

    def _write_pairs(self, write: Callable[[str, Mapping[str, Json]], None]) -> None:
        report = self._report
        with closing(self._indexed()) as choice:
            candidates = report.conversations - report.left_out.total()
            items: set[tuple[int, int]] = set()
            for better, worse in choice.pairs(every=self._settings.pairs == "all", min_gap=self._settings.min_gap):
                (chosen, *_), (rejected, *_) = both = self._again(better), self._again(worse)
                lost = self._losses.counts.copy()
                try:
                    row = self._format.pair(
                        self._with_pictures(better.run, chosen), self._with_pictures(worse.run, rejected)
                    )
                except Unfit as unfit:
                    self._losses.counts = lost
                    report.left_out_pairs[str(unfit)] += 1
                    continue
                write(self._split(chosen.prompt_key), row)
                report.pairs += 1
                for entry, (conversation, redacted) in zip((better, worse), both, strict=True):
                    if (entry.run, entry.item) not in items:
                        items.add((entry.run, entry.item))
                        self._count(conversation, redacted=redacted)
            report.exported_items = len(items)
            if unpaired := candidates - len(items):
                report.left_out["in no pair"] += unpaired

    def _indexed(self) -> Choice:
        """All conversations, with what choices between them need."""
        choice = Choice()
        pairs = self._format.takes == "pairs"
        report = self._report if pairs else Report("", "", [])
        with closing(
            Repetitions.of(self._settings.dedup if pairs else "none", self._settings.near_threshold)
        ) as repeated:
            for run, item, conversation in self._conversations(report):
                if (
                    reason := self._unpairable(conversation, repeated) if pairs else self._unranked(conversation)
                ) is not None:
                    report.left_out[reason] += 1
                    continue
                said = content_key([_said(turn) for turn in conversation.turns if turn.call or turn.train])
                choice.add(Entry(run, item, conversation.prompt_key, conversation.score, said))
        return choice

    def _unranked(self, conversation: Conversation) -> str | None:
        """Why a conversation is not among those of which the best are chosen."""
        if conversation.score is None:
            return WITHOUT_SCORE
        return "of judges or stages" if conversation.name else self._misfit(conversation)

    def _unpairable(self, conversation: Conversation, repetitions: Repetitions) -> str | None:
        """Why a conversation can't be in a pair."""
        if conversation.name:
            return "of judges or stages, which make no pairs"
        if conversation.score is None:
            return WITHOUT_SCORE
        return repetitions.seen(conversation) or self._misfit(conversation)

    def _again(self, entry: Entry) -> tuple[Conversation, bool]:
        """The conversation that an entry is about, and whether secrets were replaced in it."""
        run = self._runs[entry.run]
        row = run.reader.item(str(entry.item))
        if row is None:
            raise UserError(f"{run.reader.folder}: item {entry.item} is gone")
        found = self._as_kept(next(conversations_of(run.source, [row]))[1])
        self._misfit(found)  # notes its length
        clean = self._without_secrets(found)
        return clean, clean is not found

    # --- Conversations

    def _conversations(self, report: Report) -> Iterator[tuple[int, int, Conversation]]:
        """The conversations that are wanted, each with the number of its run and its item's number there. What is left out is counted."""
        for number, run in enumerate(self._runs):
            for page in run.items():
                report.items += len(page)
                rows = [row for row in page if self._wanted(run, row, report)]
                per_item: Counter[int] = Counter()
                for row, conversation in conversations_of(run.source, rows):
                    per_item[row.number] += 1
                    for kept in self._with_judges(conversation, report):
                        yield number, row.number, kept
                report.left_out_items["without a conversation"] += sum(not per_item[row.number] for row in rows)
                if self._progress is not None:
                    self._progress(report.items, self._all)
        for counts in (report.left_out_items, report.left_out):
            counts += Counter()  # without those that are 0

    def _wanted(self, run: _Run, row: ItemRow, report: Report) -> bool:
        reason: str | None = None
        if run.selected is not None and row.number not in run.selected:
            reason = "not selected"
        elif not run.source.has(row):
            reason = "not in the input any more"
        elif not row.state.final:
            reason = "not ended"
        elif row.state.value not in self._states:
            why = row.reason or row.cause
            reason = f"{row.state}: {why}" if why else str(row.state)
        if reason is not None:
            report.left_out_items[reason] += 1
        return reason is None

    def _with_judges(self, conversation: Conversation, report: Report) -> Iterator[Conversation]:
        """The conversation, and where they are wanted those of its judges, as they are exported: neither if it is left out."""
        others = conversation.others if self._settings.judges else ()
        report.conversations += 1 + len(others)
        if (kept := self._kept(conversation, report)) is None:
            report.left_out["of judges of what is left out"] += len(others)
            return
        yield kept
        for other in others:
            judged = self._kept(replace(other, prompt_key=conversation.prompt_key), report, is_judge=True)
            if judged is not None:
                yield judged

    def _kept(self, conversation: Conversation, report: Report, *, is_judge: bool = False) -> Conversation | None:
        """The conversation as it is exported; None if it is left out."""
        settings, reason = self._settings, None
        if not conversation.turns:
            reason = "without a recorded conversation"
        elif conversation.truncated and not settings.keeps("truncated"):
            reason = f"truncated: {conversation.stop_reason or 'not ended'}"
        elif self._format.needs_score and conversation.score is None:
            reason = WITHOUT_SCORE
        elif settings.min_score is not None and not is_judge:
            if conversation.score is None:
                reason = WITHOUT_SCORE
            elif conversation.score < settings.min_score:
                reason = f"scored less than {settings.min_score:g}"
        if reason is not None:
            report.left_out[reason] += 1
            return None
        return self._as_kept(conversation)

    def _as_kept(self, conversation: Conversation) -> Conversation:
        settings, turns = self._settings, conversation.turns
        if not settings.keeps("synthetic"):
            turns = without_synthetic(turns)
        if settings.keeps("ephemeral"):
            turns = _with_ephemeral(turns, conversation)
        if settings.train_on != "all":
            turns = _TRAINED[settings.train_on](turns)
        if turns is not conversation.turns:
            conversation.turns = turns
        return conversation

    def _without_secrets(self, conversation: Conversation) -> Conversation:
        """The conversation that is about to be written; another one if secrets were replaced. Raises SecretFound."""
        if self._settings.keep_secrets or not self._may_hold_secret(conversation):
            return conversation
        value = conversation.to_json()
        if self._settings.redact:
            clean = without_secrets(value)
            return conversation if clean == value else Conversation.from_json(clean)
        if (found := find_secret(value)) is not None:
            where, what = found
            raise SecretFound(
                f"{without_secrets(conversation.place)}: {without_secrets(where)} holds what looks like {what}; {self._left}. "
                "--redact replaces secrets, "
                "--keep_secrets exports them"
            )
        return conversation

    def _may_hold_secret(self, conversation: Conversation) -> bool:
        """The quick look, for which tools that many conversations share are looked through once."""
        tools = self._tools_seen.get(id(conversation.tools))
        if tools is None:  # kept, so that no other list gets its id
            found = may_hold_secret(dumps(list(conversation.tools)))
            tools = self._tools_seen[id(conversation.tools)] = (conversation.tools, found)
            if len(self._tools_seen) > _TOOLS_SEEN:
                del self._tools_seen[next(iter(self._tools_seen))]
        return tools[1] or may_hold_secret(dumps(conversation.texts()))


_TOOLS_SEEN = 100


def _said(turn: Turn) -> Json:
    """What a message says and calls, whatever the ids of its calls."""
    calls = turn.message.get("tool_calls") or ()
    return [turn.message.get("content"), [[call["function"]["name"], call["function"]["arguments"]] for call in calls]]


def _with_ephemeral(turns: Sequence[Turn], conversation: Conversation) -> list[Turn]:
    """With what was sent before the conversation and is not kept otherwise."""
    system, rest = (turns[:1], turns[1:]) if turns and turns[0].role == "system" else ((), turns)
    text = "\n\n".join(
        filter(None, [*(text_of(turn.message.get("content")) for turn in system), conversation.ephemeral])
    )
    head = [Turn({"role": "system", "content": text})] if text else []
    prefill: list[Turn] = [Turn(cast(Message, {**message, "_given": True})) for message in conversation.prefill]
    return [*head, *prefill, *rest]


def _last_trained(turns: Sequence[Turn]) -> list[Turn]:
    """With the last answer alone to be trained on."""
    last = max((at for at, turn in enumerate(turns) if turn.train), default=-1)
    return [turn if at == last or not turn.train else replace(turn, train=False) for at, turn in enumerate(turns)]


def _succeeded_trained(turns: Sequence[Turn]) -> list[Turn]:
    """Without answers of which a tool call failed."""
    failed = {turn.message.get("tool_call_id") for turn in turns if turn.message.get("_failed")}
    return [replace(turn, train=False) if turn.train and _calls(turn) & failed else turn for turn in turns]


def _calls(turn: Turn) -> set[str | None]:
    return {call["id"] for call in turn.message.get("tool_calls") or ()}


_TRAINED: Mapping[str, Callable[[Sequence[Turn]], list[Turn]]] = {
    "last": _last_trained,
    "succeeded": _succeeded_trained,
}
