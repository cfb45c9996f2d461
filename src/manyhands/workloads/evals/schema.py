"""JSON Schema (draft 2020-12) of eval files and targets files, for editors. It is made of the classes that check the files, so it knows
all their keys, and their older and other names too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from manyhands.graders.config import grader_types
from manyhands.graders.registry import load_kind
from manyhands.io.keys import ASIDE, Entry
from manyhands.io.locations import Location
from manyhands.workloads.evals.evalfile.formats import ONLY_FIFTH
from manyhands.workloads.evals.evalfile.keys import (
    REFERENCE,
    Block,
    EvalBlock,
    RepoBlock,
    TargetRefBlock,
    TestBlock,
    TurnBlock,
    WorkspaceBlock,
)
from manyhands.workloads.evals.evalfile.messages import ROLES
from manyhands.workloads.evals.targets.kinds.registry import ALIASES, KINDS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
_VARIABLE = {"type": "string", "pattern": r"\$\{\{"}
_OURS = ("group", "identity", "recorded", "typed", "secret", "value", "bare")
"""What settings classes keep beside a field, which is no schema."""
_ANYTHING: Schema = {"type": ["string", "array", "object"]}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": list(ROLES)},
        "content": _ANYTHING,
        "tool_calls": {"type": "array", "items": {"type": "object"}},
    },
}


_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_MAPPING = {"type": "object"}
_LIST = {"type": "array"}
_WORDS = {"type": ["string", "object"]}
_FIFTH: Schema = {
    "name": {"type": "string"},
    "prompts": {"type": ["string", "object", "array"], "minItems": 1},
    "providers": {"type": ["string", "object", "array"], "minItems": 1},
    "tests": {
        "type": ["string", "array"],
        "items": {
            **_WORDS,
            "properties": {
                "vars": _MAPPING,
                "assert": {**_LIST, "items": _WORDS},
                "options": _MAPPING,
                "metadata": _MAPPING,
                "threshold": _SHARE,
            },
        },
    },
    "scenarios": {**_LIST, "items": _WORDS},
    "default_test": {**_WORDS, "properties": {"vars": _MAPPING, "assert": _LIST, "threshold": _SHARE}},
    "assert": {**_LIST, "items": _WORDS},
    "evaluate_options": {
        **_MAPPING,
        "properties": {"max_concurrency": {"type": "integer", "minimum": 1}, "budget_usd": {"exclusiveMinimum": 0}},
    },
    "environment": {**_WORDS, "required": ["type", "workdir"]},
    "extensions": _LIST,
    "threshold": _SHARE,
    "tags": {"type": ["string", "array", "object"]},
}
"""Keys of files in AgentV 5's words."""


def eval_schema() -> Schema:
    """Of eval files."""
    definitions: Schema = {}
    top = _block(EvalBlock, definitions)
    test = _if({"type": "object"}, _define(TestBlock, definitions))
    for block in (TurnBlock, RepoBlock):
        _define(block, definitions)
    tests = {"type": ["string", "array"], "items": {"type": ["string", "object"], **test}}
    for keys in (top["properties"], top["patternProperties"]):
        keys.update({word: {**keys[word], **tests} for word in keys if EvalBlock.key_of(_plain(word)) == "tests"})
    definitions |= {
        "Message": _MESSAGE,
        "Grader": _grader(definitions),
        "Targets": _targets(definitions),
        "TargetRef": _or_text(_define(TargetRefBlock, definitions)),
        "Workspace": _or_text(_define(WorkspaceBlock, definitions)),
    }
    later = {"anyOf": [{"required": [key]} for key in ONLY_FIFTH]}
    of_fifth = {"type": "object", "properties": _FIFTH, "anyOf": [{"required": ["tests"]}, {"required": ["scenarios"]}]}
    return {"$schema": DRAFT, "title": "Eval file", "if": later, "then": of_fifth, "else": top, "$defs": definitions}


def targets_schema() -> Schema:
    """Of targets files."""
    definitions: Schema = {}
    targets = _targets(definitions)
    return {
        "$schema": DRAFT,
        "title": "Targets file",
        "type": "object",
        "properties": {"$schema": {"type": "string"}, "targets": targets, "providers": targets},
        "patternProperties": {f"^{ASIDE}": {}},
        "additionalProperties": False,
        "$defs": definitions,
    }


# --- Parts


def _targets(definitions: Schema) -> Schema:
    definitions["Target"] = {
        "type": "object",
        "anyOf": [{"required": ["provider"]}, {"required": ["use_target"]}],
        "properties": {"provider": {"type": "string"}, "use_target": {"type": "string"}},
        "allOf": [_if(_provider(kind), _define(KINDS[kind].block(), definitions, variables=True)) for kind in KINDS],
    }
    for block in (block for kind in KINDS.values() for block in kind.block().mappings.values()):
        _define(block, definitions, variables=True)
    target = {"$ref": "#/$defs/Target"}
    return {"type": ["array", "object"], "items": target, "additionalProperties": target}


