"""Tests in a table of comma-separated values, as promptfoo and AgentV have them: a row for each test.

====================================  ==================================================================
column                                meaning
====================================  ==================================================================
``id``                                the test's id (without one ``row-N``)
``input``                             its input; ``__prefix`` and ``__suffix`` stand before and behind it
``__expected``, ``__expected2``, …    a grader each: ``KIND:VALUE``, ``KIND(NUMBER)``, ``not-KIND:VALUE``, or a text for ``equals``
``__metric``                          the graders' name
``__threshold``                       the score with which the test passes
``__config:__expectedN:threshold``    the ``min_score`` of a grader
``__description``                     criteria
``__metadata:KEY``                    metadata; of ``KEY[]`` a list, separated by commas
any other, ``vars.A.B``               a value of ``vars``
====================================  ==================================================================

``grade:`` and ``llm-rubric:`` ask a judge; ``python:CODE`` and ``javascript:CODE`` run code; ``file://PATH.py`` is a program that
grades. The values of ``contains-any`` and its like are separated by commas; the number of ``latency`` is milliseconds, of ``cost`` US
dollars, of others a ``min_score``. Empty cells of these columns stand for nothing.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.locations import Location
from manyhands.io.search_paths import text_of
from manyhands.workloads.evals.evalfile.agentv5.inline_code import inline_code
from manyhands.workloads.evals.evalfile.building import RawTest

_EXPECTED = "__expected"
_METADATA = "__metadata:"
_CONFIG = "__config:"
_VARS = "vars."
_GONE = ("__provider_output", "__providerOutput")
_ASSERTION = re.compile(r"((?:not-)?[a-z][a-z0-9-]*)(?:\((\d+(?:\.\d+)?)\))?(?::(.*))?", re.DOTALL)
_SEVERAL = ("contains-any", "contains-all", "icontains-any", "icontains-all")
_KINDS = (
    *("contains", "icontains", "starts-with", "ends-with", "regex", "is-json", "equals", "latency", "cost"),
    *_SEVERAL,
)
_LIMITS = {"latency": "threshold", "cost": "budget"}
_CODE = {"javascript:": "javascript", "fn:": "javascript", "eval:": "javascript", "python:": "python"}
_JUDGED = ("grade:", "llm-rubric:")
_COMMA = re.compile(r"(?<!\\),")


def csv_tests(path: Path, name: str) -> Iterator[RawTest]:
    """The tests of a file, in order. ``name``: what messages call it. Raises UserError for what is no such file."""
    top = Location(name)
    reader = csv.reader(io.StringIO(text_of(path, top), newline=""), strict=True)
    head: list[str] | None = None
    number, before = 0, 0
    try:
        for cells in reader:
            line, before = before + 1, reader.line_num
            if head is None:
                head = _head([cell.strip() for cell in cells], Location(name, (), {(): line}))
            elif any(cells):
                number += 1
                yield _test(dict(zip(head, cells, strict=False)), number, Location(name, (), {(): line}))
    except csv.Error as error:
        raise Location(name, (), {(): before + 1}).error(f"not a table of comma-separated values: {error}") from None


def _head(names: list[str], location: Location) -> list[str]:
    known = set[str]()
    for column in names:
        if column and column in known:
            raise location.error(f"the column {shown(column)} is there twice")
        known.add(column)
        if column in _GONE:
            raise location.error(f"the column {column} is not supported: --from_output has answers that are given")
    return names


def _test(row: Mapping[str, str], number: int, location: Location) -> RawTest:
    try:
        return RawTest(_value(row, number, location), location)
    except UserError as error:
        return RawTest({"id": row.get("id") or f"row-{number}"}, location, problem=str(error))


def _value(row: Mapping[str, str], number: int, location: Location) -> dict[str, Json]:
    found: dict[str, Json] = {"id": row.get("id") or f"row-{number}"}
    if "input" in row:
        found["input"] = row.get("__prefix", "") + row["input"] + row.get("__suffix", "")
    if row.get("__description"):
        found["criteria"] = row["__description"]
    if row.get("__threshold", "").strip():
        found["threshold"] = _number(row["__threshold"], location.at("__threshold"))
    graders = _graders(row, location)
    further: dict[str, Any] = {"assert": graders, "vars": _variables(row), "metadata": _metadata(row)}
    return {**found, **{key: value for key, value in further.items() if value}}


def _graders(row: Mapping[str, str], location: Location) -> list[dict[str, Any]]:
    columns = [column for column in row if column.startswith(_EXPECTED) and row[column].strip()]
    found = [_grader(row[column].strip(), location.at(column)) for column in columns]
    name = row.get("__metric")
    for index, entry in enumerate(found):
        if name:
            entry["name"] = name if len(found) == 1 else f"{name}-{index + 1}"
    for column, value in row.items():
        if column.startswith(_CONFIG) and value.strip():
            grader, _, key = column.removeprefix(_CONFIG).partition(":")
            if key != "threshold" or grader not in columns:
                raise location.at(column).error("must be __config:__expectedN:threshold of a column that is there")
            found[columns.index(grader)]["min_score"] = _number(value, location.at(column))
    return found


def _grader(text: str, location: Location) -> dict[str, Any]:
    judged = next((prefix for prefix in _JUDGED if text.startswith(prefix)), None)
    if judged is not None:
        return {"type": "llm_rubric", "value": [text.removeprefix(judged).strip()]}
    code = next((prefix for prefix in _CODE if text.startswith(prefix)), None)
    if code is not None:
        return {"name": _CODE[code], **inline_code(_CODE[code], text.removeprefix(code).strip())}
    if text.startswith("file://"):
        named = text.removeprefix("file://").strip()
        if not named.endswith(".py"):
            raise location.error(f"{shown(text)}: only a program in Python may be named; write others below assert")
        return {"type": "code_grader", "script": ["python3", named]}
    meant = _ASSERTION.fullmatch(text)
    kind = meant[1].removeprefix("not-") if meant is not None else ""
    if meant is None or kind not in _KINDS:
        if meant is not None and (meant[2] or meant[3] is not None):
            raise location.error(f"{shown(kind)} is no kind of grader that a cell may name; known: {', '.join(_KINDS)}")
        return {"type": "equals", "value": text}
    return _of_kind(kind, meant, location)


def _of_kind(kind: str, meant: re.Match[str], location: Location) -> dict[str, Any]:
    found: dict[str, Any] = {"type": kind}
    if meant[1] != kind:
        found["negate"] = True
    value = None if meant[3] is None else meant[3].strip()
    if kind in _SEVERAL:
        found["value"] = [part.strip() for part in (value or "").split(",")]
    elif value is not None and kind not in (*_LIMITS, "is-json"):
        found["value"] = value
    if kind in _LIMITS and meant[2] is None:
        raise location.error(f"{kind} needs a number, as {kind}(1000)")
    if meant[2] is not None:
        found[_LIMITS.get(kind, "min_score")] = float(meant[2])
    return found


def _variables(row: Mapping[str, str]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for column, value in row.items():
        if not column or column in ("id", "input") or column.startswith("__"):
            continue
        steps = (
            [step.strip() for step in column.removeprefix(_VARS).split(".")] if column.startswith(_VARS) else [column]
        )
        inner: dict[str, Any] = found
        for step in steps[:-1]:
            further = inner.get(step)
            inner[step] = further if isinstance(further, dict) else {}
            inner = inner[step]
        inner[steps[-1]] = value
    return found


def _metadata(row: Mapping[str, str]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for column, value in row.items():
        key = column.removeprefix(_METADATA)
        if not column.startswith(_METADATA) or not value.strip():
            continue
        if key.endswith("[]"):
            parts = (part.strip().replace("\\,", ",") for part in _COMMA.split(value))
            found[key.removesuffix("[]")] = [part for part in parts if part]
        else:
            found[key] = value
    return found


def _number(text: str, location: Location) -> float:
    try:
        return float(text)
    except ValueError:
        raise location.error(f"must be a number, not {shown(text)}") from None
