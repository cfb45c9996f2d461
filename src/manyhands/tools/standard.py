"""The registry that a run starts from."""

from __future__ import annotations

from functools import cache

from manyhands.tools.files.content import read_file, write_file
from manyhands.tools.files.patch import patch
from manyhands.tools.files.search import search_files
from manyhands.tools.registry import Registry, with_plugins
from manyhands.tools.services.browser.looking import browser_vision
from manyhands.tools.services.browser.tools import BROWSER_TOOLS
from manyhands.tools.services.images import image_generate
from manyhands.tools.services.mixture import mixture_of_agents
from manyhands.tools.services.vision import vision_analyze
from manyhands.tools.services.web.extract import web_extract
from manyhands.tools.services.web.search import web_search
from manyhands.tools.terminal import execute_code, process, terminal
from manyhands.tools.todo import todo


@cache
def standard_registry(*, plugins: bool = True) -> Registry:
    """The built-in tools, those that need a service included, and, unless ``plugins`` is false, those of installed packages (broken ones:
    ``Registry.notices``). Those are looked for once in a process, because that reads a file of each package."""
    works_inside = (terminal, process, read_file, write_file, patch, search_files, execute_code, todo)
    asking = (image_generate, mixture_of_agents, vision_analyze, web_extract, web_search)
    registry = Registry([*works_inside, *asking, *BROWSER_TOOLS, browser_vision])
    return with_plugins(registry) if plugins else registry
