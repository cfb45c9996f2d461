"""Tools by name, whether or not this version has them: the stable universe that statistics are kept over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

BUILT_IN: tuple[str, ...] = (
    "execute_code",
    "patch",
    "process",
    "read_file",
    "search_files",
    "terminal",
    "todo",
    "write_file",
)
"""The tools of this version."""

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

DECLARED: Mapping[str, str] = MappingProxyType(
    {
        "web_search": "a web search service (FIRECRAWL_API_KEY)",
        "web_extract": "a web search service (FIRECRAWL_API_KEY)",
        "vision_analyze": "a model that sees images",
        "image_generate": "an image generation service (FAL_KEY)",
        "mixture_of_agents": "several models by one endpoint (OPENROUTER_API_KEY)",
        **dict.fromkeys(BROWSER, "a Chromium browser"),
    }
)
"""Tools that are still to come, each with what it will need. A plug-in or an MCP server may bring one of these
names."""

KNOWN_TOOLS: tuple[str, ...] = tuple(sorted({*BUILT_IN, *DECLARED}))
"""Every name that ``tool_stats`` always holds, sorted: this version's tools, the seventeen of the fork of the original,
and those that upstream's distributions can draw. It depends on this version alone, never on what is installed, so that
the columns of a data set stay the same from run to run (spec of trajectories, D20)."""


def known_tools(extra: Iterable[str] = ()) -> tuple[str, ...]:
    """``KNOWN_TOOLS`` with the run's own further tools (of plug-ins and MCP servers), sorted."""
    return tuple(sorted({*KNOWN_TOOLS, *extra}))
