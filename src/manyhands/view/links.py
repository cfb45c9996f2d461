"""Addresses of pages: of the web app, which are paths, and of the static report, which are relative files or places in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias
from urllib.parse import quote, urlencode

from manyhands.runs.shown.blocks import Link
from manyhands.runs.shown.pairs import COMPARE, RUNS

MAX_ADDRESS = 6000
"""Characters of an address: servers and browsers refuse what is much longer. In a longer one each value is cut."""
_MAX_VALUE = 200

Pairs: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]]
"""What an address asks for; a name may come several times."""


class Links:
    """The addresses of the web app. Those of other forms of pages are subclasses."""

    is_static = False
    """Whether the pages are files that nobody serves."""

    def runs(self, query: Mapping[str, str] | None = None) -> str:
        """The list of runs."""
        return _with("/", query)

    def run(self, run: str) -> str:
        """The page of a run, by its ``run_id``."""
        return f"/runs/{quote(run, safe='')}"

    def items(self, run: str, query: Pairs | None = None) -> str:
        """The table of a run's items."""
        return _with(f"{self.run(run)}/items", query)

    def export(self, run: str, query: Pairs) -> str:
        """What filters find, as a file."""
        return _with(f"{self.run(run)}/export", query)

    def item(self, run: str, number: int, query: Mapping[str, str] | None = None) -> str:
        """An item, by its number, which it keeps for good."""
        return _with(f"{self.run(run)}/items/{number}", query)

    def step(self, run: str, step: int, what: str, query: Mapping[str, str] | None = None) -> str:
        """What a step holds: ``what`` is ``text``, ``json`` or ``download``."""
        return _with(f"{self.run(run)}/steps/{step}/{what}", query)

    def page(self, run: str, name: str, query: Mapping[str, str] | None = None) -> str:
        """A page of the workload's own."""
        return _with(f"{self.run(run)}/pages/{quote(name, safe='')}", query)

    def difference(
        self, run: str, item: int, other_run: str, other: int, query: Mapping[str, str] | None = None
    ) -> str:
        """Two items side by side."""
        return _with("/difference", {"a": f"{run}:{item}", "b": f"{other_run}:{other}", **(query or {})})

    def compare(self, runs: list[str], query: Mapping[str, str] | None = None) -> str:
        """Runs beside each other."""
        return _with("/compare", {"runs": ",".join(runs), **(query or {})})

    def search(self, query: Mapping[str, str] | None = None) -> str:
        """What is found in all runs."""
        return _with("/search", query)

    def help(self) -> str:
        """The keys, and what the words mean."""
        return "/help"

    def asset(self, name: str) -> str:
        """A file that pages need."""
        return f"/assets/{quote(name)}"

    def of(self, run: str, link: Link) -> str:
        """Where a link of a block leads. ``run``: the ``run_id`` of the run whose page it stands on."""
        target = link.run or run
        if link.anchor is not None:
            return f"#{quote(link.anchor, safe='')}"
        if link.item is not None and link.versus is not None:
            return self.difference(target, link.item, link.versus_run or target, link.versus, link.query)
        if link.item is not None:
            return self.item(target, link.item, link.query)
        if link.page == COMPARE:
            rest = {name: value for name, value in link.query.items() if name != RUNS}
            return self.compare(link.query.get(RUNS, target).split(","), rest)
        if link.page is not None:
            return self.page(target, link.page, link.query)
        return self.items(target, link.query)


def _with(path: str, query: Pairs | None) -> str:
    pairs = query.items() if isinstance(query, Mapping) else query or ()
    kept = [(name, value) for name, value in pairs if value != ""]
    if not kept:
        return path
    query_text = urlencode(kept, errors="replace")
    if len(query_text) > MAX_ADDRESS:
        query_text = urlencode([(name, value[:_MAX_VALUE]) for name, value in kept], errors="replace")
    return f"{path}?{query_text}"