def _provider(kind: str) -> Schema:
    names = [kind, *(alias for alias, name in ALIASES.items() if name == kind)]
    words = "|".join(re.escape(name).replace(r"\-", "-").replace("-", "[-_]") for name in names)
    insensitive = "".join(f"[{letter}{letter.upper()}]" if letter.isalpha() else letter for letter in words)
    return {"type": "object", "required": ["provider"], "properties": {"provider": {"pattern": f"^({insensitive})$"}}}


def _grader(definitions: Schema) -> Schema:
    kinds = []
    for name, schema in grader_types().items():
        entry = load_kind(name, Location("")).entry
        inner = schema.pop("$defs", {})
        classes = {} if entry is None else {each.__name__: each for each in _within(entry)}
        for each, found in inner.items():
            if each in classes:
                _respell(found, classes[each])
        definitions.update({each: _tidy(found) for each, found in inner.items()})
        if entry is not None:
            _respell(schema, entry)
        definitions[f"Grader-{name}"] = _tidy(schema)
        kinds.append(
            _if(
                {"type": "object", "required": ["type"], "properties": {"type": schema["properties"]["type"]}},
                f"#/$defs/Grader-{name}",
            )
        )
    named = {"type": {"type": "string"}, "include": {"type": "string"}}
    return {"type": ["string", "object"], "properties": named, "allOf": kinds}


def _plain(pattern: str) -> str:
    """One of the words of a pattern that ``_respell`` made, or the word itself."""
    return pattern.strip("^()$").split("|")[0]


def _if(condition: Schema, reference: str) -> Schema:
    return {"if": condition, "then": {"$ref": reference}}


def _or_text(reference: str) -> Schema:
    """A mapping of a class, or a text instead."""
    return {"type": ["string", "object"], **_if({"type": "object"}, reference)}


def _define(block: type[Entry], definitions: Schema, *, variables: bool = False) -> str:
    """The reference to a class, which is put into the definitions."""
    if block.__name__ not in definitions:
        definitions[block.__name__] = _block(block, definitions, variables=variables)
    return f"#/$defs/{block.__name__}"


def _block(block: type[Entry], definitions: Schema, *, variables: bool = False) -> Schema:
    schema = block.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    inner = schema.pop("$defs", {})
    classes = {each.__name__: each for each in _within(block)}
    for name, found in inner.items():
        if name in classes:
            _respell(found, classes[name])
        definitions.setdefault(name, _tidy(found))
    schema["properties"] |= {word: {} for word in sorted(block.idle)}
    if variables:
        schema["properties"] = {key: {"anyOf": [found, _VARIABLE]} for key, found in schema["properties"].items()}
    _respell(schema, block)
    tidy: Schema = _tidy(schema)
    return tidy


def _within(block: type[Entry]) -> Iterable[type[Entry]]:
    for inner in block.entries.values():
        yield inner
        yield from _within(inner)


def _respell(schema: Schema, block: type[Entry]) -> None:
    """Let the keys of a class be written in all ways that are understood."""
    properties: Schema = schema["properties"]
    patterns: Schema = schema.setdefault("patternProperties", {f"^{ASIDE}": {}} if issubclass(block, Block) else {})
    for word, key in block.spellings.items():
        if key in properties:
            properties[word] = {**properties[key], **({"deprecated": True} if word in block.obsolete else {})}
    for word in [word for word in properties if "_" in word.strip("_")]:
        head, *tail = word.split("_")
        camel = head + "".join(part.capitalize() for part in tail)
        patterns[f"^({camel}|{word.replace('_', '-')})$"] = properties[word]
    spelled = set(block.spellings.values()) | {key for key in properties if "_" in key}
    schema["required"] = [key for key in schema.get("required", ()) if key not in spelled]


def _tidy(value: Any) -> Any:
    """A schema without the titles that pydantic makes up and without what is no schema, and with references in place."""
    if isinstance(value, Mapping):
        made_up = {"title"} if isinstance(value.get("title"), str) else set()
        kept = {key: entry for key, entry in value.items() if key not in made_up and not _is_ours(key, value)}
        named = kept.pop(REFERENCE, None)
        match kept.get("anyOf"):
            case [
                {"$ref": str(reference)},
                {"type": "null"},
            ]:  # so that what is wrong within is reported, and not that neither fits
                kept = {key: entry for key, entry in kept.items() if key != "anyOf"}
                kept |= {"if": {"type": "null"}, "else": {"$ref": reference}}
        return {**({"$ref": f"#/$defs/{named}"} if named else {}), **{key: _tidy(entry) for key, entry in kept.items()}}
    return [_tidy(entry) for entry in value] if isinstance(value, list) else value


def _is_ours(key: str, schema: Mapping[str, Any]) -> bool:
    return key in _OURS and "group" in schema and "identity" in schema
