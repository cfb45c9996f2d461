"""Where links of pages lead that are files: to another place in the same file, to another file of the same folder, or nowhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from manyhands.view.links import Links, Pairs


class StaticLinks(Links):
    """Links of a document. Those to its own folds and sections lead there; the address of anything else is empty, and it stays text."""

    is_static = True

    def runs(self, query: Mapping[str, str] | None = None) -> str:
        return ""

    def run(self, run: str) -> str:
        return ""

    def items(self, run: str, query: Pairs | None = None) -> str:
        return ""

    def export(self, run: str, query: Pairs) -> str:
        return ""

    def item(self, run: str, number: int, query: Mapping[str, str] | None = None) -> str:
        return ""

    def step(self, run: str, step: int, what: str, query: Mapping[str, str] | None = None) -> str:
        return ""

    def page(self, run: str, name: str, query: Mapping[str, str] | None = None) -> str:
        return ""

    def difference(
        self, run: str, item: int, other_run: str, other: int, query: Mapping[str, str] | None = None
    ) -> str:
        return ""

    def compare(self, runs: list[str], query: Mapping[str, str] | None = None) -> str:
        return ""

    def search(self, query: Mapping[str, str] | None = None) -> str:
        return ""

    def help(self) -> str:
        return ""

    def asset(self, name: str) -> str:
        return ""


class RunDocumentLinks(StaticLinks):
    """Links of a document about one run."""

    def __init__(self, run: str, pages: Collection[str]) -> None:
        """``pages``: of the workload's pages those that are in it."""
        self._run = run
        self._pages = pages
        self.shown: Collection[int] | None = None
        """The numbers of the items whose conversations are in it; None: taken for all, as long as nobody knows."""

    def items(self, run: str, query: Pairs | None = None) -> str:
        return "#items" if run == self._run and not query else ""

    def item(self, run: str, number: int, query: Mapping[str, str] | None = None) -> str:
        is_latest = "attempt" not in (query or {})  # of no other attempt is the conversation in it
        is_here = run == self._run and is_latest and (self.shown is None or number in self.shown)
        return f"#item-{number}" if is_here else ""

    def page(self, run: str, name: str, query: Mapping[str, str] | None = None) -> str:
        return f"#page-{name}" if run == self._run and name in self._pages else ""
