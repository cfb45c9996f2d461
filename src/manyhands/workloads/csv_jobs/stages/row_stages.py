"""A job's stages made for the columns of its table: their instructions and conditions for a row, what later ones see of their results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.core.text import suggestion
from manyhands.io.locations import Findings, Location, problems_error
from manyhands.workloads.csv_jobs.rows.columns import OUR_COLUMNS
from manyhands.workloads.csv_jobs.rows.export import Leaf, leaves_of
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.prompts import Template, names_in
from manyhands.workloads.csv_jobs.rows.stage_states import RESULT
from manyhands.workloads.csv_jobs.stages.conditions import Condition, LocalText
from manyhands.workloads.csv_jobs.stages.definitions import Definitions

_MAX_LISTED = 20
_WORD = re.compile(r"\w+(\.\w+)*")
Results = Mapping[str, Json]
"""The results of a row's earlier stages by name; that of a skipped stage is None."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What ``{name}`` or ``{name.property}`` stands for that is no column: an earlier result, or a part of it."""

    text: str
    """As it is written, without braces."""
    stage: str
    path: tuple[str, ...]
    """The properties on the way to it."""

    def of(self, results: Results) -> Json:
        """Its value; None if the stage was skipped, or if its result has no such property."""
        return Leaf((self.stage, *self.path), None).of(results)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage, for rows of one table."""

    name: str
    schema: OutputSchema
    value_path: tuple[str, ...]
    """The property of its result that its name stands for; empty: the whole result."""
    when: Condition | None
    columns_used: Mapping[str, int]
    """The columns that its condition names, with their numbers from 0."""
    template: Template
    references: Mapping[str, Reference]
    """The earlier results that its instruction and its condition name, by these names. The template has those of the instruction behind
    the cells, in this order."""
    decimal_comma: bool = False
    """Whether numbers in cells have decimal commas."""

    def applies(self, cells: Sequence[Json], results: Results) -> bool:
        """Whether a row is given to this stage."""

        def lookup(name: str) -> Json:
            reference = self.references.get(name)
            if reference is not None:
                return reference.of(results)
            cell = cells[self.columns_used[name]]
            return LocalText(cell) if self.decimal_comma and isinstance(cell, str) else cell

        return self.when is None or self.when.holds(lookup)

    def instruction(self, cells: Sequence[Json], results: Results | None) -> str:
        """Its instruction for a row. ``results``: None before there are any; their names stay then."""
        values = [f"{{{each.text}}}" if results is None else each.of(results) for each in self.references.values()]
        return self.template.fill((*cells, *values))

    def value(self, result: Json) -> Json:
        """What its name stands for in later stages, and in its column."""
        return Leaf(self.value_path, None).of(result)

    def columns(self, *, flatten: bool) -> list[Leaf]:
        """Its columns, as properties of what is reported of a row: its value, and with ``flatten`` each property of a larger result."""
        path = (self.name, RESULT)
        leaves = leaves_of(self.schema.value or {}) if flatten else ()
        found = [Leaf((*path, *self.value_path), None if self.value_path else "json", self.name)]
        if [leaf.path for leaf in leaves] != [self.value_path]:
            found += [Leaf((*path, *leaf.path), leaf.kind, ".".join((self.name, *leaf.path))) for leaf in leaves]
        return found


def value_path(name: str, schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Where in its result the value of a stage is: the property that is called as the stage, or else the only one, or else ``result``;
    empty, for the whole result, if its schema names none of these."""
    named = _properties(schema) or {}
    if name in named:
        return (name,)
    return tuple(named) if len(named) == 1 else (RESULT,) if RESULT in named else ()


def stage_columns(stages: Sequence[Stage], flatten: bool) -> list[Leaf]:
    """The columns of all stages, in order."""
    return [column for stage in stages for column in stage.columns(flatten=flatten)]


def stages_for(definitions: Definitions, headers: Sequence[str], *, decimal_comma: bool = False) -> tuple[Stage, ...]:
    """The stages for a table with these columns. ``decimal_comma``: of the numbers in it.

    Raises UserError with a line for each problem: a name that is no column and no earlier stage, a property that the schema of an earlier
    stage does not have, a stage that is called as a column.
    """
    return _Making(definitions, tuple(headers), decimal_comma).stages()


