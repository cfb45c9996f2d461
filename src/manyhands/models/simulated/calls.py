"""The tool calls that the simulated model thinks of.

Their arguments are values that fit the tools' schemas (JSON Schema 2020-12 and the drafts before it, as far as tools use them).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.digests import Draws
from manyhands.core.jsonio import Json, canonical, loads_outside
from manyhands.models.reasoning import flatten

_MAX_DEPTH = 8
_FORMATS = {
    "date": "2024-03-01",
    "date-time": "2024-03-01T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.org",
    "hostname": "example.org",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.org/",
    "url": "https://example.org/",
    "uri-reference": "/page",
    "uuid": "00000000-0000-4000-8000-000000000001",
    "regex": "a+",
    "json-pointer": "/a",
}
_SAMPLES = (
    "a", "A", "1", "ab", "abc", "Abc", "ABC", "A1", "a1", "12", "123", "1234", "12345", "a-b", "a_b", "a.b", "A-1",
    "ABC-123", "abc123", "0", "1.0", "1.0.0", "v1.0.0", "2024-03-01", "12:00", "#aabbcc", "aabbcc", "/a", "./a", "a/b",
    "a.txt", "+15550100", "555-0100", "someone@example.org", "https://example.org/", "true", "yes",
    "00000000-0000-4000-8000-000000000001", "",
)  # fmt: skip
_TYPE_KEYS = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"),
}


def example(schema: Json, draws: Draws, words: Sequence[str] = ("example",)) -> Json:
    """A value that fits the schema, made from ``words`` where text is free.

    Not every schema can be satisfied this way (``not``, ``if``, rare patterns); then the value fits as far as was tried.
    """
    return _Maker(schema, draws, words or ("example",)).value(schema, 0)


class _Maker:
    def __init__(self, root: Json, draws: Draws, words: Sequence[str]) -> None:
        self._root = root
        self._draws = draws
        self._words = words

    def value(self, schema: Json, depth: int) -> Json:
        if not isinstance(schema, Mapping):
            return self._draws.pick(self._words)  # True, or nonsense: anything goes
        schema = self._resolved(schema, depth)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._draws.pick(schema["enum"])
        return self._of_type(_type_of(schema), schema, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> Json:
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind in ("integer", "number"):
            return self._number(schema, kind)
        if kind == "boolean":
            return self._draws.chance(50)
        return None if kind == "null" else self._string(schema)

    def _resolved(self, schema: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
        """The schema with its references followed, its ``allOf`` merged, and one of its alternatives chosen."""
        for _ in range(_MAX_DEPTH):
            if "$ref" in schema:
                target = self._follow(schema["$ref"])
                schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
            elif schema.get("allOf"):
                schema = _merged({key: value for key, value in schema.items() if key != "allOf"}, schema["allOf"])
            elif options := schema.get("anyOf") or schema.get("oneOf"):
                rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
                schema = _merged(rest, [self._chosen(options, depth)])
            else:
                return schema
        return schema

    def _chosen(self, options: Sequence[Json], depth: int) -> Json:
        nulls = [option for option in options if isinstance(option, Mapping) and option.get("type") == "null"]
        if nulls and depth >= _MAX_DEPTH // 2:
            return nulls[0]
        return next((option for option in options if option not in nulls), options[0])

    def _follow(self, reference: Json) -> Mapping[str, Any]:
        target = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            return {}
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            target = target.get(part) if isinstance(target, Mapping) else None
        return target if isinstance(target, Mapping) else {}

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = list(schema.get("required") or ())
        made: dict[str, Any] = {}
        for name, inner in properties.items():
            if name in required or (depth < 2 and inner is not False and self._draws.chance(30)):
                made[name] = self.value(inner, depth + 1)
        extra = schema.get("additionalProperties", True)
        for name in required:
            if name not in made:
                made[name] = self.value(extra, depth + 1)
        self._fill(made, properties, extra, int(schema.get("minProperties") or 0), depth)
        return made

    def _fill(self, made: dict[str, Any], properties: Mapping[str, Any], extra: Json, minimum: int, depth: int) -> None:
        for name, inner in properties.items():
            if len(made) < minimum and name not in made:
                made[name] = self.value(inner, depth + 1)
        for number in range(minimum - len(made) if extra is not False else 0):
            made[f"field_{number + 1}"] = self.value(extra, depth + 1)

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        minimum = int(schema.get("minItems") or 0)
        maximum = int(schema.get("maxItems", max(minimum, 3)))
        size = max(minimum, min(maximum, 1 + self._draws.below(2))) if depth < _MAX_DEPTH else minimum
        fixed = schema.get("prefixItems") or []
        made = [self.value(inner, depth + 1) for inner in fixed[: max(size, minimum)]]
        inner = schema.get("items", True)
        if inner is False:
            return made
        seen = {canonical(value) for value in made}
        for attempt in range(size * 8):
            if len(made) >= size:
                break
            value = self.value(inner, depth + 1)
            if schema.get("uniqueItems") and canonical(value) in seen:
                value = _varied(value, inner, attempt)
                if canonical(value) in seen:
                    continue
            seen.add(canonical(value))
            made.append(value)
        return made

    def _number(self, schema: Mapping[str, Any], kind: str) -> int | float:
        low, high = _bounds(schema)
        step = schema.get("multipleOf")
        if step:
            first = math.ceil(low / step - 1e-9) if low is not None else 0 if high is None or high >= 0 else None
            count = first if first is not None else math.floor((high or 0) / step + 1e-9)
            multiple = count * step
            if _excluded(multiple, schema):
                multiple += step
            return int(multiple) if kind == "integer" else multiple
        if kind == "integer":
            return self._integer(schema, low, high)
        if low is not None and high is not None:
            return low + (high - low) * (1 + self._draws.below(9)) / 10 if high > low else low
        if low is not None:
            return low + 1.5
        return high - 1.5 if high is not None else self._draws.below(100) / 4

    def _integer(self, schema: Mapping[str, Any], low: float | None, high: float | None) -> int:
        minimum = None if low is None else math.ceil(low)
        maximum = None if high is None else math.floor(high)
        if minimum is not None and _excluded(minimum, schema):
            minimum += 1
        if maximum is not None and _excluded(maximum, schema):
            maximum -= 1
        if minimum is None:
            minimum = 1 if maximum is None or maximum >= 1 else maximum - 5
        if maximum is None:
            maximum = minimum + 9
        return minimum + self._draws.below(min(10, max(1, maximum - minimum + 1)))

    def _string(self, schema: Mapping[str, Any]) -> str:
        minimum = int(schema.get("minLength") or 0)
        maximum = schema.get("maxLength")
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            return _matching(pattern, minimum, maximum, self._words)
        text = _FORMATS.get(str(schema.get("format")))
        if text is None:
            text = self._draws.pick(self._words)
            while len(text) < minimum:
                text += " " + self._draws.pick(self._words)
        return text if maximum is None else text[: max(int(maximum), minimum)]


def _type_of(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if isinstance(kind, str):
        return kind
    return next((name for name, keys in _TYPE_KEYS.items() if any(key in schema for key in keys)), "string")


def _merged(schema: Mapping[str, Any], others: Sequence[Json]) -> dict[str, Any]:
    made = dict(schema)
    for other in others:
        if not isinstance(other, Mapping):
            continue
        for key, value in other.items():
            if key == "properties" and isinstance(made.get(key), Mapping):
                made[key] = {**made[key], **value}
            elif key == "required" and key in made:
                made[key] = [*made[key], *(name for name in value if name not in made[key])]
            elif key in ("minimum", "minLength", "minItems") and key in made:
                made[key] = max(made[key], value)
            elif key in ("maximum", "maxLength", "maxItems") and key in made:
                made[key] = min(made[key], value)
            else:
                made[key] = value
    return made


def _bounds(schema: Mapping[str, Any]) -> tuple[float | None, float | None]:
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if _is_number(schema.get(key))]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if _is_number(schema.get(key))]
    return (max(lows) if lows else None), (min(highs) if highs else None)


def _excluded(value: float, schema: Mapping[str, Any]) -> bool:
    return value == schema.get("exclusiveMinimum") or value == schema.get("exclusiveMaximum")


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _varied(value: Json, schema: Json, attempt: int) -> Json:
    if isinstance(schema, Mapping) and (schema.get("enum") or "const" in schema):
        return value
    if isinstance(value, str):
        return f"{value}{attempt + 1}"
    if _is_number(value):
        return value + attempt + 1
    return value


def _matching(pattern: str, minimum: int, maximum: Json, words: Sequence[str]) -> str:
    try:
        compiled = re.compile(pattern)
    except re.error:
        return words[0]
    for text in (*words, *_SAMPLES):
        for candidate in (text, text * 4, text * 16):
            if (
                minimum <= len(candidate)
                and (maximum is None or len(candidate) <= maximum)
                and compiled.search(candidate)
            ):
                return candidate
    return words[0]


@dataclass(frozen=True, slots=True)
class Known:
    """What the conversation holds that further calls may be about."""

    files: dict[str, str] = field(default_factory=dict)
    """Files written with ``write_file``: path to content, in order of writing."""
    urls: Sequence[str] = ()
    """Pages of the web that were found or named, and not read yet."""
    queries: Collection[str] = ()
    """What was searched for in the web."""
    found: bool = False
    """Whether the last result was of a search that found some."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What pages say in lines of the form ``Name: value``, by the name in lower case."""


