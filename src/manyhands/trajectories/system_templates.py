"""Wordings of the saved system turn that come with this program, and those of files."""

from __future__ import annotations

from manyhands.agents.options import read_text
from manyhands.core.errors import UserError
from manyhands.trajectories.sharegpt import PLACEHOLDER, TEMPLATE

HERMES_NAME = "hermes"
"""What ``--system_template`` calls the original's wording."""
OWN, FILE, OTHER = "own", "file", "other"

HERMES = """\
You are a function calling AI model. You are provided with function signatures within <tools> </tools> XML tags. You may \
call one or more functions to assist with the user query. If available tools are not relevant in assisting with user \
query, just respond in natural conversational language. Don't make assumptions about what values to plug into functions. \
After calling & executing the functions, you will be provided with function results within <tool_response> \
</tool_response> XML tags. Here are the available tools:
<tools>
{tools}
</tools>
For each function call return a JSON object, with the following pydantic model json schema for each:
{'title': 'FunctionCall', 'type': 'object', 'properties': {'name': {'title': 'Name', 'type': 'string'}, \
'arguments': {'title': 'Arguments', 'type': 'object'}}, 'required': ['name', 'arguments']}
Each function call should be enclosed within <tool_call> </tool_call> XML tags.
Example:
<tool_call>
{'name': <function-name>,'arguments': <args-dict>}
</tool_call>"""
"""The function-calling prompt of the Hermes models, which the original writes: data sets in its format have it to the letter."""


def load_template(name: str) -> str:
    """The text of a built-in wording, or of a file. Raises UserError naming the file that can't be read."""
    if name == HERMES_NAME:
        return HERMES
    try:
        return read_text(name)
    except UserError as error:
        raise UserError(f"{error} (a wording that is built in: {HERMES_NAME})") from error


def template_name(text: str | None) -> str:
    """What ``metadata.system_template`` says of a run's wording; None is this program's own."""
    if text is None or text == TEMPLATE:
        return OWN
    return HERMES_NAME if text == HERMES else FILE


def wording_of(turn: str) -> str:
    """The same of a saved system turn whose template nobody recorded."""
    return next((name for name, text in ((HERMES_NAME, HERMES), (OWN, TEMPLATE)) if _is_made_of(turn, text)), OTHER)


def _is_made_of(turn: str, template: str) -> bool:
    before, _, behind = template.partition(PLACEHOLDER)
    return len(turn) >= len(before) + len(behind) and turn.startswith(before) and turn.endswith(behind)
