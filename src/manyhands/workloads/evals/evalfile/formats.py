"""The versions of AgentV's format, and which of them an eval file is written in.

A file is in the words of version 5 if it has one of the keys that only these have, or if ``--format`` says so. Words of all earlier
versions are understood together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from manyhands.io.keys import snake
from manyhands.io.locations import Findings, Location, Source
from manyhands.workloads.evals.evalfile.agentv5.providers import is_provider

AUTO, SECOND, FOURTH, FIFTH = "auto", "agentv-2", "agentv-4", "agentv-5"
FORMATS = (AUTO, SECOND, FOURTH, FIFTH)
"""The values of ``--format``."""
ONLY_FIFTH = (
    *("prompts", "scenarios", "default_test", "evaluate_options", "environment", "extensions"),
    *("derived_metrics", "nunjucks_filters"),
)
"""Keys of whole files that only version 5 has."""
_ONLY_EARLIER = {
    **dict.fromkeys(("eval_cases", "evalcases", "cases"), "tests"),
    **dict.fromkeys(("target", "targets"), "providers"),
    **dict.fromkeys(("execution",), "evaluate_options"),
    **dict.fromkeys(("input", "input_messages"), "prompts"),
    **dict.fromkeys(("evaluators", "assertions", "evaluator"), "assert"),
    "expected_output": "default_test.vars.expected_output",
    "preprocessors": "a target that answers with text",
    "vars": "default_test.vars",
}
"""Keys of whole files that version 5 has given up, and what it has instead."""


def format_of(source: Source, wanted: str, findings: Findings) -> str:
    """The version that a file is read as: ``agentv-5``, or ``agentv-4`` for all earlier ones. ``wanted``: one of ``FORMATS``.

    Raises UserError if the file has keys that contradict what is wanted. A file that mixes words of versions is a notice.
    """
    value = source.value if isinstance(source.value, Mapping) else {}
    later, earlier = list(_later(value, source.location)), list(_earlier(value, source.location))
    if wanted == FIFTH and earlier:
        key, at = earlier[0]
        raise at.error(
            f"is a word of earlier versions, and --format {FIFTH} is given; use {_ONLY_EARLIER[key]}, or leave the option out"
        )
    if wanted in (SECOND, FOURTH) and later:
        raise later[0].error(f"is a word of {FIFTH}, and --format {wanted} is given; leave one of them out")
    if not later and wanted != FIFTH:
        return FOURTH
    if later and earlier:
        named = ", ".join(f"{at.name} (line {at.line})" for _, at in earlier)
        findings.notice(
            f"{source.location.file}: is read as {FIFTH}, as it has {later[0].name} (line {later[0].line}); "
            f"words of earlier versions keep their meaning: {named}"
        )
    return FIFTH


def _later(value: Mapping[str, Any], location: Location) -> Iterator[Location]:
    """Where words stand that only version 5 has."""
    for word, entry in value.items():
        key, at = snake(word), location.at(word)
        if entry is None:
            continue
        if key in ONLY_FIFTH or _is_later_value(key, entry):
            yield at
        elif key == "assert":
            yield from _sets(entry, at)
        elif key == "tests" and isinstance(entry, list):
            for index, test in enumerate(entry):
                if isinstance(test, Mapping):
                    yield from _sets(test.get("assert"), at.at(index, "assert"))


def _is_later_value(key: str, value: Any) -> bool:
    """Whether the value of a key that all versions have is one that only version 5 has."""
    if key == "providers":
        return _are_providers(value)
    if key == "defaults":
        return isinstance(value, Mapping) and bool({"provider", "grader"} & set(value))
    return key == "tags" and isinstance(value, Mapping)


def _are_providers(value: Any) -> bool:
    entries = value if isinstance(value, list) else [value]
    return bool(entries) and all(is_provider(entry) for entry in entries) and not _is_by_name(value)


def _is_by_name(value: Any) -> bool:
    """Whether a mapping is one of targets by their names."""
    return isinstance(value, Mapping) and all(
        isinstance(each, Mapping) and "provider" in each for each in value.values()
    )


def _sets(value: Any, location: Location) -> Iterator[Location]:
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        if isinstance(kind, str) and snake(kind) == "assert_set":
            yield location.at(index, "type")


def _earlier(value: Mapping[str, Any], location: Location) -> Iterator[tuple[str, Location]]:
    """The keys that version 5 has given up, and where they stand."""
    for word, entry in value.items():
        if snake(word) in _ONLY_EARLIER and entry is not None:
            yield snake(word), location.at(word)
