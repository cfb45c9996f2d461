"""An item as a static page shows it: what came of it, how it was scored, its conversation, its attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from manyhands.core.text import counted, cut
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.browsing import UNREADABLE, JournalBrowser
from manyhands.runs.shown.run_view import RunView
from manyhands.view.conversation import ConversationReader, ShownStep
from manyhands.view.pages.item import Described, attempt_sections, result_sections, summed_up
from manyhands.view.rendering import Renderer

_FILTER_NAMES = frozenset("abcdefghijklmnopqrstuvwxyz-")
_MAX_VALUE = 100
"""Characters of what an item is filtered by."""
TEMPLATE = "static_item.html"


class ShownItems:
    """Makes HTML of the items of one run, one after the other. A system prompt that several have stands in the first of them alone, if they
    are in one document."""

    def __init__(self, reader: JournalBrowser, view: RunView, renderer: Renderer, run: str) -> None:
        """``run``: its ``run_id``."""
        self._reader = reader
        self._view = view
        self._renderer = renderer
        self._run = run
        self._describe = Described(reader)
        self._prompts: dict[str, int] = {}

    def fold(self, row: ItemRow, most: int) -> str:
        """An item that opens at a click. ``most``: characters of its conversation, about."""
        steps, left = self._beginning(row, most)
        left_out = counted(left, "more step") if left else ""
        values = self._values(row, row.attempt, steps, left_out, shares_prompts=True)
        return self._renderer.part(TEMPLATE, "fold", self._run, values, self._filters(row, values["item"]["state"]))

    def body(self, row: ItemRow, attempt: int, steps: Sequence[ShownStep], *, is_first: bool) -> str:
        """An attempt of an item as a page of its own; ``is_first``: with everything besides the steps."""
        return self._renderer.part(TEMPLATE, "body", self._run, self._values(row, attempt, steps, ""), is_first)

    def earlier_attempts(self, row: ItemRow) -> list[int]:
        """The attempts before the latest one that the table of attempts leads to."""
        return sorted(
            {ended.attempt for ended in summed_up(self._reader, row)[1].given_up if ended.attempt < row.attempt}
        )

    def pages(self, row: ItemRow, attempt: int) -> Iterator[list[ShownStep]]:
        """The steps of an attempt's conversation by pages; the first one also if there are none."""
        start, told = 0, set[int]()
        while True:
            page = ConversationReader(self._reader, row.number, attempt, self._describe, told=told).page(start)
            if page.steps or not start:
                yield page.steps
            if page.behind is None:
                return
            start = page.behind

    def forget(self, row: ItemRow) -> None:
        """An item that was made is not shown: nothing leads to it."""
        self._prompts = {text: number for text, number in self._prompts.items() if number != row.number}

    def _beginning(self, row: ItemRow, most: int) -> tuple[list[ShownStep], int]:
        """As many steps as there is room for, and how many are left out."""
        talk = ConversationReader(self._reader, row.number, row.attempt, self._describe, most=most)
        steps: list[ShownStep] = []
        page = talk.page()
        steps += page.steps
        while page.behind is not None and not talk.is_full:
            page = talk.page(page.behind)
            steps += page.steps
        return steps, talk.left_out(page)

    def _values(
        self, row: ItemRow, attempt: int, steps: Sequence[ShownStep], left_out: str, *, shares_prompts: bool = False
    ) -> Mapping[str, Any]:
        summary, details = summed_up(self._reader, row)
        prompt, same_as = details.system_prompt, None
        if prompt and shares_prompts:
            first = self._prompts.setdefault(prompt, row.number)
            same_as = None if first == row.number else first
        has_attempts = bool(details.given_up or details.failures or details.earlier)
        return {
            "item": summary,
            "attempt": attempt,
            "seconds": None if row.started_at is None or row.finished_at is None else row.finished_at - row.started_at,
            "result": [*result_sections(self._reader, self._view, row)],
            "result_title": self._view.item_tab,
            "attempts": [*attempt_sections(row, details)] if has_attempts else [],
            "described": self._describe.item(row),
            "of_tools": details.tools,
            "system_prompt": prompt,
            "prompt_is_that_of": same_as,
            "steps": steps,
            "left_out": left_out,
        }

    def _filters(self, row: ItemRow, state: str) -> dict[str, str]:
        try:
            labels = self._view.labels(row)
        except UNREADABLE:
            labels = {}
        named = ((label.replace(" ", "-").lower(), value) for label, value in {"state": state, **labels}.items())
        return {name: cut(value, _MAX_VALUE) for name, value in named if _FILTER_NAMES.issuperset(name)}