def named_urls(text: str) -> list[str]:
    """The addresses of the web in a text; a site that is named by its host alone (``example.org/lamps``) has one, too."""
    return [found if "://" in found else f"https://{found}" for found in _URL.findall(text)]


Maker = Callable[[Draws, Sequence[str], Known], dict[str, Any] | None]
"""Makes arguments that make sense, or None if the tool does not help at this point."""

NEVER = ("process", "clarify")
"""Tools that are no use to a program that has started no process and knows no person."""
_PLAIN = re.compile(r"[\w./]+")
"""Paths that mean themselves in a shell."""
_EXTENSIONS = ("txt", "md", "csv")
_FACT = re.compile(r"^([A-Z][A-Za-z ]{1,40}): ([^\n]{1,200})$", re.MULTILINE)
_WHOLE = re.compile(r"\d{1,9}")
_IN_URL = r"""[^\s<>"'`\\)\]}]"""
_URL = re.compile(
    rf"https?://{_IN_URL}{{1,1000}}(?<![.,;:!?])"
    rf"|(?<![\w@./-])(?:[a-z0-9-]{{1,63}}\.){{1,5}}(?:com|org|net|edu|gov)\b(?!@)(?:/{_IN_URL}{{0,1000}}(?<![.,;:!?]))?"
)


