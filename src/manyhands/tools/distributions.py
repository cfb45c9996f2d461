"""Distributions: for each prompt, toolsets are drawn from a table of probabilities.

Two tables come with this version, both with the same seventeen names. A plain name,
as ``science``, is upstream's, in its newest state. ``fork:science`` (or ``opengauss:science``) is that of the fork
which the original's documentation describes; ``upstream:science`` says the default explicitly.

A person's own distributions and toolsets are read from a YAML file::

    toolsets:                        # optional
      proofs:
        description: Lean and its files
        tools: [terminal]
        includes: [file]
    lean_only:                       # any number of distributions
      description: Proving in Lean
      toolsets:
        proofs: 100
        web: 20                      # percent
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from manyhands.core.errors import UserError
from manyhands.core.text import suggestion
from manyhands.io.locations import Location
from manyhands.tools.toolsets import DECLARED, STANDARD, Toolset, Toolsets

if TYPE_CHECKING:
    from manyhands.tools.registry import Registry


FORK = "fork:"
_PREFIXES = {"opengauss:": FORK, "upstream:": "", "hermes:": ""}


@dataclass(frozen=True, slots=True)
class Distribution:
    """A named table: toolsets in their order of drawing, each with its probability in percent (above 0, at most
    100)."""

    name: str
    description: str
    toolsets: tuple[tuple[str, float], ...]


class Distributions(Mapping[str, Distribution]):
    """Distributions by name. Immutable."""

    def __init__(self, distributions: Iterable[Distribution]) -> None:
        self._distributions = {each.name: each for each in distributions}

    def __getitem__(self, name: str) -> Distribution:
        for prefix, present in _PREFIXES.items():
            if name.startswith(prefix):
                return self._distributions[present + name.removeprefix(prefix)]
        return self._distributions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._distributions)

    def __len__(self) -> int:
        return len(self._distributions)

    def named(self, name: str) -> Distribution:
        """The distribution of that name.

        Raises UserError that lists the names if there is none.
        """
        try:
            return self[name]
        except KeyError:
            plain = ", ".join(sorted(each for each in self._distributions if ":" not in each))
            hint = suggestion(name, self._distributions)
            message = f"no distribution is called {name!r}{hint}; distributions: {plain}, and the fork's as fork:NAME"
            raise UserError(message) from None

    def extended(self, distributions: Iterable[Distribution]) -> Distributions:
        """These and further ones, which replace those of the same name."""
        return Distributions([*self._distributions.values(), *distributions])


def draw(distribution: Distribution, source: Callable[[], Random]) -> list[str]:
    """Draw toolsets: each by itself, in listed order, with one random number each. ``source``: makes what gives the numbers; it is not
    called where every toolset is certain.

    If none comes out, it is the one with the highest probability, the first of several. What is available on this
    machine has no part in it, so that a draw depends on the random source alone.
    """
    if all(percent >= 100 for _, percent in distribution.toolsets):
        return [name for name, _ in distribution.toolsets]
    random = source()
    drawn = [name for name, percent in distribution.toolsets if random.random() * 100 < percent]
    return drawn or [max(distribution.toolsets, key=lambda entry: entry[1])[0]]


def format_distributions(distributions: Distributions) -> str:
    """All distributions for a person: names in alphabetical order, with description and toolsets from the likeliest
    on."""
    own = sorted(name for name in distributions if not name.startswith(FORK))
    fork = sorted(name for name in distributions if name.startswith(FORK))
    lines = ["Toolset distributions", "=" * 70]
    for name in own + fork:
        each = distributions[name]
        lines += ["", f"  {name}", f"    {each.description}"]
        ranked = sorted(each.toolsets, key=lambda entry: -entry[1])
        lines += [f"      {toolset:<16}{percent:>5g} %" for toolset, percent in ranked]
    lines += ["", "Use one with --distribution NAME; add your own with --distributions_file FILE."]
    return "\n".join(lines)


def availability_notice(distribution: Distribution, registry: Registry, toolsets: Toolsets = STANDARD) -> list[str]:
    """What this distribution can draw that can't be used here: nothing, or one line that names the tools by what they
    need, and one that names toolsets left without any tool."""
    names = [name for name, _ in distribution.toolsets]
    missing = [tool for tool in toolsets.tools(names) if tool not in registry]
    if not missing:
        return []
    needs: dict[str, list[str]] = {}
    for tool in missing:
        needs.setdefault(DECLARED.get(tool, "a plug-in or MCP server of that name"), []).append(tool)
    groups = "; ".join(f"{_together(tools)} (needs {need})" for need, tools in sorted(needs.items()))
    notices = [f"tools not available in this run: {groups}"]
    empty = [name for name in names if (own := toolsets.tools([name])) and not registry.available(own)]
    if empty:
        notices.append(f"toolsets drawn without any tool: {', '.join(empty)}")
    return notices


def _together(tools: list[str]) -> str:
    browser = [tool for tool in tools if tool.startswith("browser_")]
    return f"browser_* ({len(browser)} tools)" if len(browser) > 3 and browser == tools else ", ".join(tools)


def _table(prefix: str, rows: Mapping[str, tuple[str, Mapping[str, float]]]) -> list[Distribution]:
    return [Distribution(prefix + name, text, tuple(table.items())) for name, (text, table) in rows.items()]


_UPSTREAM: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "default": (
        "Every toolset, every time.",
        {"web": 100, "vision": 100, "image_gen": 100, "terminal": 100, "file": 100, "browser": 100},
    ),
    "image_gen": (
        "Making images, with looking at them and looking things up.",
        {"image_gen": 90, "vision": 90, "web": 55, "terminal": 45},
    ),
    "research": (
        "Web research, with some looking at images.",
        {"web": 90, "browser": 70, "vision": 50, "terminal": 10},
    ),
    "science": (
        "Scientific work: web, shell and files.",
        {"web": 94, "terminal": 94, "file": 94, "vision": 65, "browser": 50, "image_gen": 15},
    ),
    "development": ("Writing software.", {"terminal": 80, "file": 80, "web": 30, "vision": 10}),
    "safe": ("Nothing that touches a shell or files.", {"web": 80, "browser": 70, "image_gen": 60, "vision": 60}),
    "balanced": (
        "Each toolset every other time.",
        {"web": 50, "vision": 50, "image_gen": 50, "terminal": 50, "file": 50, "browser": 50},
    ),
    "minimal": ("The web and nothing else.", {"web": 100}),
    "terminal_only": ("Shell and files.", {"terminal": 100, "file": 100}),
    "terminal_web": ("Shell, files and the web.", {"terminal": 100, "file": 100, "web": 100}),
    "creative": ("Making and looking at images.", {"image_gen": 90, "vision": 90, "web": 30}),
    "reasoning": ("Thinking, with some help of the web and files.", {"web": 90, "file": 60, "terminal": 20}),
    "browser_use": ("A browser always, with web search and images.", {"browser": 100, "web": 80, "vision": 70}),
    "browser_only": ("A browser and nothing else.", {"browser": 100}),
    "browser_tasks": ("Acting on web pages.", {"browser": 97, "vision": 12, "terminal": 15}),
    "terminal_tasks": (
        "Work in a shell, with all that may help.",
        {"terminal": 97, "file": 97, "web": 97, "browser": 75, "vision": 50, "image_gen": 10},
    ),
    "mixed_tasks": (
        "Browser, shell and files together.",
        {"browser": 92, "terminal": 92, "file": 92, "web": 35, "vision": 15, "image_gen": 15},
    ),
}

_FORK: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "default": ("The fork's normal set: web, files and browser as one toolset.", {"autoformalize": 100}),
    "image_gen": ("An older name: research, mostly in a browser.", {"browser": 90, "web": 55, "file": 30}),
    "research": ("Web research with a browser.", {"web": 90, "browser": 70, "file": 35}),
    "science": ("Papers: web, files and browser.", {"web": 94, "file": 94, "browser": 65}),
    "development": ("Changing files, with some looking up.", {"file": 80, "web": 40, "browser": 25}),
    "safe": ("No access to files.", {"web": 80, "browser": 70}),
    "balanced": ("Each toolset every other time.", {"web": 50, "file": 50, "browser": 50}),
    "minimal": ("The web and nothing else.", {"web": 100}),
    "terminal_only": ("An older name: files and nothing else.", {"file": 100}),
    "terminal_web": ("An older name: files and the web.", {"file": 100, "web": 100}),
    "creative": ("An older name: a browser first.", {"browser": 90, "web": 30}),
    "reasoning": ("Light research.", {"web": 90, "file": 35}),
    "browser_use": ("A browser always, with web search.", {"browser": 100, "web": 80}),
    "browser_only": ("A browser and nothing else.", {"browser": 100}),
    "browser_tasks": ("Acting on web pages.", {"browser": 97, "web": 65, "file": 15}),
    "terminal_tasks": ("An older name: work on local files.", {"file": 97, "web": 97, "browser": 75}),
    "mixed_tasks": ("Browser and files together.", {"browser": 92, "file": 92, "web": 35}),
}

STANDARD_DISTRIBUTIONS = Distributions([*_table("", _UPSTREAM), *_table(FORK, _FORK)])
"""Both tables. The order of a table's toolsets is the order of drawing."""


