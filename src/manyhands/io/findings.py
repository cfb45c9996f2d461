"""What reading a file brings to light: problems, and notices for the person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from manyhands.core.errors import UserError
from manyhands.io.locations import Place

MOST_SHOWN = 50
"""Problems that one message names."""


@dataclass(slots=True)
class Findings:
    """Problems, each one line with its place, and notices, each said once."""

    problems: list[str] = field(default_factory=list)
    notices: dict[str, None] = field(default_factory=dict)

    def problem(self, place: Place, message: str) -> None:
        self.problems.append(place.says(message))

    def notice(self, text: str) -> None:
        self.notices[text] = None

    def inner(self) -> Findings:
        """Findings with problems of their own, and the same notices."""
        return Findings(notices=self.notices)

    @contextmanager
    def catching(self) -> Iterator[None]:
        """What is raised as UserError within becomes problems."""
        try:
            yield
        except UserError as error:
            self.problems += str(error).split("\n")


def told(problems: Sequence[str]) -> UserError:
    """Problems as one error, one line each."""
    lines = list(problems[:MOST_SHOWN])
    if len(problems) > MOST_SHOWN:
        lines.append(f"… and {len(problems) - MOST_SHOWN} more problems")
    return UserError("\n".join(lines))
