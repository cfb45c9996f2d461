"""Two tools of your own, in a package of your own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from manyhands import tool
from manyhands.core.errors import ToolError
from manyhands.tools.protocol import ToolEnvironment


@tool(changes_world=False)
def count_words(
    environment: ToolEnvironment,
    text: Annotated[str, "The text to look at."],
    longest: Annotated[int, "How many of the longest words to name.", Field(ge=0, le=20)] = 3,
) -> dict[str, object]:
    """Count the words of a text, and name the longest ones."""
    words = text.split()
    if not words:
        raise ToolError("argument 'text' has no words; give the text itself, not a file name")
    ranked = sorted(set(words), key=lambda word: (-len(word), word))
    return {"words": len(words), "longest": ranked[:longest]}


@tool(changes_world=True)
async def line_count(environment: ToolEnvironment, path: Annotated[str, "A file in the sandbox."]) -> int:
    """Count the lines of a file in the sandbox."""
    sandbox = await environment.sandbox()
    data = await sandbox.read_file(path, max_bytes=10_000_000)
    return data.count(b"\n")


TOOLS = [count_words, line_count]
