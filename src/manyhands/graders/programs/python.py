"""``python``: a Python function that judges, in this process.

``function`` is ``module:function``, or ``file.py:function`` with the path from the eval file's folder. It is given one argument, the
object that a ``code_judge`` gets on standard input, and returns a number from 0 to 1, a truth value, a ``Score``, or a mapping with
``score`` and whatever else a program may reply (see ``graders.contract``). It may be async or not; neither kind holds up anything else
(``processes.python_functions``). One that is written with names, ``module:function(answer, criteria)``, is given these keys of the object
one by one instead. What it raises, and the time limit, are errors of the grader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

from manyhands.core.digests import digest
from manyhands.core.errors import GraderError
from manyhands.core.jsonio import dumps, loads
from manyhands.core.redaction import KNOWN
from manyhands.core.settings import Text, shown
from manyhands.engine.contract import Effect
from manyhands.graders.contract import GRADE, replied, said, score_of
from manyhands.graders.payloads import first
from manyhands.graders.protocol import Candidate, Grader, Grading, Score
from manyhands.graders.registry import Setup
from manyhands.io.keys import Entry, key, own_keys, read
from manyhands.io.locations import Location
from manyhands.processes.python_functions import Function, Overdue, call, load_function, with_arguments


class PythonEntry(Entry):
    """Settings of ``python``; every other key goes to the function as ``config``."""

    spellings: ClassVar[Mapping[str, str]] = {"callable": "function"}
    open: ClassVar[bool] = True
    function: Text = key(
        ...,
        "The function: module:function, or file.py:function from the eval file's folder; module:function(answer, criteria) for one that "
        "gets these instead of one object.",
    )


ENTRY = PythonEntry
ARGUMENTS = tuple(first(Candidate("", ""), None))
"""What a function can get one by one."""


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError if there is no such function, or its module can't be loaded."""
    settings = read(PythonEntry, entry, location)
    at = location.at("function")
    try:
        name, arguments = with_arguments(settings.function)
    except ValueError as error:
        raise at.error(str(error)) from None
    unknown = next((each for each in arguments or () if each not in ARGUMENTS), None)
    if unknown is not None:
        raise at.error(f"a function can't get {unknown!r}; it can get {', '.join(ARGUMENTS)}")
    function = load_function(name, setup.folder, at.error, setup.functions)
    config = own_keys(PythonEntry, entry) or None
    return PythonGrader(entry["name"], entry["type"], settings.function, function, config, arguments)


@dataclass(frozen=True, slots=True)
class PythonGrader:
    """Calls a function, and reads its verdict."""

    name: str
    type: str
    written: str
    """The function as the person named it."""
    function: Function = field(repr=False)
    config: Mapping[str, Any] | None = None
    arguments: tuple[str, ...] | None = None
    """What the function gets one by one; None: all in one object."""

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        # Through JSON: the function gets what a program would, and may change it without changing anything else.
        data = dumps(first(candidate, self.config))
        request = {
            "grader": self.name,
            "function": self.written,
            "payload": digest("payload", data.decode("utf-8", "replace")).hex(),
        }

        async def effect() -> Effect:
            return Effect(_as_json(_said(await self._called(loads(data), grading.seconds), self.written), self.written))

        return score_of(self, await grading.context.step(GRADE, request, effect), grading)

    async def _called(self, payload: dict[str, Any], seconds: float) -> Any:
        try:
            given = [payload] if self.arguments is None else [payload[name] for name in self.arguments]
            return await call(self.function, *given, seconds=seconds)
        except Overdue as error:
            raise GraderError(f"{self.written} took more than {seconds:g} s") from error
        except GraderError:
            raise
        except Exception as error:  # a person's own function may raise anything
            raise GraderError(_raised(self.written, error)) from error


def _as_json(found: dict[str, Any], written: str) -> dict[str, Any]:
    """What is recorded. Raises GraderError for details that JSON can't hold."""
    try:
        recorded: dict[str, Any] = loads(dumps(found))
    except (TypeError, ValueError, RecursionError) as error:
        raise GraderError(f"{written} returned details that JSON can't hold: {error}") from error
    return recorded


def _said(value: Any, written: str) -> dict[str, Any]:
    if isinstance(value, Score):
        value = _of_score(value)
    if isinstance(value, Mapping):
        return replied({str(name): part if name == "details" else _part(part) for name, part in value.items()}, written)
    if isinstance(value, bool):
        return said({"score": float(value)}, written)
    plain = _part(value)
    if plain is not value and not isinstance(plain, list):
        return _said(plain, written)
    if not isinstance(value, (int, float)):
        raise GraderError(
            f"{written} must return a number, a truth value or a mapping with a score, not {shown(value)}"
        )
    return said({"score": value}, written)


def _part(value: Any) -> Any:
    """What a function gave, as JSON has it: numbers of numpy's, fractions and decimals as plain ones, tuples as lists."""
    if isinstance(value, (int, float)):
        return value
    number = getattr(value, "item", None)
    if callable(number):
        try:
            return number()
        except (TypeError, ValueError):  # an array of several numbers
            return value
    if isinstance(value, (Fraction, Decimal)):
        return float(value)
    return list(value) if isinstance(value, tuple) else value


def _of_score(score: Score) -> dict[str, Any]:
    if score.error is not None:
        raise GraderError(score.error)
    lists = {"hits": list(score.hits), "misses": list(score.misses)}
    return {
        "score": score.value,
        **lists,
        "reasoning": score.reasoning,
        "details": score.details and dict(score.details),
    }


def _raised(written: str, error: BaseException) -> str:
    return f"{written} raised " + " ".join(KNOWN.text(f"{type(error).__name__}: {error}").split())[:1000]
