"""The prompt of a worker: the instruction, with the row's cells filled in, and how to report.

``Job ID:`` and ``Item ID:`` stand on lines of their own, where programs find them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, without_surrogates
from manyhands.io.tables.base import known_columns, shown
from manyhands.io.tables.csv import cell_text
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema

_MARKS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """An instruction, read once: texts and, between them, columns whose cells are put in.

    ``{column}`` stands for the cell of the column of exactly that name, which may hold anything but braces. ``{{`` and
    ``}}`` are braces that mean themselves, and so is a single brace without its counterpart. All is read once, from the left:
    ``{{{x}}}`` is a cell in braces, and what is in a cell is never looked at.
    """

    texts: tuple[str, ...]
    """One more than ``columns_used``."""
    columns_used: tuple[int, ...]
    """Numbers of columns, from 0."""

    @classmethod
    def parse(cls, text: str, headers: Sequence[str]) -> Self:
        """Raises UserError for a blank instruction, and for a name in braces that no column has, with its line in the instruction."""
        if not text.strip():
            raise UserError("instruction must be non-empty")
        columns = {name: column for column, name in enumerate(headers)}
        texts, columns_used, end = [""], [], 0
        for mark in _MARKS.finditer(text):
            texts[-1] += text[end : mark.start()]
            end = mark.end()
            name = mark[1]
            if name is None:
                texts[-1] += mark[0][0]
            elif name in columns:
                columns_used.append(columns[name])
                texts.append("")
            else:
                raise _unknown(name, text.count("\n", 0, mark.start()) + 1, headers)
        texts[-1] += text[end:]
        return cls(tuple(texts), tuple(columns_used))

    def fill(self, cells: Sequence[Json]) -> str:
        """The instruction for a row: text as it is, null as nothing, other values as compact JSON."""
        parts = [self.texts[0]]
        for column, text in zip(self.columns_used, self.texts[1:], strict=True):
            parts += cell_text(cells[column]), text
        return "".join(parts)


def names_in(instruction: str) -> Iterator[tuple[str, int]]:
    """The names in braces in an instruction, as ``Template`` reads them, each with its line, from 1."""
    for mark in _MARKS.finditer(instruction):
        if mark[1] is not None:
            yield mark[1], instruction.count("\n", 0, mark.start()) + 1


def _unknown(name: str, line: int, headers: Sequence[str]) -> UserError:
    known = known_columns(name, headers)
    doubled = "braces that mean themselves are doubled: {{ and }}"
    return UserError(f"instruction, line {line}: {{{shown(name) if name else ''}}} names no column{known}; {doubled}")


REPORT_TOOL = "report_agent_job_result"
"""The tool by which a worker hands in its result: the built-in agent's own, and one of our MCP server's."""

_PROMPT = """\
You are given one item of a batch job whose items are worked on independently of each other.
Job ID: {job_id}
Item ID: {item_id}

What to do with this item:
{instruction}

{cells}The JSON Schema that the result must fit:
{schema}

{ending}
"""

_CELLS = """\
{heading}, as JSON:
{row}

"""
_WHOLE_ROW = "The item's row of the table"
_OTHER_CELLS = "More of the item's row of the table"

_REPORT = """\
When you are done, call {tool} exactly once, with job_id {job}, item_id {item}, and your result as a JSON object in result.
Pass stop as true only if the whole job should end now, before the rest of its items.
If the call is refused, mend what it names and call again. Once it is accepted, stop: do nothing more."""

_REPORT_OR_PRINT = """\
When you are done, hand in your result, a JSON object, exactly once:
- If you have a tool called {tool} (perhaps with a prefix before its name), call it with job_id {job}, item_id {item}, and the object in \
result. Pass stop as true only if the whole job should end now, before the rest of its items. If the call is refused, mend what it names \
and call again.
- If you have no such tool, print the object as JSON, as the very last thing that you print.
Once that is done, stop: do nothing more."""

_CORRECTION = """\

You did this before, and the result that you printed was refused:
{violations}
Do it again, and hand in a result that fits the schema."""


def worker_prompt(
    job_id: str,
    item_id: str,
    instruction: str,
    row: Mapping[str, Json],
    schema: OutputSchema,
    *,
    printing: bool = False,
    whole: bool = True,
) -> str:
    """The prompt. ``printing``: for a worker that may have no report tool, and then prints its result. ``whole``: whether ``row`` has all
    cells of the row; if it has none, nothing is said of it."""
    ending = (_REPORT_OR_PRINT if printing else _REPORT).format(
        tool=REPORT_TOOL, job=quoted(job_id), item=quoted(item_id)
    )
    heading = _WHOLE_ROW if whole else _OTHER_CELLS
    text = _PROMPT.format(
        job_id=shown_id(job_id),
        item_id=shown_id(item_id),
        instruction=instruction,
        cells=_CELLS.format(heading=heading, row=json.dumps(dict(row), indent=2, ensure_ascii=False)) if row else "",
        schema=schema.text,
        ending=ending,
    )
    return without_surrogates(text)


def corrected(prompt: str, violations: tuple[str, ...]) -> str:
    """The prompt for another try, after a printed result that does not fit."""
    return prompt + _CORRECTION.format(violations="\n".join(f"- {message}" for message in violations)) + "\n"


def shown_id(identity: str) -> str:
    """An id on one line: as it is, or as a JSON string if it holds what a line can't show."""
    return identity if identity.isprintable() and identity == identity.strip() else quoted(identity)


def same_id(given: str, wanted: str) -> bool:
    """Whether a worker means this id: as it is, as the prompt showed it, or with other white space."""
    return given == wanted or given in (shown_id(wanted), quoted(wanted)) or given.split() == wanted.split()


def quoted(identity: str) -> str:
    """An id as a JSON string on one line."""
    return json.dumps(identity, ensure_ascii=not identity.isprintable())