def known_from(messages: Sequence[Mapping[str, Any]]) -> Known:
    """What the conversation's calls have written and found so far."""
    files: dict[str, str] = {}
    urls: dict[str, None] = {}
    read: set[str] = set()
    queries: set[str] = set()
    facts: dict[str, str] = {}
    found = False
    for message in messages:
        if message.get("role") == "user":
            urls |= dict.fromkeys(named_urls(flatten(message.get("content"))))
        elif message.get("role") == "tool":
            hits = _found_urls(message.get("content"))
            found = bool(hits)
            urls = dict.fromkeys([*hits, *urls])
            facts |= _facts(message.get("content"))
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            if function.get("name") == "write_file":
                _note(files, _object(function.get("arguments")))
            elif function.get("name") == "web_extract":
                read.update(map(str, _object(function.get("arguments")).get("urls") or ()))
            elif function.get("name") == "web_search":
                queries.add(str(_object(function.get("arguments")).get("query")))
    return Known(files, [url for url in urls if url not in read], queries, found, facts)


def _object(text: Json) -> dict[str, Any]:
    """The object that a text is in JSON; an empty one if it is none."""
    try:
        value = loads_outside(text)
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _note(files: dict[str, str], arguments: Mapping[str, Any]) -> None:
    if isinstance(arguments.get("path"), str):
        files[arguments["path"]] = str(arguments.get("content", ""))


def _found_urls(result: Json) -> list[str]:
    """The addresses in the result of a ``web_search``."""
    if not isinstance(result, str) or '"web"' not in result:
        return []
    data = _object(result).get("data")
    hits = data.get("web") if isinstance(data, dict) else None
    return [str(hit["url"]) for hit in hits or () if isinstance(hit, dict) and "url" in hit]


def _facts(result: Json) -> dict[str, str]:
    """What the pages in the result of a ``web_extract`` say in lines of the form ``Name: value``, and where."""
    if not isinstance(result, str) or '"results"' not in result:
        return {}
    found: dict[str, str] = {}
    for page in _object(result).get("results") or ():
        if isinstance(page, dict) and isinstance(page.get("content"), str):
            found |= {name.lower(): value for name, value in _FACT.findall(page["content"][:20_000])}
            found["source"] = str(page.get("url", ""))
    return found


