"""How often a worker may correct a report that does not fit, whichever way its reports come."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.tools.results import bounded

LONGEST_KEPT = 100_000
"""Characters of a report that is kept with a failed item."""


@dataclass(slots=True)
class Corrections:
    """An item's refused reports. ``allowed``: corrections in all, so that one more report than that is looked at."""

    allowed: int
    refused: int = 0
    last: Json = None
    violations: tuple[str, ...] = ()

    def refuse(self, result: Json, violations: tuple[str, ...]) -> None:
        """Count a report that does not fit."""
        self.refused += 1
        self.last, self.violations = result, violations

    @property
    def left(self) -> int:
        """Corrections that are still allowed, after at least one refusal."""
        return self.allowed + 1 - self.refused

    @property
    def used_up(self) -> bool:
        return self.left <= 0

    def tries(self) -> str:
        """How many are left, in a sentence for the worker."""
        if self.used_up:
            return "No correction is left."
        return "One correction is left." if self.left == 1 else f"{self.left} corrections are left."

    def failure(self) -> ItemError:
        """The failure of an item whose last report did not fit; the report is kept."""
        more = f" (and {len(self.violations) - 1} more)" if len(self.violations) > 1 else ""
        return ItemError(
            Cause.INVALID_OUTPUT, f"the result does not fit: {self.violations[0]}{more}", record=self.record()
        )

    def record(self) -> dict[str, Json]:
        """What is kept with an item that ends without an accepted report; nothing if none was refused."""
        if not self.violations:
            return {}
        return {"last_report": bounded(self.last, LONGEST_KEPT), "violations": list(self.violations)}
