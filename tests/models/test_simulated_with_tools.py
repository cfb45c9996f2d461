"""What the simulated model calls, our own tools accept."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from manyhands.models.simulated.calls import NEVER
from manyhands.models.simulated.model import simulate
from manyhands.tools.standard import standard_registry

OFFERED = ("terminal", "process", "read_file", "write_file", "patch", "search_files", "execute_code", "todo")


def test_its_arguments_fit_the_built_in_tools_and_make_sense() -> None:
    tools = standard_registry(plugins=False).definitions(OFFERED)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    sensible = {"terminal": "command", "write_file": "content", "execute_code": "code", "patch": "new_string"}
    seen: set[str] = set()
    for number in range(60):
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Sort library {number} [simulate: tools=5]"}]
        for _ in range(5):
            message = simulate(messages, tools)["choices"][0]["message"]
            messages.append(message)
            for call in message["tool_calls"]:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                jsonschema.validate(arguments, schemas[name])
                assert sensible.get(name, next(iter(arguments))) in arguments
                seen.add(name)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "{}"})
    assert seen == set(OFFERED) - set(NEVER)
