"""A Python function as a worker: called with the row, it returns the result."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps, loads_outside
from manyhands.core.redaction import KNOWN, describe
from manyhands.engine.contract import Context, Effect
from manyhands.processes.python_functions import Overdue, call, load_function
from manyhands.workloads.csv_jobs.workers.reports import WORKER_STEP, Accepted, Assignment, Corrections, timeout_error

_NAME = "--worker_function"


class FunctionWorker:
    """Executes rows by calls of a function. Made by ``load``.

    The function gets the row (a dict), and the whole assignment too if it takes two arguments. It may be async; neither kind holds up
    anything else (``processes.python_functions``). It returns a dict, a pydantic model or a dataclass, and may raise ItemError to say why
    it can't.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function
        self._with_assignment = _takes_assignment(name, function)

    @classmethod
    def load(cls, name: str, folder: Path, *, replay: bool = False) -> FunctionWorker:
        """The worker for ``module:function`` or ``path/file.py:function``. ``folder``: modules are also looked for there, and paths
        are relative to it. Raises UserError if there is no such function, or it can't be called with a row."""
        if replay:
            return cls(name, _never_called)
        return cls(name, load_function(name, folder, _refusal))

    async def run(self, context: Context, assignment: Assignment) -> Accepted:
        """As of ``Worker``."""

        async def effect() -> Effect:
            began = time.monotonic()
            result = await self._result(assignment)
            seconds = round(time.monotonic() - began, 6)
            return Effect({"result": result, "reported_at": context.clock.now(), "seconds": seconds})

        output = await context.step(WORKER_STEP, {"function": self._name}, effect)
        result = output["result"]
        violations = await assignment.schema.check(result)
        if violations:
            raise _unfit(result, violations)
        return Accepted(result, output["reported_at"], "function")

    async def _result(self, assignment: Assignment) -> Json:
        row = assignment.columns
        arguments = (row, assignment) if self._with_assignment else (row,)
        try:
            return self._as_json(await call(self._function, *arguments, seconds=assignment.max_seconds))
        except Overdue:
            raise timeout_error(assignment.max_seconds) from None
        except ItemError:
            raise
        except Exception as error:  # the boundary to a person's own code
            raise ItemError(Cause.WORKER_ERROR, f"{self._name} raised {describe(error)}") from error

    def _as_json(self, value: Any) -> Json:
        """The value as it is recorded. Raises ItemError(WORKER_ERROR) for what JSON can't hold."""
        try:
            if isinstance(value, BaseModel):
                value = value.model_dump(mode="json")
            try:
                written = dumps(value)
            except TypeError:
                written = dumps(value := to_jsonable_python(value))
            if b"null" in written and not _finite(to_jsonable_python(value, serialize_unknown=True)):
                raise ValueError("a number that is NaN or infinite")  # it would become null, which means something else
            return loads_outside(written)
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
            text = " ".join(KNOWN.text(str(error)).split())[:200]
            raise ItemError(Cause.WORKER_ERROR, f"{self._name} returned what JSON can't hold: {text}") from error


def _finite(value: Any) -> bool:
    """Whether all numbers in a JSON value are such as JSON has."""
    if isinstance(value, float):
        return isfinite(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_finite, parts))


def _unfit(result: Json, violations: tuple[str, ...]) -> ItemError:
    corrections = Corrections(0)
    corrections.refuse(result, violations)
    return corrections.failure()


def _refusal(text: str) -> UserError:
    return UserError(f"{_NAME}: {text}")


def _takes_assignment(name: str, function: Callable[..., Any]) -> bool:
    """Whether it is called with the assignment besides the row. Raises UserError if it can't be called with either."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in ones have none
        return False
    for count in (2, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 2 and _second_is_meant(signature)
    raise UserError(f"{_NAME}: {name} must take the row, or the row and the assignment, not {signature}")


def _second_is_meant(signature: inspect.Signature) -> bool:
    """Whether a second argument is for the assignment: it must be given, or is called so."""
    second = list(signature.parameters.values())[1:2]
    return bool(second) and (second[0].name == "assignment" or second[0].default is inspect.Parameter.empty)


async def _never_called(row: Mapping[str, Json]) -> Json:
    raise RuntimeError("a replay called the function")
