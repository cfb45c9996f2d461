"""What the simulated model does with a browser."""

from __future__ import annotations

import json
from typing import Any

from manyhands.core.digests import Draws
from manyhands.models.simulated.browsing import browsing_call

TASK = "Log in at http://127.0.0.1:8000/login. Name: Ada, Password: light"
TOOLS = ("browser_navigate", "browser_snapshot", "browser_type", "browser_press", "browser_click")
FORM = '- textbox "Name" [ref=e4]\n- textbox "Password" [ref=e6]\n- button "Log in" [ref=e7]'


def test_it_opens_looks_fills_in_and_clicks() -> None:
    messages: list[dict[str, Any]] = []
    results = {"snapshot": iter([{"snapshot": FORM}, {"snapshot": '- link "Home" [ref=e2]'}])}
    made = []
    for number in range(7):
        call = browsing_call(messages, TASK, TOOLS, Draws("x", number), ["lamp"])
        assert call is not None
        name, arguments = call
        made.append((name.removeprefix("browser_"), *arguments.values()))
        function = {"name": name, "arguments": json.dumps(arguments)}
        messages.append({"role": "assistant", "tool_calls": [{"id": str(number), "function": function}]})
        result = {"success": True, **next(results.get(made[-1][0], iter([{}])))}
        messages.append({"role": "tool", "tool_call_id": str(number), "content": json.dumps(result)})
    assert made == [
        ("navigate", "http://127.0.0.1:8000/login"),
        ("snapshot",),
        ("type", "e4", "Ada"),
        ("type", "e6", "light"),
        ("press", "Enter"),
        ("snapshot",),
        ("click", "e2"),
    ]


def test_it_browses_only_what_a_task_names() -> None:
    assert browsing_call([], "Find lamps", TOOLS, Draws("x"), ["lamp"]) is None
