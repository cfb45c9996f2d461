"""The settings of tool calls."""

from __future__ import annotations

from typing import Annotated

from manyhands.core.settings import (
    Flag,
    OptionalPath,
    Settings,
    number,
    setting,
)
from manyhands.runs.options import LIMITS, TOOLS


class ToolSettings(Settings):
    """Tools of MCP servers, and how calls are made."""

    mcp_config: OptionalPath = setting(
        None, "File that names MCP servers to mount as toolsets.", group=TOOLS, identity=True, value="FILE"
    )
    sequential_tools: Flag = setting(
        False, "Run the tool calls of one turn one after another, not side by side.", group=TOOLS, identity=True
    )
    tool_timeout: Annotated[float, number(above=0)] = setting(180.0, "Seconds for one tool call.", group=LIMITS)
