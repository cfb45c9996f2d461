"""The settings of tool calls."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from manyhands.core.settings import (
    Flag,
    OptionalList,
    OptionalPath,
    OptionalText,
    Settings,
    number,
    optional_whole,
    setting,
)
from manyhands.runs.options import LIMITS, RESUME, SERVICES, TOOLS, FileSettings


class MixtureSettings(Settings):
    """The models of ``mixture_of_agents``."""

    moa_models: OptionalList = setting(
        None,
        "Models that answer each question of the tool mixture_of_agents.",
        group=SERVICES,
        identity=True,
        value="MODEL,…",
    )
    moa_aggregator: OptionalText = setting(
        None,
        "Model that joins the answers of --moa_models (default: the first of them).",
        group=SERVICES,
        identity=True,
        value="MODEL",
    )


class VisionSettings(Settings):
    """The model of ``vision_analyze``."""

    vision_model: OptionalText = setting(
        None,
        "Model that looks at pictures for tools (default: --model, if that is known to take pictures).",
        group=SERVICES,
        identity=True,
        value="MODEL",
    )
    vision_base_url: OptionalText = setting(
        None, "Endpoint of --vision_model (default: that of --model).", group=SERVICES, identity=True, value="URL"
    )


class BrowserSettings(Settings):
    """The browser of the ``browser_`` tools."""

    browser_executable: OptionalPath = setting(
        None, "Chromium to use (default: the one in the PATH, else Playwright's own).", group=SERVICES, value="FILE"
    )
    browser_cdp: OptionalText = setting(
        None,
        "Use a browser that already runs, at this address of its DevTools protocol (default: BROWSER_CDP_URL, which is not recorded). What "
        "it reaches is not limited.",
        group=SERVICES,
        value="URL",
    )
    browser_contexts: Annotated[int | None, optional_whole(1)] = setting(
        None,
        "Maximum items that have a browser open, in each process; the others wait (default: 2 per processor, and one per 400 MB of free "
        "memory).",
        group=LIMITS,
    )
    browser_resume: Literal["page", "attempt"] = setting(
        "page",
        "What an item that had a browser open does after a crash: open its page again, with its cookies, or start a fresh attempt.",
        group=RESUME,
    )
    web_allow_private: Flag = setting(
        False, "Let browsers and tools of the web reach private addresses and this machine.", group=SERVICES
    )


class ImageSettings(Settings):
    """The service of ``image_generate``."""

    image_provider: Literal["openai", "fal", "chat", "simulated"] | None = setting(
        None,
        "Kind of service that makes pictures for tools: openai (its images API, which other servers have too), fal, chat (chat completions "
        "whose answers hold pictures), or simulated (coloured squares).",
        group=SERVICES,
        identity=True,
    )
    image_model: OptionalText = setting(
        None, "Model that makes pictures, as --image_provider calls it.", group=SERVICES, identity=True, value="MODEL"
    )
    image_base_url: OptionalText = setting(
        None, "Endpoint of --image_provider (default: its own).", group=SERVICES, identity=True, value="URL"
    )
    image_quality: OptionalText = setting(
        None,
        "Quality of pictures that are made, as --image_provider calls it (low, medium, high …).",
        group=SERVICES,
        identity=True,
        value="NAME",
    )


class WebSettings(FileSettings):
    """How ``web_search`` and ``web_extract`` get what they give."""

    paths: ClassVar[tuple[str, ...]] = ("web_cache",)

    web_search: Literal["firecrawl", "exa", "tavily", "brave", "searxng"] | None = setting(
        None,
        "Service that searches the web (default: the first one in this order that there is a key for).",
        group=SERVICES,
        identity=True,
    )
    web_extract: Literal["firecrawl", "exa", "tavily", "direct"] | None = setting(
        None,
        "Service that reads web pages (default: the first one that there is a key for), or direct: this machine reads them.",
        group=SERVICES,
        identity=True,
    )
    ignore_robots: Flag = setting(
        False,
        "With --web_extract direct: read pages also where a robots.txt disallows it.",
        group=SERVICES,
        identity=True,
    )
    web_cache: OptionalPath = setting(
        None,
        "Folder that keeps answers of the web tools for the rest of the day (UTC), for all runs that name it.",
        group=SERVICES,
        identity=True,
        value="FOLDER",
    )
    web_summary: OptionalText = setting(
        None,
        "Model that summarizes long web pages (default: agents get their text in portions).",
        group=SERVICES,
        identity=True,
        value="MODEL",
    )


class ToolSettings(WebSettings, MixtureSettings, VisionSettings, ImageSettings, BrowserSettings):
    """Tools of MCP servers and services, and how calls are made."""

    files: ClassVar[tuple[str, ...]] = ("mcp_config",)

    mcp_config: OptionalPath = setting(
        None, "File with MCP servers to mount as toolsets.", group=TOOLS, identity=True, value="FILE"
    )
    tools: OptionalList = setting(
        None,
        "What every agent has: toolsets and tools by name, and Python files (FILE.py, FILE.py:function) or functions (module:function) "
        "whose typed functions become tools.",
        group=TOOLS,
        identity=True,
        value="NAME|FILE,…",
    )
    sequential_tools: Flag = setting(
        False, "Run the tool calls of one turn sequentially, not concurrently.", group=TOOLS, identity=True
    )
    tool_timeout: Annotated[float, number(above=0)] = setting(
        180.0, "Timeout of one tool call in seconds.", group=LIMITS
    )

    def resolved(self) -> Self:
        made = super().resolved()
        if not made.tools:
            return made
        from manyhands.tools.own_functions import absolute_source  # it takes long to import, and is rarely needed

        return made.changed({"tools": tuple(absolute_source(each) if is_source(each) else each for each in made.tools)})


def is_source(tool: str) -> bool:
    """Whether a word of ``tools`` names a file or a function, not a toolset or tool."""
    return tool.endswith(".py") or ":" in tool
