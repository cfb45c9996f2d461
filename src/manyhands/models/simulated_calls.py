"""The tool calls that the simulated model thinks of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from manyhands.core.jsonio import Json, loads_outside
from manyhands.models.draws import Draws
from manyhands.models.schema_examples import example

Files = dict[str, str]
"""Files written earlier in the conversation with ``write_file``: path to content, in order of writing."""
Maker = Callable[[Draws, Sequence[str], Files], dict[str, Any] | None]
"""Makes arguments that make sense, or None if the tool does not help at this point."""

NEVER = ("process", "clarify")
"""Tools that are no use to a program that has started no process and knows no person."""
_PLAIN = re.compile(r"[\w./]+")
"""Paths that mean themselves in a shell."""
_EXTENSIONS = ("txt", "md", "csv")


def written_files(messages: Sequence[Mapping[str, Any]]) -> Files:
    """What the conversation's ``write_file`` calls have written so far."""
    files: Files = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            if function.get("name") == "write_file":
                _note(files, function.get("arguments"))
    return files


def _note(files: Files, text: Json) -> None:
    try:
        arguments = loads_outside(text)
    except (TypeError, ValueError):
        return
    if isinstance(arguments, dict) and isinstance(arguments.get("path"), str):
        files[arguments["path"]] = str(arguments.get("content", ""))


def arguments_for(tool: Mapping[str, Any], draws: Draws, words: Sequence[str], files: Files) -> dict[str, Any] | None:
    """Arguments for a tool object of chat completions: sensible ones for the tools that every agent has, else any that fit
    its schema. None if the tool does not help now."""
    function = tool.get("function") or {}
    schema = function.get("parameters")
    schema = schema if isinstance(schema, Mapping) else {"type": "object"}
    maker = _MAKERS.get(str(function.get("name")))
    if maker is not None:
        made = maker(draws, words, files)
        if made is None:
            return None
        if fits_roughly(made, schema):
            return made
    value = example({"type": "object", **schema}, draws, words)
    return value if isinstance(value, dict) else {}


def fits_roughly(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether the schema knows all these arguments and requires no others: another tool may go by the same name."""
    properties = schema.get("properties")
    return (
        isinstance(properties, Mapping)
        and all(name in properties for name in arguments)
        and all(name in arguments for name in schema.get("required") or ())
    )


def _terminal(draws: Draws, words: Sequence[str], files: Files) -> dict[str, Any]:
    number = 3 + draws.below(40)
    text = " ".join(words)
    name = f"{words[0]}_{draws.below(1000)}.list"
    commands = (
        f"seq 1 {number} | awk '{{ total += $1 }} END {{ print total }}'",
        f"printf '%s\\n' {text} | sort | uniq -c | awk '{{ print $2, $1 }}'",
        f"printf '%s\\n' {text} > {name} && wc -l < {name}",
        f"echo {text} | tr a-z A-Z",
        f"echo $(( {number} * {number + 7} ))",
        f"seq 1 {number} > {name} && sort -rn {name} | head -n 3",
        f"echo {text} | wc -w",
        f"printf '%s\\n' {text} | awk '{{ print length($0), $0 }}' | sort -rn | head -n 2",
    )
    newest = next((path for path in reversed(files) if _PLAIN.fullmatch(path)), None)
    if newest is not None and draws.chance(40):
        return {"command": f"wc -c < {newest}"}
    return {"command": draws.pick(commands)}


def _write_file(draws: Draws, words: Sequence[str], files: Files) -> dict[str, Any]:
    path = f"{draws.pick(words)}_{draws.below(1000)}.{draws.pick(_EXTENSIONS)}"
    lines = [f"{number}. {draws.pick(words)} {draws.below(100)}" for number in range(1, 3 + draws.below(4))]
    return {"path": path, "content": f"Notes on {' '.join(words)}\n" + "\n".join(lines) + "\n"}


def _read_file(draws: Draws, words: Sequence[str], files: Files) -> dict[str, Any] | None:
    return {"path": draws.pick(list(files))} if files else None


def _search_files(draws: Draws, words: Sequence[str], files: Files) -> dict[str, Any] | None:
    return {"pattern": draws.pick(words), "path": draws.pick(list(files))} if files else None


def _patch(draws: Draws, words: Sequence[str], files: Files) -> dict[str, Any] | None:
    for path, content in files.items():
        lines = content.splitlines()
        # A line that stands once: several tools refuse to replace what is ambiguous.
        line = next((line for line in lines[1:] if content.count(line) == 1), None)
        if line is not None:
            return {"mode": "replace", "path": path, "old_string": line, "new_string": f"{line} (checked)"}
    return None


def _execute_code(draws: Draws, words: Sequence[str], files: Files) -> dict[str, Any]:
    numbers = [draws.below(100) for _ in range(4)]
    codes = (
        f"numbers = {numbers}\nprint(sum(numbers), max(numbers))",
        f"words = {list(words)!r}\nprint(sorted(words, key=len)[-1], sum(map(len, words)))",
        f"print([n * n for n in range(1, {3 + draws.below(6)})])",
    )
    return {"code": draws.pick(codes)}


def _todo(draws: Draws, words: Sequence[str], files: Files) -> dict[str, Any]:
    steps = ("look into", "work on", "check")
    states = ("in_progress", "pending", "pending")
    return {
        "todos": [
            {"id": str(number), "content": f"{step} {draws.pick(words)}", "status": state}
            for number, (step, state) in enumerate(zip(steps, states, strict=True), 1)
        ]
    }


_MAKERS: dict[str, Maker] = {
    "terminal": _terminal,
    "write_file": _write_file,
    "read_file": _read_file,
    "search_files": _search_files,
    "patch": _patch,
    "execute_code": _execute_code,
    "todo": _todo,
}
