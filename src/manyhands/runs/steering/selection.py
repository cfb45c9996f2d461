"""Which items of a run are meant: by state, cause, key or number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState
from manyhands.core.text import expand_home, one_line, suggestion
from manyhands.engine.contract import BEHIND_INPUT
from manyhands.engine.journal.reader import ItemOutline, JournalReader
from manyhands.runs.ledger import REMOVED
from manyhands.runs.options import read_text

NAMES = ("state", "cause", "key", "item")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_OWN_ID = re.compile(r"id:(.*)#[0-9]+", re.DOTALL)
"""The key of an item that a person gave an id; the number is that of the sample."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Items that have one of the states, one of the causes, and one of the keys or numbers; where none is named, all have it."""

    states: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()
    """Why items failed, were discarded or cancelled."""
    keys: frozenset[str] = frozenset()
    """Of items, or ids that a person gave, which then mean all samples."""
    items: tuple[tuple[int, int], ...] = ()
    """Ranges of item numbers, both ends included."""
    text: str = ""
    """As it was typed."""

    @classmethod
    def parse(cls, words: Sequence[str]) -> Selection:
        """``state=failed``, ``cause=timeout``, ``key=row-3``, ``item=3``, ``item=3-9``, or ``@FILE`` with a key on each line. Raises
        UserError."""
        found: dict[str, set[str]] = {name: set() for name in NAMES}
        for word in words:
            if word.startswith("@"):
                found["key"] |= _keys_in(word[1:])
                continue
            name, equals, value = word.partition("=")
            if not equals or name not in NAMES or not value:
                known = ", ".join(f"{each}=…" for each in NAMES)
                raise UserError(f"--select: {one_line(word)!r} is none of {known} or @FILE{suggestion(name, NAMES)}")
            found[name].add(value)
        for state in found["state"]:
            if state not in set(ItemState):
                raise UserError(f"--select: no state is called {state!r}{suggestion(state, ItemState)}")
        ranges = tuple(sorted(_range(value) for value in found["item"]))
        states, causes, keys = (frozenset(found[name]) for name in ("state", "cause", "key"))
        return cls(states, causes, keys, ranges, " ".join(words))

    @property
    def empty(self) -> bool:
        """Whether it names nothing, so that all items are meant."""
        return not (self.states or self.causes or self.keys or self.items)

    def found(self, reader: JournalReader) -> Iterator[ItemOutline]:
        """The items that are meant, in order of the input. Raises UserError for a key, a number or a cause that no item has, once all
        were looked at."""
        missing, causes = set(self.keys), set(self.causes)
        highest = total = 0
        for page in reader.outlines():
            for each in page:
                total, highest = total + 1, max(highest, each.number)
                named = self._named(each)
                missing.difference_update(named)
                causes.difference_update((each.reason, each.cause))
                if self._means(each, named=bool(named)):
                    yield each
        if missing:
            raise UserError(f"{reader.folder}: no item is called {one_line(min(missing))!r}{_others(len(missing))}")
        if outside := [first for first, _ in self.items if not 1 <= first <= highest]:
            raise UserError(f"{reader.folder}: no item {outside[0]}; there are {total:,}")
        if causes:
            known = sorted({detail for (_, detail) in reader.counts() if detail})
            there = f"there are: {', '.join(known)}" if known else "no item has failed or was discarded"
            raise UserError(f"{reader.folder}: no item with cause {one_line(min(causes))!r}; {there}")

    def _named(self, item: ItemOutline) -> Sequence[str]:
        """By which of the keys an item is named."""
        if not self.keys:
            return ()
        own = _OWN_ID.fullmatch(item.key)
        return [key for key in (item.key, own and own[1]) if key in self.keys]

    def _means(self, item: ItemOutline, *, named: bool) -> bool:
        if self.states and item.state not in self.states:
            return False
        if self.causes and self.causes.isdisjoint((item.reason, item.cause)):
            return False
        by_number = any(first <= item.number <= last for first, last in self.items)
        return named or by_number or not (self.keys or self.items)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The items that an order is about."""

    numbers: Sequence[int]
    of: int
    """Items of the run, without those that left the input."""
    others: int
    """Items that are meant, and that the order does not concern: ended ones of ``cancel``, others of ``retry``."""


def chosen(reader: JournalReader, selection: Selection, concerns: Callable[[ItemOutline], bool]) -> Chosen:
    """The items that are meant and that an order ``concerns``. Raises UserError."""
    meant = [(each.number, concerns(each)) for each in selection.found(reader) if not removed(each)]
    numbers = [number for number, is_concerned in meant if is_concerned]
    return Chosen(numbers, _items(reader), len(meant) - len(numbers))


def removed(item: ItemOutline) -> bool:
    """Whether an item left the input."""
    return item.reason == REMOVED or item.position >= BEHIND_INPUT


def has_ended(item: ItemOutline) -> bool:
    """Whether an item has ended, so that it can be executed again."""
    return ItemState(item.state).final


def has_not_ended(item: ItemOutline) -> bool:
    """Whether an item has not ended, so that it can be cancelled."""
    return not has_ended(item)


def _items(reader: JournalReader) -> int:
    return sum(reader.counts().values()) - sum(map(reader.left_input, ItemState))


def _range(value: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(value)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise UserError(f"--select: item={one_line(value)}: must be an item's number, or a range such as 3-9")
    return int(found[1]), int(found[2] or found[1])


def _keys_in(path: str) -> set[str]:
    if not expand_home(path).is_file():
        raise UserError(f"--select: no such file: {one_line(path)}")
    keys = {stripped for line in read_text(path).split("\n") if (stripped := line.strip())}
    if not keys:
        raise UserError(f"--select: {path} holds no key")
    return keys


def _others(count: int) -> str:
    return f", and {count - 1} more are not there either" if count > 1 else ""


def parsed(words: Iterable[str], otherwise: str | None = None) -> Selection:
    """A selection, or what is meant where nothing was selected. Raises UserError if something has to be."""
    selection = Selection.parse([*words])
    if not selection.empty:
        return selection
    if otherwise is None:
        raise UserError("say which items with --select: state=pending, key=KEY, item=3-9, @FILE …")
    return Selection.parse([otherwise])
