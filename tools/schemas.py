"""Keeps the JSON Schemas of output files in ``docs/schemas`` equal to the types of the code that writes them.

    .venv/bin/python tools/schemas.py            writes them anew
    .venv/bin/python tools/schemas.py --check    changes nothing; ends with 1 and names those that are out of date

A schema describes the files of this version. Objects are open: later versions may add keys.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from manyhands.export.conversations import Conversation
from manyhands.export.exporting import ExportSummary
from manyhands.runs.ledger import Summary
from manyhands.runs.summaries import ItemSummary, RunStatus
from manyhands.tools.toolsets import KNOWN_TOOLS
from manyhands.workloads.csv_jobs.service.status import StatusContent
from manyhands.workloads.evals.results.result_lines import TestResult
from manyhands.workloads.evals.results.summary import EvalSummary
from manyhands.workloads.imported.results import ImportResult, ImportSummary
from manyhands.workloads.memory.results.files import ResultContent, RunStats
from manyhands.workloads.trajectories.lines.schema import Form, List, Object, schema_of
from manyhands.workloads.trajectories.results.exports import Checkpoint, Failure
from manyhands.workloads.trajectories.results.statistics import Statistics

FOLDER = Path(__file__).resolve().parent.parent / "docs/schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
_SCALARS: dict[str, Schema] = {
    "whole number": {"type": "integer"},
    "number": {"type": "number"},
    "true or false": {"type": "boolean"},
    "text": {"type": "string"},
    "JSON text": {"type": "string", "contentMediaType": "application/json"},
}


def schema_of_type(kind: Any) -> Schema:
    """The schema of a typed dictionary or a data class, with those that it is made of as definitions."""
    definitions: dict[str, Schema] = {}
    schema = _object(kind, definitions)
    return {**schema, "$defs": definitions} if definitions else schema


def _schema(kind: Any, definitions: dict[str, Schema]) -> Schema:
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if is_typeddict(kind) or is_dataclass(kind):
        name = kind.__name__
        if name not in definitions:
            definitions[name] = {}  # for those that refer to themselves
            definitions[name] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (UnionType, Union):
        return _any_of([_schema(part, definitions) for part in parts])
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _schema(parts[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(parts[1], definitions)}
    if kind is Any:
        return {}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [each.value for each in kind]}
    raise TypeError(f"no schema is known for {kind}")


def _any_of(schemas: list[Schema]) -> Schema:
    if all(schema.keys() == {"type"} for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {} if {} in schemas else {"anyOf": schemas}


def _object(kind: Any, definitions: dict[str, Schema]) -> Schema:
    hints, meanings = get_type_hints(kind, include_extras=True), _meanings(kind)
    properties: Schema = {}
    for name, hint in hints.items():
        plain = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        about = {"description": meanings[name]} if name in meanings else {}
        if get_origin(plain) is not ClassVar:
            properties[name] = {**_schema(plain, definitions), **about}
    about = " ".join((inspect.getdoc(kind) or "").split())
    required = [name for name in properties if _is_required(kind, name, hints[name])]
    return {"type": "object", "description": about, "properties": properties, "required": required}


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    if is_dataclass(kind):
        return any(field.name == name and field.default is field.default_factory is MISSING for field in fields(kind))
    if get_origin(hint) in (Required, NotRequired):
        return get_origin(hint) is Required
    return next(each.__total__ for each in (kind, *_bases(kind)) if name in each.__annotations__)


def _meanings(kind: Any) -> dict[str, str]:
    """What is written under the fields of a class, those that it inherits included."""
    meanings: dict[str, str] = {}
    for each in (*_bases(kind), kind):
        body = ast.parse(dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for member, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(member, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                assert isinstance(member.target, ast.Name)
                meanings[member.target.id] = " ".join(str(text.value.value).split())
    return meanings


def _bases(kind: Any) -> Iterator[Any]:
    """The classes that a typed dictionary or a data class derives from, by its source: a typed dictionary itself forgets them."""
    body = ast.parse(dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    known = vars(sys.modules[kind.__module__])
    for base in (known.get(each.id) for each in body.bases if isinstance(each, ast.Name)):
        if is_typeddict(base) or is_dataclass(base):
            yield from _bases(base)
            yield base


def schema_of_form(form: Form) -> Schema:
    """The schema of a declared form of the lines of ``trajectories.jsonl``."""
    if isinstance(form, Object):
        properties = {
            field.name: {**schema_of_form(field.form), **({"description": field.about} if field.about else {})}
            for field in form.fields
        }
        return {"type": "object", "properties": properties, "required": list(form.names)}
    if isinstance(form, List):
        return {"type": "array", "items": schema_of_form(form.of), "minItems": 1}
    return dict(_SCALARS[form])


def trajectory() -> Schema:
    about = "A line of trajectories.jsonl and of the batch files: one trajectory."
    return {"description": about, **schema_of_form(schema_of(KNOWN_TOOLS))}


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "trajectories/trajectory": trajectory,
    "trajectories/failure": lambda: schema_of_type(Failure),
    "trajectories/statistics": lambda: schema_of_type(Statistics),
    "trajectories/checkpoint": lambda: schema_of_type(Checkpoint),
    "summary": lambda: schema_of_type(Summary),
    "run": lambda: schema_of_type(RunStatus),
    "item": lambda: schema_of_type(ItemSummary),
    "jobs/status": lambda: schema_of_type(StatusContent),
    "evals/result": lambda: schema_of_type(TestResult),
    "evals/eval_summary": lambda: schema_of_type(EvalSummary),
    "memory/result": lambda: schema_of_type(ResultContent),
    "memory/runstats": lambda: schema_of_type(RunStats),
    "imports/result": lambda: schema_of_type(ImportResult),
    "imports/summary": lambda: schema_of_type(ImportSummary),
    "exports/conversation": lambda: schema_of_type(Conversation),
    "exports/summary": lambda: schema_of_type(ExportSummary),
}
"""The schemas by their names: ``docs/schemas/NAME.schema.json``."""


def texts() -> dict[Path, str]:
    """What each file is to hold."""
    found: dict[Path, str] = {}
    for name, made in SCHEMAS.items():
        content = {"$schema": DIALECT, "title": name, **made()}
        found[FOLDER / f"{name}.schema.json"] = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return found


def main() -> int:
    wanted = texts()
    changed = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    changed += [path for path in FOLDER.rglob("*.json") if path not in wanted]
    for path in changed:
        print(path.relative_to(FOLDER.parent.parent))
        if "--check" in sys.argv:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if path in wanted:
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