class _Making:
    """Makes the stages of one job, and finds out what is wrong with them."""

    def __init__(self, definitions: Definitions, headers: tuple[str, ...], decimal_comma: bool) -> None:
        self._definitions = definitions
        self._decimal_comma = decimal_comma
        self._headers = headers
        self._order = {definition["name"]: index for index, definition in enumerate(definitions)}
        self._findings = Findings()

    def stages(self) -> tuple[Stage, ...]:
        made = [stage for index in range(len(self._definitions)) if (stage := self._stage(index)) is not None]
        if self._findings.problems:
            raise problems_error(self._findings.problems)
        return tuple(made)

    def _stage(self, index: int) -> Stage | None:
        """None if something is wrong with it."""
        before = len(self._findings.problems)
        definition = self._definitions[index]
        name, instruction = definition["name"], definition["instruction"]
        self._check_name(index, name)
        references: dict[str, Reference] = {}
        for used, line in names_in(instruction):
            self._refer(used, references, index, _at_line(self._definitions.at(index, "instruction"), line), line)
        headers = (*self._headers, *references)
        when = Condition.parse(definition["when"]) if "when" in definition else None
        for used in () if when is None else when.names:
            self._refer(used, references, index, self._definitions.at(index, "when"))
        if len(self._findings.problems) > before:
            return None
        return Stage(
            name,
            OutputSchema.of(definition["output_schema"]),
            self._value_path(name),
            when,
            {used: self._headers.index(used) for used in (when.names if when else ()) if used not in references},
            Template.parse(instruction, headers),
            references,
            self._decimal_comma,
        )

    def _check_name(self, index: int, name: str) -> None:
        taken = "the table" if name in self._headers else "every output" if name in OUR_COLUMNS else None
        if taken is not None:
            at = self._definitions.at(index, "name")
            self._findings.problem(at, f"{shown(name)} is a column of {taken} already; choose another name")

    def _refer(self, text: str, found: dict[str, Reference], index: int, at: Location, line: int | None = None) -> None:
        """Add what a name stands for, if that is an earlier result; note a name that stands for nothing. ``line``: that of an instruction
        in which it is, from 1; None for a name in a condition."""
        if text in self._headers or text in found:
            return
        name, *path = text.split(".")
        problem = self._why_unknown(text, name, index) if self._order.get(name, index) >= index else None
        problem = problem or _unknown_property(self._schema(name), path)
        if problem is None:
            found[text] = Reference(text, name, tuple(path) or self._value_path(name))
        else:
            of_it = f" (in line {line} of it)" if (line or 1) > 1 and at.path else ""
            self._findings.problem(at, f"{text if line is None else f'{{{text}}}'} {problem}{of_it}")

    def _schema(self, name: str) -> Mapping[str, Any]:
        return self._definitions[self._order[name]]["output_schema"]

    def _value_path(self, name: str) -> tuple[str, ...]:
        return value_path(name, self._schema(name))

    def _why_unknown(self, text: str, name: str, index: int) -> str:
        later = self._order.get(name)
        own = self._definitions[index]["name"]
        if later == index:
            return "is the stage's own result, which is not there before the stage has run"
        if later is not None:
            needed = {used.split(".")[0] for used in self._names_of(later)}
            circle = f", which itself needs {shown(own)}" if own in needed else f"; move it before {shown(own)}"
            return f"is the result of a later stage{circle}"
        earlier = [definition["name"] for definition in self._definitions[:index]]
        known = [*self._headers, *earlier]
        listed = ", ".join(known[:_MAX_LISTED]) + f" and {len(known) - _MAX_LISTED} more" * (len(known) > _MAX_LISTED)
        doubled = "" if _WORD.fullmatch(text) else "; braces that mean themselves are doubled: {{ and }}"
        return f"names no column and no earlier stage{suggestion(text, known)}; there are: {listed}{doubled}"

    def _names_of(self, index: int) -> Iterator[str]:
        definition = self._definitions[index]
        yield from (name for name, _ in names_in(definition["instruction"]))
        yield from Condition.parse(definition.get("when", "true")).names


def _at_line(location: Location, line: int) -> Location:
    """``location``: of an instruction; if that is all of a file, of a line of it."""
    return location if location.path or location.line is None else Location(location.file, (), {(): line})


def _properties(schema: Any) -> Mapping[str, Any] | None:
    named = schema.get("properties") if isinstance(schema, Mapping) else None
    return named if isinstance(named, Mapping) else None


def _unknown_property(schema: Any, path: Sequence[str]) -> str | None:
    """What to say of a path to a property that the schema does not name, though it names others and does not expressly allow more."""
    for name in path:
        named = _properties(schema)
        if not named or schema.get("additionalProperties") or "patternProperties" in schema:
            return None
        if name not in named:
            return f"names no property of that result{suggestion(name, named)}; its schema has: {', '.join(named)}"
        schema = named[name]
    return None