_SECTION = "toolsets"


def load_distributions_file(
    path: Path, toolsets: Toolsets, distributions: Distributions = STANDARD_DISTRIBUTIONS
) -> tuple[Distributions, Toolsets]:
    """The given distributions and toolsets with those of the file. A distribution of the file replaces one of the same
    name.

    Raises UserError that names file, line and field.
    """
    from manyhands.io.yaml_files import read_yaml  # YAML takes long to import

    content, top = read_yaml(path)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: a mapping of distributions by name is expected")
    section = content.get(_SECTION)
    own = []
    if section is not None:
        location = top.at(_SECTION)
        named = _mapping(location, section)
        own = [_toolset(location.at(name), name, value) for name, value in named.items()]
        try:
            toolsets = toolsets.extended(own)
        except UserError as error:
            raise location.error(str(error)) from error
    read = [_distribution(top.at(name), name, value, toolsets) for name, value in content.items() if name != _SECTION]
    return distributions.extended(read), toolsets


def _distribution(location: Location, name: str, value: Any, toolsets: Toolsets) -> Distribution:
    if not name or ":" in name:
        raise location.error("a distribution's name is text without a colon")
    fields = _fields(location, value, ("description", "toolsets"))
    table = location.at("toolsets")
    entries = _mapping(table, fields.get("toolsets"))
    if not entries:
        raise table.error("at least one toolset with its percentage is expected")
    drawn: list[tuple[str, float]] = []
    for toolset, percent in entries.items():
        entry = table.at(toolset)
        try:
            drawn.append((toolsets.checked(toolset), _percent(entry, percent)))
        except UserError as error:
            raise error if str(error).startswith(location.file) else entry.error(str(error)) from error
    return Distribution(name, _text(location, fields, "description"), tuple(drawn))


def _toolset(location: Location, name: str, value: Any) -> Toolset:
    fields = _fields(location, value, ("description", "tools", "includes"))
    tools, includes = (_names(location.at(key), fields.get(key)) for key in ("tools", "includes"))
    if not tools and not includes:
        raise location.error("tools or includes are expected")
    return Toolset(name, _text(location, fields, "description"), tools, includes)


def _fields(location: Location, value: Any, known: Sequence[str]) -> Mapping[str, Any]:
    fields = _mapping(location, value)
    for key in fields:
        if key not in known:
            hint = suggestion(key, known)
            raise location.at(key).error(f"unknown field{hint}; known: {', '.join(known)}")
    return fields


def _mapping(location: Location, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise location.error(f"a mapping is expected, not {_kind(value)}")
    return value


def _names(location: Location, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise location.error(f"a list of names is expected, not {_kind(value)}")
    return tuple(value)


def _text(location: Location, fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise location.at(key).error(f"text is expected, not {_kind(value)}")
    return value


def _percent(location: Location, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 100:
        raise location.error(f"a percentage above 0 and up to 100 is expected, not {value!r}")
    return float(value)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)
