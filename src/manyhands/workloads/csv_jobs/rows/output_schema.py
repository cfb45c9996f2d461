"""What a result must look like: a JSON Schema that is itself checked, and then enforced.

Drafts: 2020-12, or the one that ``$schema`` names. Nothing is ever fetched: references lead within the schema, or to the
published meta-schemas, which come with the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.core.text import beginning_and_end
from manyhands.processes.killable import killable
from manyhands.tools.schema import may_take_long

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

NAME = "output_schema"
"""What messages call the schema."""
MAX_MESSAGE_CHARS = 300
"""Characters of a message; a validator's own repeats the value, however long that is."""
MAX_VIOLATIONS = 10
MAX_CHECK_SECONDS = 5.0
"""What the check of one result may take."""
NOT_AN_OBJECT = "result must be a JSON object"
_KEPT = 32
_TOO_DEEP = f"{NAME}: nested too deeply, or refers to itself without end"


class OutputSchema:
    """A schema ready to check results. Make it with ``of``."""

    __slots__ = ("_validator", "encoded", "text", "value")

    def __init__(self, value: dict[str, Any] | None, validator: Validator | None) -> None:
        self.value = value
        self.encoded = None if value is None else dumps(value)
        self.text = json.dumps(value or {}, indent=2, ensure_ascii=False)
        """The schema as indented JSON; ``{}`` where there is none."""
        self._validator = validator

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> OutputSchema:
        """The checker for a schema; the same object for the same schema. None: any object will do.

        Raises UserError naming the location in the schema that is wrong.
        """
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{NAME}: must be a JSON object")
        try:
            text = None if value is None else dumps(dict(value))
        except RecursionError:
            raise UserError(_TOO_DEEP) from None
        return _compiled(text)

    def violations(self, result: Json) -> tuple[str, ...]:
        """What does not fit, as at most ten messages, each with its location (``$.score: …``); empty if the result fits."""
        if not isinstance(result, dict):
            return (NOT_AN_OBJECT,)
        if self._validator is None:
            return ()
        try:
            return tuple(islice(_messages(self._validator.iter_errors(result)), MAX_VIOLATIONS))
        except RecursionError:
            return ("$: is nested too deeply to be checked",)

    async def check(self, result: Json) -> tuple[str, ...]:
        """The same, in bounded time: a pattern can take without end, and what is not done in time counts as not fitting."""
        if self.encoded is None or not may_take_long(self.encoded, result):
            return self.violations(result)
        try:
            return await killable(_violations, self.encoded, result, seconds=MAX_CHECK_SECONDS)
        except TimeoutError:
            return (f"$: could not be checked within {MAX_CHECK_SECONDS:g} s; make it smaller or simpler",)

    @property
    def accepts_anything(self) -> bool:
        """Whether an object without any content fits, so that fitting says little."""
        return not self.violations({})


@lru_cache(maxsize=_KEPT)
def _compiled(text: bytes | None) -> OutputSchema:
    if text is None:
        return OutputSchema(None, None)
    from manyhands.workloads.csv_jobs.rows.schema_validator import checked  # takes long, and most jobs have no schema

    try:
        schema = json.loads(text)
        validator = checked(schema)
        list(islice(validator.iter_errors({}), 1))
    except RecursionError:
        raise UserError(_TOO_DEEP) from None
    return OutputSchema(schema, validator)


def _violations(schema: bytes, result: Json) -> tuple[str, ...]:
    return _compiled(schema).violations(result)


def _messages(errors: Iterable[ValidationError]) -> Iterator[str]:
    return (beginning_and_end(f"{error.json_path}: {error.message}", MAX_MESSAGE_CHARS) for error in errors)