def with_facts(value: Mapping[str, Any], schema: Json, facts: Mapping[str, str]) -> dict[str, Any]:
    """An object with those facts in it that its schema names as whole numbers or texts."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    made = dict(value)
    for name, inner in (properties or {}).items() if isinstance(properties, Mapping) else ():
        fact = facts.get(str(name).replace("_", " ").lower())
        kind = inner.get("type") if isinstance(inner, Mapping) and "enum" not in inner else None
        if fact is not None and kind == "string":
            made[name] = fact
        elif fact is not None and kind == "integer" and _WHOLE.fullmatch(fact):
            made[name] = int(fact)
    return made


def arguments_for(tool: Mapping[str, Any], draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any] | None:
    """Arguments for a tool object of chat completions: sensible ones for the tools that every agent has, else any that fit
    its schema. None if the tool does not help now."""
    function = tool.get("function") or {}
    schema = function.get("parameters")
    schema = schema if isinstance(schema, Mapping) else {"type": "object"}
    maker = _MAKERS.get(str(function.get("name")))
    if maker is not None:
        made = maker(draws, words, known)
        if made is None:
            return None
        if fits_roughly(made, schema):
            return made
    value = example({"type": "object", **schema}, draws, words)
    return value if isinstance(value, dict) else {}


def any_call(tools: Sequence[Mapping[str, Any]], draws: Draws, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """A call of one of several tools where none helps: a further search, a page, else anything that fits the tool's schema."""
    function = draws.pick(tools).get("function") or {}
    name, schema = str(function.get("name")), function.get("parameters")
    if name in _ANYHOW:
        return name, _ANYHOW[name](draws, words)
    value = example({"type": "object", **(schema if isinstance(schema, Mapping) else {})}, draws, words)
    return name, value if isinstance(value, dict) else {}


_ANYHOW: dict[str, Callable[[Draws, Sequence[str]], dict[str, Any]]] = {
    "web_search": lambda draws, words: {"query": draws.pick(words)},
    "web_extract": lambda draws, words: {"urls": [_FORMATS["url"]]},
}


def fits_roughly(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether the schema knows all these arguments and requires no others: another tool may go by the same name."""
    properties = schema.get("properties")
    return (
        isinstance(properties, Mapping)
        and all(name in properties for name in arguments)
        and all(name in arguments for name in schema.get("required") or ())
    )


def _terminal(draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any]:
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
    newest = next((path for path in reversed(known.files) if _PLAIN.fullmatch(path)), None)
    if newest is not None and draws.chance(40):
        return {"command": f"wc -c < {newest}"}
    return {"command": draws.pick(commands)}


def _write_file(draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any]:
    path = f"{draws.pick(words)}_{draws.below(1000)}.{draws.pick(_EXTENSIONS)}"
    lines = [f"{number}. {draws.pick(words)} {draws.below(100)}" for number in range(1, 3 + draws.below(4))]
    return {"path": path, "content": f"Notes on {' '.join(words)}\n" + "\n".join(lines) + "\n"}


def _read_file(draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any] | None:
    return {"path": draws.pick(list(known.files))} if known.files else None


def _search_files(draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any] | None:
    return {"pattern": draws.pick(words), "path": draws.pick(list(known.files))} if known.files else None


def _patch(draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any] | None:
    for path, content in known.files.items():
        lines = content.splitlines()
        # A line that stands once: several tools refuse to replace what is ambiguous.
        line = next((line for line in lines[1:] if content.count(line) == 1), None)
        if line is not None:
            return {"mode": "replace", "path": path, "old_string": line, "new_string": f"{line} (checked)"}
    return None


def _execute_code(draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any]:
    numbers = [draws.below(100) for _ in range(4)]
    codes = (
        f"numbers = {numbers}\nprint(sum(numbers), max(numbers))",
        f"words = {list(words)!r}\nprint(sorted(words, key=len)[-1], sum(map(len, words)))",
        f"print([n * n for n in range(1, {3 + draws.below(6)})])",
    )
    return {"code": draws.pick(codes)}


def _todo(draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any]:
    steps = ("look into", "work on", "check")
    states = ("in_progress", "pending", "pending")
    return {
        "todos": [
            {"id": str(number), "content": f"{step} {draws.pick(words)}", "status": state}
            for number, (step, state) in enumerate(zip(steps, states, strict=True), 1)
        ]
    }


def _web_search(draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any] | None:
    query = " ".join(words)
    return None if query in known.queries else {"query": query}


def _web_extract(draws: Draws, words: Sequence[str], known: Known) -> dict[str, Any] | None:
    return {"urls": list(known.urls[: 1 + draws.below(2)])} if known.urls else None


_MAKERS: dict[str, Maker] = {
    "terminal": _terminal,
    "write_file": _write_file,
    "read_file": _read_file,
    "search_files": _search_files,
    "patch": _patch,
    "execute_code": _execute_code,
    "todo": _todo,
    "web_search": _web_search,
    "web_extract": _web_extract,
}
