"""The formats of files of results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from manyhands.core.jsonio import finite, line
from manyhands.workloads.evals.results.junit import write_junit
from manyhands.workloads.evals.results.page import write_page
from manyhands.workloads.evals.results.records import TestResult

Results = Callable[[], Iterator[TestResult]]
"""Gives the results, from the first one on, each time it is called."""
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))


def write_as(ending: str, handle: BinaryIO, results: Results, summary: Mapping[str, Any]) -> None:
    """Write results in the format of a file's ending."""
    _WRITERS[ending](handle, results, summary)


def write_lines(handle: BinaryIO, results: Results, summary: Mapping[str, Any]) -> None:
    """JSON Lines: one result each."""
    for result in results():
        handle.write(line(result.to_json()).encode() + b"\n")


def write_json(handle: BinaryIO, results: Results, summary: Mapping[str, Any]) -> None:
    """``{"stats": {total, passed, failed, pass_rate, …}, "results": […]}``, where ``failed`` counts only tests that have a score."""
    tests = summary["tests"]
    stats = {"total": tests["in"], **{name: count for name, count in tests.items() if name != "in"}}
    stats |= {"pass_rate": summary["pass_rate"]["value"], "mean_score": summary["mean_score"]["value"]}
    stats |= {"pass_limit": summary["pass_limit"]}
    handle.write(f'{{"stats": {line(stats)},\n"summary": {line(dict(summary))},\n"results": ['.encode())
    separator = "\n"
    for result in results():
        handle.write(f"{separator}{line(result.to_json())}".encode())
        separator = ",\n"
    handle.write(b"\n]}\n")


def write_yaml(handle: BinaryIO, results: Results, summary: Mapping[str, Any]) -> None:
    """YAML documents, each a result. Texts are double-quoted, so that no reader takes them for anything else."""
    for result in results():
        handle.write(b"---\n")
        handle.write("".join(_yaml(result.to_json(), 0)).encode())


def _yaml(value: Any, depth: int) -> Iterator[str]:
    """A mapping or list that is not empty, as block lines."""
    indent = "  " * depth
    entries = value.items() if isinstance(value, dict) else ((None, entry) for entry in value)
    for key, entry in entries:
        head = f"{indent}-" if key is None else f"{indent}{_key(key)}:"
        if isinstance(entry, (dict, list)) and entry:
            yield f"{head}\n"
            yield from _yaml(entry, depth + 1)
        else:
            yield f"{head} {_scalar(entry)}\n"


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS else _scalar(key)


def _scalar(value: Any) -> str:
    """JSON, which is YAML too, but for characters that YAML wants escaped."""
    text = line(value) if isinstance(value, str) else json.dumps(finite(value))
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_WRITERS: dict[str, Callable[[BinaryIO, Results, Mapping[str, Any]], None]] = {
    ".jsonl": write_lines,
    ".json": write_json,
    ".xml": write_junit,
    ".html": write_page,
    ".yaml": write_yaml,
    ".yml": write_yaml,
}
