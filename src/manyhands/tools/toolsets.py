"""Toolsets: named sets of tools, which may include each other.

``KNOWN_TOOLS`` names every tool, whether or not this version has it: the stable universe that statistics are kept over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from manyhands.core.errors import UserError
from manyhands.core.text import suggestion

if TYPE_CHECKING:
    from manyhands.tools.registry import Registry


BROWSER: tuple[str, ...] = (
    "browser_back",
    "browser_click",
    "browser_close",
    "browser_console",
    "browser_get_images",
    "browser_navigate",
    "browser_press",
    "browser_scroll",
    "browser_snapshot",
    "browser_type",
    "browser_vision",
)

BUILT_IN: tuple[str, ...] = tuple(
    sorted(
        (
            *BROWSER,
            "execute_code",
            "image_generate",
            "mixture_of_agents",
            "patch",
            "process",
            "read_file",
            "search_files",
            "terminal",
            "todo",
            "vision_analyze",
            "web_extract",
            "web_search",
            "write_file",
        )
    )
)
"""The tools of this version."""

DECLARED: Mapping[str, str] = MappingProxyType(
    {
        "web_search": "a search service and its key (--web_search)",
        "web_extract": "pip install 'manyhands[web]', or a service and its key (--web_extract)",
        "vision_analyze": "a model that sees pictures (--vision_model)",
        "image_generate": "a service that makes pictures (--image_provider)",
        "mixture_of_agents": "several models (--moa_models)",
        **dict.fromkeys(BROWSER, "Chromium, and Playwright (extra browser)"),
        "browser_vision": "Chromium, Playwright (extra browser), and a model that sees pictures (--vision_model)",
    }
)
"""Tools that need more than a sandbox, each with what that is. A plug-in or an MCP server may bring one of these names where the run
lacks it."""

KNOWN_TOOLS: tuple[str, ...] = tuple(sorted({*BUILT_IN, *DECLARED}))
"""Every name that ``tool_stats`` always holds, sorted: this version's tools, the seventeen of the fork of the original,
and those that upstream's distributions can draw. It depends on this version alone, never on what is installed, so that
the columns of a data set stay the same from run to run."""


def known_tools(extra: Iterable[str] = ()) -> tuple[str, ...]:
    """``KNOWN_TOOLS`` with the run's own further tools (of plug-ins and MCP servers), sorted."""
    return tuple(sorted({*KNOWN_TOOLS, *extra}))


EVERYTHING = ("all", "*")
"""Names that stand for all toolsets together."""

LEGACY = {"web_tools": "web", "browser_tools": "browser", "file_tools": "file"}
"""Older names that the original still accepts."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """A named set of tools."""

    name: str
    description: str
    tools: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    """Names of other toolsets whose tools belong to it too."""


class Toolsets(Mapping[str, Toolset]):
    """Toolsets by name. Immutable; made complete and checked at once.

    Raises UserError if a toolset includes an unknown one, or itself by way of others.
    """

    def __init__(self, toolsets: Iterable[Toolset]) -> None:
        self._toolsets = {each.name: each for each in toolsets}
        self._tools: dict[str, frozenset[str]] = {}
        for name in self._toolsets:
            self._resolved(name, ())

    def __getitem__(self, name: str) -> Toolset:
        return self._toolsets[LEGACY.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._toolsets)

    def __len__(self) -> int:
        return len(self._toolsets)

    def tools(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names of all tools in the named toolsets, sorted, each once: available or not.

        Raises UserError for a name that is no toolset.
        """
        found: set[str] = set()
        for name in names:
            chosen = self._toolsets if name in EVERYTHING else [self.checked(name)]
            for each in chosen:
                found |= self._tools[each]
        return tuple(sorted(found))

    def checked(self, name: str) -> str:
        """The name as it is kept here (a legacy name's present one).

        Raises UserError for a name that is no toolset, with the nearest one that is.
        """
        present = LEGACY.get(name, name)
        if present not in self._toolsets:
            known = ", ".join(sorted(self._toolsets))
            raise UserError(f"no toolset is called {name!r}{suggestion(name, self._toolsets)}; toolsets: {known}")
        return present

    def extended(self, toolsets: Iterable[Toolset]) -> Toolsets:
        """These and further ones.

        Raises UserError if a name is taken.
        """
        added = list(toolsets)
        for each in added:
            if each.name in self._toolsets or each.name in LEGACY or each.name in EVERYTHING:
                raise UserError(f"a toolset called {each.name!r} exists already; choose another name")
        return Toolsets([*self._toolsets.values(), *added])

    def _resolved(self, name: str, path: tuple[str, ...]) -> frozenset[str]:
        if name in path:
            circle = " → ".join([*path[path.index(name) :], name])
            raise UserError(f"toolset {name!r} includes itself: {circle}")
        if name not in self._tools:
            toolset = self._toolsets[name]
            found = set(toolset.tools)
            for included in toolset.includes:
                present = LEGACY.get(included, included)
                if present not in self._toolsets:
                    hint = suggestion(included, self._toolsets)
                    raise UserError(f"toolset {name!r} includes {included!r}, which is no toolset{hint}")
                found |= self._resolved(present, (*path, name))
            self._tools[name] = frozenset(found)
        return self._tools[name]


STANDARD = Toolsets(
    [
        Toolset("terminal", "Shell commands, also in the background.", ("terminal", "process")),
        Toolset(
            "file",
            "Reading, writing, changing and searching files.",
            ("read_file", "write_file", "patch", "search_files"),
        ),
        Toolset("code_execution", "Python programs.", ("execute_code",)),
        Toolset("todo", "A list of tasks that the model keeps.", ("todo",)),
        Toolset(
            "sandbox", "Everything that works in the sandbox.", includes=("terminal", "file", "code_execution", "todo")
        ),
        Toolset("web", "Searching the web and reading pages.", ("web_search", "web_extract")),
        Toolset("search", "Searching the web only.", ("web_search",)),
        Toolset("browser", "Steering a browser.", BROWSER),
        Toolset("vision", "Looking at images.", ("vision_analyze",)),
        Toolset("image_gen", "Making images.", ("image_generate",)),
        Toolset("moa", "Asking several models at once.", ("mixture_of_agents",)),
        Toolset("autoformalize", "Papers and proofs: web, files, browser.", includes=("web", "file", "browser")),
    ]
)
"""The toolsets of this version. (Here ``browser`` holds no ``web_search``, which the fork of the original counts to it
and upstream no longer does.)"""


def with_groups(toolsets: Toolsets, registry: Registry) -> Toolsets:
    """The toolsets with those that plug-ins and MCP servers bring (``Registry.groups``).

    One that has the name of a toolset adds its tools to it: so a plug-in ``web`` gives the declared toolset what it
    lacks.
    """
    found = dict(toolsets)
    for name, tools in sorted(registry.groups.items()):
        present = found.get(LEGACY.get(name, name)) or Toolset(name, f"Tools of {name}.")
        merged = tuple(dict.fromkeys([*present.tools, *tools]))
        found[present.name] = replace(present, tools=merged)
    return Toolsets(found.values())
